//! Beginnings of URLs that images may come from.
//!
//! ```text
//! https://images.example.com:8443/os/     covers  https://images.example.com:8443/os/debian.qcow2?b=c
//! └scheme └host              └port└path: whole segments
//! docker://registry.example.com/os/       covers  docker://registry.example.com/os/debian:12
//! ```
//! Scheme, host and port must be equal, the path begins with the same whole segments. A URL whose path could lead
//! elsewhere, by `..` or an escaped slash, is covered only by the whole host.

use std::fmt;
use std::str::FromStr;

use crate::bounds::TEXT_MAX;

/// Host of container images whose reference names none (distribution/reference).
const DOCKER_HUB: &str = "docker.io";
/// Older name of [`DOCKER_HUB`], which clients still accept.
const DOCKER_INDEX: &str = "index.docker.io";
/// First segment of Docker's own images, which references leave out.
const DOCKER_LIBRARY: &str = "library";

/// Why a text is not the beginning of URLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlPrefixError {
    /// Another scheme, no host, blanks, or too long.
    #[error(
        "must be https://, http:// or docker:// and a host, at most {TEXT_MAX} characters without blanks"
    )]
    Form,
    /// User or password.
    #[error("must have no user and no password")]
    User,
    /// A query or a fragment.
    #[error("must have no query and no fragment: only the path is compared")]
    Query,
    /// A path that no URL can begin with.
    #[error(
        "must have a path of plain segments, without '.', '..', '\\', '%', empty ones, tags and digests"
    )]
    Path,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Https,
    Http,
    Docker,
}

impl Scheme {
    fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Docker => "docker",
        }
    }

    /// The port of a URL that names none. Registries have no such port: a reference without one and a
    /// reference with `:443` are different names.
    fn default_port(self) -> &'static str {
        match self {
            Self::Https => ":443",
            Self::Http => ":80",
            Self::Docker => "",
        }
    }
}

/// The beginning of URLs. `Display` gives it as messages show it; parsing that gives the same beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlPrefix {
    scheme: Scheme,
    /// Host in lower case and port.
    authority: Box<str>,
    segments: Box<[Box<str>]>,
}

impl FromStr for UrlPrefix {
    type Err = UrlPrefixError;

    fn from_str(text: &str) -> Result<Self, UrlPrefixError> {
        let is_blank = |c: char| c.is_whitespace() || c.is_control();
        if text.chars().count() > TEXT_MAX || text.chars().any(is_blank) {
            return Err(UrlPrefixError::Form);
        }
        let (scheme, rest) = scheme_of(text).ok_or(UrlPrefixError::Form)?;
        if rest.contains(['?', '#']) {
            return Err(UrlPrefixError::Query);
        }
        let (first, path) = split_path(rest);
        if first.contains('@') {
            return Err(UrlPrefixError::User);
        }
        let (authority, segments) = match scheme {
            Scheme::Docker if !first.is_empty() && !is_registry(first) => (DOCKER_HUB, rest),
            _ => (first, path.strip_prefix('/').unwrap_or(path)),
        };
        let authority = normal_authority(scheme, authority).ok_or(UrlPrefixError::Form)?;
        let mut segments: Vec<&str> = segments.split_terminator('/').collect();
        let is_marked = |segment: &&str| scheme == Scheme::Docker && segment.contains([':', '@']);
        let is_plain = |segment: &&str| leads_on(segment) && !segment.contains('%');
        if !segments.iter().all(is_plain) || segments.iter().any(is_marked) {
            return Err(UrlPrefixError::Path);
        }
        // `docker://docker.io/debian` would otherwise cover the images of a user `debian`.
        if scheme == Scheme::Docker
            && *authority == *DOCKER_HUB
            && segments.len() == 1
            && !text.ends_with('/')
        {
            segments.insert(0, DOCKER_LIBRARY);
        }
        Ok(Self {
            scheme,
            authority,
            segments: segments.into_iter().map(Into::into).collect(),
        })
    }
}

impl UrlPrefix {
    /// Whether the URL of an image begins with this prefix. A text that is no such URL does not.
    pub fn covers(&self, url: &str) -> bool {
        let Some((scheme, rest)) = scheme_of(url) else {
            return false;
        };
        if scheme != self.scheme {
            return false;
        }
        let found = match scheme {
            Scheme::Docker => registry_and_path(rest),
            Scheme::Https | Scheme::Http => server_and_path(scheme, rest),
        };
        let Some((authority, segments)) = found else {
            return false;
        };
        let leads_on = || segments.iter().all(|segment| leads_on(segment));
        *self.authority == *authority
            && (self.segments.is_empty() || leads_on())
            && self.segments.len() <= segments.len()
            && self
                .segments
                .iter()
                .zip(&segments)
                .all(|(own, found)| **own == **found)
    }
}

impl fmt::Display for UrlPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = self.scheme.default_port();
        let authority = self
            .authority
            .strip_suffix(default)
            .unwrap_or(&self.authority);
        write!(f, "{}://{authority}/", self.scheme.as_str())?;
        self.segments
            .iter()
            .try_for_each(|segment| write!(f, "{segment}/"))
    }
}

/// The URL of an image as messages show it: without user, query and fragment, which may be secrets.
pub fn public_part(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (authority, path) = split_path(rest);
    // In a reference to a container image, '@' precedes the digest, which is behind the host.
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let host = if scheme == "docker" { authority } else { host };
    format!("{scheme}://{host}{path}")
}

fn scheme_of(url: &str) -> Option<(Scheme, &str)> {
    let schemes = [Scheme::Https, Scheme::Http, Scheme::Docker];
    let (text, rest) = url.split_once("://")?;
    let scheme = schemes.into_iter().find(|scheme| scheme.as_str() == text)?;
    Some((scheme, rest))
}

/// Host and port, and the path from its slash.
fn split_path(rest: &str) -> (&str, &str) {
    rest.split_at(rest.find('/').unwrap_or(rest.len()))
}

/// Host in lower case, and the port that is used; of a registry as it is written. `None` without a host.
fn normal_authority(scheme: Scheme, authority: &str) -> Option<Box<str>> {
    // The colons of an IPv6 address are in brackets.
    let port = authority
        .rfind(':')
        .filter(|at| !authority[*at..].contains(']'));
    let (host, port) = authority.split_at(port.unwrap_or(authority.len()));
    if host.is_empty() || host.contains('\\') {
        return None;
    }
    let normal = match (scheme, port) {
        // References are compared as they are written.
        (Scheme::Docker, port) => format!("{host}{port}"),
        (_, "" | ":") => format!("{}{}", host.to_ascii_lowercase(), scheme.default_port()),
        (_, port) => format!("{}{port}", host.to_ascii_lowercase()),
    };
    Some(match (scheme, normal.as_str()) {
        (Scheme::Docker, DOCKER_INDEX) => DOCKER_HUB.into(),
        _ => normal.into(),
    })
}

/// The server of a URL, and the segments of its path.
fn server_and_path(scheme: Scheme, rest: &str) -> Option<(Box<str>, Vec<&str>)> {
    let rest = rest.split(['?', '#']).next()?;
    let (authority, path) = split_path(rest);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let authority = normal_authority(scheme, host)?;
    Some((authority, path.split('/').skip(1).collect()))
}

/// Whether the first segment of a reference is a registry, and not the beginning of a path on Docker's own
/// (distribution/reference).
fn is_registry(first: &str) -> bool {
    let is_upper = |byte: u8| byte.is_ascii_uppercase();
    first.contains(['.', ':']) || first == "localhost" || first.bytes().any(is_upper)
}

/// The registry of a reference, and the segments of its path without tag and digest.
fn registry_and_path(reference: &str) -> Option<(Box<str>, Vec<&str>)> {
    let tagged = reference.split('@').next()?;
    let last = tagged.rfind('/').map_or(0, |slash| slash + 1);
    let name = match tagged[last..].find(':') {
        Some(colon) => &tagged[..last + colon],
        None => tagged,
    };
    let (registry, path) = match name.split_once('/') {
        Some((first, path)) if is_registry(first) => (first, path),
        _ => (DOCKER_HUB, name),
    };
    let authority = normal_authority(Scheme::Docker, registry)?;
    let mut segments: Vec<&str> = path.split('/').collect();
    if *authority == *DOCKER_HUB && segments.len() == 1 {
        segments.insert(0, DOCKER_LIBRARY);
    }
    Some((authority, segments))
}

/// Whether a segment of a path leads to what is below the segment before it, for servers that decode escapes, too.
fn leads_on(segment: &str) -> bool {
    let decoded = segment
        .replace("%2e", ".")
        .replace("%2E", ".")
        .replace("%5c", "\\")
        .replace("%5C", "\\")
        .replace("%2f", "/")
        .replace("%2F", "/");
    !decoded.is_empty() && decoded != "." && decoded != ".." && !decoded.contains(['/', '\\'])
}

#[cfg(test)]
mod tests;
