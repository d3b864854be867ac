//! Beginnings of URLs that images may come from.
//!
//! ```text
//! https://images.example.com:8443/os/     covers  https://images.example.com:8443/os/debian.qcow2?b=c
//! └scheme └host              └port└path: whole segments            as `image_source`
//! docker://registry.example.com/os/       covers  docker://registry.example.com/os/debian:12
//! ```
//! A URL that only looks like one of the server, or leaves the path by `..`, is not covered
//! (`a_prefix_covers_urls_of_the_same_server_below_its_path` in `url_prefix/tests.rs`).

use std::fmt;
use std::str::FromStr;

use crate::bounds::TEXT_MAX;
use crate::image_source::{self, SourceError, SourceUrl};

/// Registry of references that name none (distribution/reference).
const DOCKER_HUB: &str = "docker.io";
/// Older name of [`DOCKER_HUB`], which clients still accept.
const DOCKER_INDEX: &str = "index.docker.io";
/// First segment of Docker's own images, which references leave out.
const DOCKER_LIBRARY: &str = "library";
/// Scheme of references to container images.
const DOCKER: &str = "docker://";

/// Why a text is not the beginning of URLs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlPrefixError {
    /// Another scheme, blanks, or too long.
    #[error(
        "must be https://, http:// or docker:// and a host, at most {TEXT_MAX} characters without blanks"
    )]
    Form,
    /// No beginning of URLs of a server.
    #[error(transparent)]
    Server(#[from] SourceError),
    /// No beginning of references to container images.
    #[error(
        "must be a registry and a path in lower case, without tag and digest, such as docker://registry.example.com/os/"
    )]
    Registry,
}

/// The beginning of URLs. `Display` gives it as messages show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlPrefix {
    /// URLs of a server.
    Server(SourceUrl),
    /// References to container images.
    Registry(ImagePath),
}

/// A registry, and the path of a container image or its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePath {
    /// Host and port.
    registry: String,
    segments: Vec<String>,
}

impl FromStr for UrlPrefix {
    type Err = UrlPrefixError;

    fn from_str(text: &str) -> Result<Self, UrlPrefixError> {
        let is_blank = |c: char| c.is_whitespace() || c.is_control();
        let has_scheme = ["https://", "http://", DOCKER]
            .iter()
            .any(|it| text.starts_with(it));
        if text.chars().count() > TEXT_MAX || text.chars().any(is_blank) || !has_scheme {
            return Err(UrlPrefixError::Form);
        }
        match text.strip_prefix(DOCKER) {
            Some(reference) => {
                let path = ImagePath::prefix(reference).ok_or(UrlPrefixError::Registry)?;
                Ok(Self::Registry(path))
            }
            None => Ok(Self::Server(image_source::prefix(text)?)),
        }
    }
}

impl UrlPrefix {
    /// Whether the URL of an image begins with this prefix: same scheme, host and port, and a path that begins with
    /// the same whole segments. A text that is no such URL does not.
    pub fn covers(&self, url: &str) -> bool {
        match (self, url.strip_prefix(DOCKER)) {
            (Self::Server(prefix), None) => {
                let url = url.parse::<SourceUrl>();
                url.is_ok_and(|url| url.is_within(prefix))
            }
            (Self::Registry(prefix), Some(reference)) => {
                let image = ImagePath::of(reference);
                let leads_out = image.segments.iter().any(|segment| segment == "..");
                image.registry == prefix.registry
                    && image.segments.starts_with(&prefix.segments)
                    && !leads_out
            }
            (Self::Server(_), Some(_)) | (Self::Registry(_), None) => false,
        }
    }
}

impl fmt::Display for UrlPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(url) => url.fmt(f),
            Self::Registry(ImagePath { registry, segments }) => {
                write!(f, "{DOCKER}{registry}/")?;
                segments
                    .iter()
                    .try_for_each(|segment| write!(f, "{segment}/"))
            }
        }
    }
}

impl ImagePath {
    /// The image of a reference, without its tag and digest.
    fn of(reference: &str) -> Self {
        let tagged = reference.split_once('@').map_or(reference, |(it, _)| it);
        // A colon before the last slash is that of a port.
        let last = tagged.rfind('/').map_or(0, |slash| slash + 1);
        let tag = tagged[last..].find(':').map(|colon| last + colon);
        let name = &tagged[..tag.unwrap_or(tagged.len())];
        match name.split_once('/') {
            Some((first, path)) if is_registry(first) => Self::new(first, path, true),
            _ => Self::new(DOCKER_HUB, name, true),
        }
    }

    /// The beginning of references. A path without a slash at its end may be a whole image.
    fn prefix(text: &str) -> Option<Self> {
        let (first, rest) = text.split_once('/').unwrap_or((text, ""));
        let (registry, path) = if is_registry(first) {
            (first, rest)
        } else {
            (DOCKER_HUB, text)
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        let mut segments = path.split_terminator('/');
        let fits = !text.is_empty()
            && registry.chars().all(is_host)
            && segments.all(|it| has_plain_ends(it) && it.chars().all(is_plain));
        fits.then(|| Self::new(registry, path, !path.ends_with('/')))
    }

    fn new(registry: &str, path: &str, is_image: bool) -> Self {
        let registry = if registry == DOCKER_INDEX {
            DOCKER_HUB
        } else {
            registry
        };
        let mut segments: Vec<_> = path.split_terminator('/').map(str::to_owned).collect();
        if is_image && registry == DOCKER_HUB && segments.len() == 1 {
            segments.insert(0, DOCKER_LIBRARY.to_owned());
        }
        Self {
            registry: registry.to_owned(),
            segments,
        }
    }
}

/// Whether a segment begins and ends as those of every repository do (distribution/reference). No image has a path with
/// `..`.
fn has_plain_ends(segment: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    segment.starts_with(is_plain) && segment.ends_with(is_plain)
}

/// Whether the first segment of a reference is a registry, and not the beginning of a path on Docker's own
/// (distribution/reference).
fn is_registry(first: &str) -> bool {
    let is_upper = |byte: u8| byte.is_ascii_uppercase();
    first.contains(['.', ':']) || first == "localhost" || first.bytes().any(is_upper)
}

#[cfg(test)]
mod tests;
