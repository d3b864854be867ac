//! Opens the download of an image: which server is connected to is decided here.
//!
//! ```text
//! URL ─ within the host's sources? ─▶ name ─ resolved ─▶ addresses, all public? ─▶ connect to one of these ─▶ body
//!  ▲                                                                                     │
//!  └──────────────────────────── redirect, at most 5 ◀───────────────────────────────────┘
//! ```
//! The address that was checked is the one that is connected to: a name may have another address a moment later. No
//! proxy is used, because a proxy would resolve the name itself. Credentials go to the server of the first URL only, and
//! only over https; once a redirect has led to another server, none are sent any more.

use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use common::image_source::{
    REDIRECTS_MAX, Reach, Scheme, SourceError, SourceHost, SourceUrl, is_public, redacted,
};
use ureq::http::header::{AUTHORIZATION, LOCATION};
use ureq::http::{StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::credentials::Credentials;

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

/// Where an image is, and what it may be fetched with.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) url: &'a str,
    /// `imageSources` of the host.
    pub(super) allowed: Option<&'a [String]>,
    /// For the server of the URL.
    pub(super) credentials: Option<&'a Credentials>,
}

/// Opens the download. The error names the URL without user and query.
pub(super) fn open(from: Source<'_>) -> Result<Download, String> {
    // The certificates the machine trusts: companies serve images under a CA of their own.
    open_trusting(from, &RootCerts::PlatformVerifier)
}

fn open_trusting(from: Source<'_>, roots: &RootCerts) -> Result<Download, String> {
    let mut target = from.url.to_owned();
    let mut credentials = from.credentials;
    for _ in 0..=REDIRECTS_MAX {
        let shown = redacted(&target);
        let refused = |error: SourceError| format!("{shown} {error}");
        let source: SourceUrl = target.parse().map_err(refused)?;
        let reach = source.check(from.allowed).map_err(refused)?;
        let uri: Uri = target.parse().map_err(|_| refused(SourceError::Form))?;
        if !is_same(&uri, &source) {
            return Err(refused(SourceError::Form));
        }
        let mut request = agent(reach, roots.clone()).get(uri);
        if let Some(credentials) = credentials {
            if source.scheme() != Scheme::Https {
                return Err(format!(
                    "{shown} is not encrypted, and credentials are sent over https only: use a URL that begins with https://, or remove image.secretRef"
                ));
            }
            request = request.header(AUTHORIZATION, credentials.header.clone());
        }
        let response = request.call();
        let response = response.map_err(|error| failure(&shown, error))?;
        let status = response.status();
        if status.is_redirection() {
            let location = response.headers().get(LOCATION);
            let location = location.and_then(|value| value.to_str().ok());
            let location = location.ok_or_else(|| {
                format!("{shown}: the server redirects ({status}) and does not say where")
            })?;
            let refused =
                |error| format!("{shown} redirects to {}, which {error}", redacted(location));
            let next = source.redirect(location).map_err(refused)?;
            let server: SourceUrl = next.parse().map_err(refused)?;
            credentials = credentials.filter(|_| server.is_on_server_of(&source));
            target = next;
            continue;
        }
        if !status.is_success() {
            return Err(format!(
                "{shown}: the server answers {status}{}",
                advice(status, credentials)
            ));
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
        redacted(from.url),
        SourceError::TooManyRedirects
    ))
}

/// What to do about the status of a response; empty where nothing more is known.
fn advice(status: StatusCode, credentials: Option<&Credentials>) -> String {
    if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return String::new();
    }
    match credentials {
        Some(Credentials { secret, .. }) => {
            format!(" to the credentials of Secret '{secret}': correct the Secret")
        }
        None => {
            "; if the image is private, name a Secret with credentials in image.secretRef".into()
        }
    }
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
fn agent(reach: Reach, roots: RootCerts) -> ureq::Agent {
    let tls = TlsConfig::builder().root_certs(roots).build();
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
        check_addresses(self.reach, uri.host().unwrap_or_default(), &found)
            .map_err(|error| ureq::Error::Other(Box::new(NotPublic(error))))?;
        Ok(found)
    }
}

/// Fails unless every address that a name resolved to may be connected to. One that is not public is enough: which of
/// several is connected to is not decided here. The error does not have the address: a tenant would learn addresses of
/// internal names.
fn check_addresses(reach: Reach, host: &str, found: &[SocketAddr]) -> Result<(), SourceError> {
    let is_public = found.iter().all(|address| is_public(address.ip()));
    if is_public || reach != Reach::Public {
        return Ok(());
    }
    Err(SourceError::NotPublic(host.to_owned()))
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
mod authorization_tests;
#[cfg(test)]
mod tests;
