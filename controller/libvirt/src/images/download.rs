//! Opens the download of an image: which server is connected to is decided here.
//!
//! ```text
//! URL ─ within the host's sources? ─▶ name ─ resolved ─▶ addresses, all public? ─▶ connect to one of these ─▶ body
//!  ▲                                                                                     │
//!  └──────────────────────────── redirect, at most 5 ◀───────────────────────────────────┘
//! ```
//! The address that was checked is the one that is connected to: a name may have another address a moment later. No
//! proxy is used, because a proxy would resolve the name itself.

use std::fmt;
use std::io::Read;
use std::time::Duration;

use common::image_source::{
    REDIRECTS_MAX, Reach, SourceError, SourceHost, SourceUrl, is_public, redacted,
};
use ureq::http::Uri;
use ureq::http::header::LOCATION;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Limit of each step until a server sends its response headers: resolving, connecting, waiting.
const RESPONSE_LIMIT: Duration = Duration::from_secs(30);
/// Longest pause of a server while it sends the content.
pub(super) const PAUSE_LIMIT: Duration = Duration::from_mins(1);

/// The content of an image on its way.
pub(super) struct Download {
    pub(super) body: Box<dyn Read + Send>,
    /// Bytes of the whole content.
    pub(super) length: u64,
}

/// Opens the download. `sources`: `imageSources` of the host. The error names the URL without user and query.
pub(super) fn open(url: &str, sources: Option<&[String]>) -> Result<Download, String> {
    let mut target = url.to_owned();
    for _ in 0..=REDIRECTS_MAX {
        let shown = redacted(&target);
        let refused = |error: SourceError| format!("{shown} {error}");
        let source: SourceUrl = target.parse().map_err(refused)?;
        let reach = source.check(sources).map_err(refused)?;
        let uri: Uri = target.parse().map_err(|_| refused(SourceError::Form))?;
        if !is_same(&uri, &source) {
            return Err(refused(SourceError::Form));
        }
        let response = agent(reach).get(uri).call();
        let response = response.map_err(|error| failure(&shown, error))?;
        let status = response.status();
        if status.is_redirection() {
            let location = response.headers().get(LOCATION);
            let location = location.and_then(|value| value.to_str().ok());
            let location = location.ok_or_else(|| {
                format!("{shown}: the server redirects ({status}) and does not say where")
            })?;
            target = source.redirect(location).map_err(|error| {
                format!("{shown} redirects to {}, which {error}", redacted(location))
            })?;
            continue;
        }
        if !status.is_success() {
            return Err(format!("{shown}: the server answers {status}"));
        }
        let length = response.body().content_length();
        let length = length.ok_or_else(|| format!("{shown}: the server sent no Content-Length"))?;
        return Ok(Download {
            body: Box::new(response.into_body().into_reader()),
            length,
        });
    }
    Err(format!(
        "{} {}",
        redacted(url),
        SourceError::TooManyRedirects
    ))
}

/// Whether the library that connects reads scheme, host and port as the check does.
fn is_same(uri: &Uri, source: &SourceUrl) -> bool {
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_host = match source.host() {
        SourceHost::Name(name) => host.eq_ignore_ascii_case(name),
        SourceHost::Address(address) => host.parse().ok() == Some(*address),
    };
    let scheme = uri.scheme_str().unwrap_or_default();
    is_host
        && scheme.eq_ignore_ascii_case(source.scheme().as_str())
        && uri.port_u16().is_none_or(|port| port == source.port())
}

/// A client for one request.
fn agent(reach: Reach) -> ureq::Agent {
    // The certificates the machine trusts: companies serve images under a CA of their own.
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .build();
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .timeout_resolve(Some(RESPONSE_LIMIT))
        .timeout_connect(Some(RESPONSE_LIMIT))
        .timeout_recv_response(Some(RESPONSE_LIMIT))
        .timeout_per_read(Some(PAUSE_LIMIT))
        .build();
    let resolver = CheckedResolver {
        resolver: DefaultResolver::default(),
        reach,
    };
    ureq::Agent::with_parts(config, DefaultConnector::new(), resolver)
}

/// The text of an error without the URL, which may have a token.
fn failure(shown: &str, error: ureq::Error) -> String {
    match error {
        ureq::Error::Other(error) => match error.downcast::<NotPublic>() {
            Ok(error) => format!("{shown} {}", error.0),
            Err(error) => format!("{shown}: {error}"),
        },
        ureq::Error::BadUri(_) => format!("{shown} {}", SourceError::Form),
        error => format!("{shown}: {error}"),
    }
}

/// Resolves names, and refuses those with an address that may not be connected to.
#[derive(Debug)]
struct CheckedResolver {
    resolver: DefaultResolver,
    reach: Reach,
}

impl Resolver for CheckedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.resolver.resolve(uri, config, timeout)?;
        // One address that is not public is enough: which of several is connected to is not decided here.
        let is_refused = found.iter().any(|address| !is_public(address.ip()));
        if is_refused && self.reach == Reach::Public {
            // Not the address: a tenant would learn addresses of internal names.
            let host = uri.host().unwrap_or_default().to_owned();
            let error = SourceError::NotPublic(host);
            return Err(ureq::Error::Other(Box::new(NotPublic(error))));
        }
        Ok(found)
    }
}

/// An address that may not be connected to, as an error of the client.
#[derive(Debug)]
struct NotPublic(SourceError);

impl fmt::Display for NotPublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for NotPublic {}

#[cfg(test)]
mod tests;
