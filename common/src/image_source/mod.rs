//! Where images may be fetched from: prefixes of URLs, and public addresses.
//!
//! ```text
//! imageSources of a host ─ absent ─▶ any URL, but only public addresses are connected to
//!                        └ present ▶ URLs within one of them, at any address
//! https://user:word@host:8443/os/debian/12.qcow2?token   a prefix has: scheme, host, port, path by whole segments
//! ```
//! A fetch runs on the controller, inside the network of the cluster's operator. A user who may name a URL could
//! otherwise read what only that network may: metadata services, other tenants' servers, the host itself.
//!
//! It has its own parser: the crate `url` repairs what programs read differently (backslashes, `..`, spaces), so that another text
//! would be fetched than the one that was checked. Here it is refused
//! (`a_url_that_programs_could_read_differently_is_refused` in `tests.rs`).

mod addresses;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

pub use addresses::is_public;

use crate::userinfo::{userinfo, without_password};
use crate::words::listed;

/// How an image is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// Without encryption.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// The name of the scheme, in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// The host of a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceHost {
    /// A name in lower case, which somebody has to resolve.
    Name(String),
    /// An address.
    Address(IpAddr),
}

/// The parts of a URL that decide whether it may be fetched. `Display` is the URL without user, query and fragment,
/// which may be secrets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceUrl {
    scheme: Scheme,
    host: SourceHost,
    port: u16,
    /// The path with its first slash; a path that is absent is `/`.
    path: String,
}

/// Why nothing is fetched from a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// It is no URL of the two schemes, or one that programs read differently.
    #[error(
        "is no https:// or http:// URL with a plain host; write the host as a name or an address"
    )]
    Form,
    /// A prefix has more than scheme, host, port and path.
    #[error("has a user, a query or a fragment, and a prefix has none; remove it")]
    NotAPrefix,
    /// A prefix has `.` or `..` in its path.
    #[error("has '.' or '..' in its path; write the path without them")]
    DotSegments,
    /// The host's `imageSources` do not have it.
    #[error("is not within spec.imageSources of the LibvirtHost, which allow {0}")]
    NotAllowed(String),
    /// Its host is an address that is not public, or a name with such an address.
    #[error(
        "is at {0}, which is not a public address: if images are served there, add the prefix of the URL to spec.imageSources of the LibvirtHost"
    )]
    NotPublic(String),
    /// A server redirects an encrypted transfer to one that is not.
    #[error(
        "redirects from https to http, where the image could be replaced in transit; use a server that stays with https"
    )]
    Downgrade,
    /// A server redirects more often than is followed.
    #[error("redirects more than {REDIRECTS_MAX} times; name the URL that it ends at")]
    TooManyRedirects,
}

/// Most redirects that are followed.
pub const REDIRECTS_MAX: usize = 5;

/// Which addresses a fetch may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Public ones only.
    Public,
    /// Any: the administrator listed the source.
    Any,
}

impl SourceUrl {
    /// How the image is transferred.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host.
    pub fn host(&self) -> &SourceHost {
        &self.host
    }

    /// The port; the scheme's own if the URL has none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the URL is on the server of another one: same scheme, host and port.
    pub fn is_on_server_of(&self, other: &Self) -> bool {
        (self.scheme, &self.host, self.port) == (other.scheme, &other.host, other.port)
    }

    /// Whether the URL is within a prefix: same scheme, host and port, and a path that begins with all its segments.
    pub fn is_within(&self, prefix: &Self) -> bool {
        // A slash at the end of a prefix is no segment.
        let base = prefix.path.strip_suffix('/').unwrap_or(&prefix.path);
        let rest = self.path.strip_prefix(base);
        self.is_on_server_of(prefix)
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            // Servers resolve dot segments, which would lead out of the prefix again.
            && (base.is_empty() || !has_dot_segments(&self.path))
    }

    /// Whether the sources of a host allow the URL, and which addresses it may lead to. `sources`: its
    /// `imageSources`. A prefix that cannot be read allows nothing.
    pub fn check(&self, sources: Option<&[String]>) -> Result<Reach, SourceError> {
        let Some(sources) = sources else {
            return match &self.host {
                SourceHost::Address(address) if !is_public(*address) => {
                    Err(SourceError::NotPublic(address.to_string()))
                }
                SourceHost::Name(name) if name == "localhost" || name.ends_with(".localhost") => {
                    Err(SourceError::NotPublic(name.clone()))
                }
                _ => Ok(Reach::Public),
            };
        };
        let mut prefixes = sources.iter().filter_map(|source| prefix(source).ok());
        if prefixes.any(|prefix| self.is_within(&prefix)) {
            Ok(Reach::Any)
        } else {
            Err(SourceError::NotAllowed(allowed(sources)))
        }
    }

    /// The URL that a redirect of this one leads to.
    pub fn redirect(&self, location: &str) -> Result<String, SourceError> {
        let origin = format!("{}://{}", self.scheme.as_str(), self.authority());
        let is_absolute = location.split_once("://").is_some_and(|(scheme, _)| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
            scheme.bytes().all(fits)
        });
        let target = if is_absolute {
            location.to_owned()
        } else if let Some(rest) = location.strip_prefix("//") {
            format!("{}://{rest}", self.scheme.as_str())
        } else if location.starts_with('/') {
            format!("{origin}{location}")
        } else if location.starts_with('?') {
            format!("{origin}{}{location}", self.path)
        } else {
            let folder = self
                .path
                .rfind('/')
                .map_or("/", |slash| &self.path[..=slash]);
            format!("{origin}{folder}{location}")
        };
        let parsed: Self = target.parse()?;
        if self.scheme == Scheme::Https && parsed.scheme == Scheme::Http {
            return Err(SourceError::Downgrade);
        }
        Ok(target)
    }

    fn authority(&self) -> String {
        let host = match &self.host {
            SourceHost::Name(name) => name.clone(),
            SourceHost::Address(IpAddr::V4(address)) => address.to_string(),
            SourceHost::Address(IpAddr::V6(address)) => format!("[{address}]"),
        };
        if self.port == self.scheme.port() {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

impl fmt::Display for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}{}",
            self.scheme.as_str(),
            self.authority(),
            self.path
        )
    }
}

impl FromStr for SourceUrl {
    type Err = SourceError;

    /// Reads the URLs on which all programs agree: a host of letters, digits, dots, hyphens and underscores, or an
    /// address; no backslash, blank or control character.
    fn from_str(text: &str) -> Result<Self, SourceError> {
        let (scheme, rest) = text.split_once("://").ok_or(SourceError::Form)?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(SourceError::Form),
        };
        if rest
            .chars()
            .any(|c| c == '\\' || c.is_whitespace() || c.is_control())
        {
            return Err(SourceError::Form);
        }
        let rest = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
        let (host, path) = host_and_path(rest);
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (host, None),
        };
        let port = match port {
            None | Some("") => scheme.port(),
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or(SourceError::Form)?,
            Some(_) => return Err(SourceError::Form),
        };
        Ok(Self {
            scheme,
            host: source_host(host)?,
            port,
            path: if path.is_empty() { "/" } else { path }.to_owned(),
        })
    }
}

fn source_host(text: &str) -> Result<SourceHost, SourceError> {
    if let Some(rest) = text.strip_prefix('[') {
        // An address with a zone is one of a link of the controller, and is no address here.
        let address = rest.strip_suffix(']').and_then(|it| it.parse().ok());
        return address
            .map(|address| SourceHost::Address(IpAddr::V6(address)))
            .ok_or(SourceError::Form);
    }
    if let Ok(address) = text.parse() {
        return Ok(SourceHost::Address(IpAddr::V4(address)));
    }
    let fits = |c: char| c.is_alphanumeric() || "-._".contains(c);
    if text.is_empty() || !text.chars().all(fits) {
        return Err(SourceError::Form);
    }
    Ok(SourceHost::Name(text.to_lowercase()))
}

/// Reads an item of `imageSources`.
pub fn prefix(text: &str) -> Result<SourceUrl, SourceError> {
    let url: SourceUrl = text.parse()?;
    let authority = text.split('/').nth(2).unwrap_or_default();
    if text.contains(['?', '#']) || authority.contains('@') {
        return Err(SourceError::NotAPrefix);
    }
    if has_dot_segments(&url.path) {
        return Err(SourceError::DotSegments);
    }
    Ok(url)
}

/// Whether a path has segments that are `.` or `..`, or become that once they are decoded.
fn has_dot_segments(path: &str) -> bool {
    let path = path.to_ascii_lowercase().replace("%2e", ".");
    let mut segments = path.split('/');
    segments.any(|segment| matches!(segment, "." | ".."))
        || path.contains("%2f")
        || path.contains("%5c")
}

/// The sources of a host in a message.
pub fn allowed(sources: &[String]) -> String {
    if sources.is_empty() {
        return "none".to_owned();
    }
    listed(sources.to_vec())
}

/// The text of a URL without user, query and fragment, for messages; also of a text that is no URL. The reference of
/// a container image has none of them.
pub fn redacted(url: &str) -> String {
    if url.starts_with("docker://") {
        return without_password(url).into_owned();
    }
    let (before, after) = match userinfo(url) {
        Some(user) => (&url[..user.start], &url[user.end + 1..]),
        None => ("", url),
    };
    let end = after.find(['?', '#']).unwrap_or(after.len());
    format!("{before}{}", &after[..end])
}

/// Host with its port, and path, of what follows the scheme of a URL without query and fragment. The user is left out.
fn host_and_path(rest: &str) -> (&str, &str) {
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    (host, path)
}

#[cfg(test)]
mod tests;
