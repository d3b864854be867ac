//! The TLS server: who may connect, for how long, and how it ends.
//!
//! ```text
//!  accept ──▶ TLS handshake ──▶ idle ──first byte──▶ head ──complete──▶ busy ──answered──▶ idle …
//!    │            5 s           150 s                 5 s          (the handler's own limits)
//!    └─ beyond 1,024 connections: the one that is of least use is closed for it
//! ```
//!
//! The end: [`Closing`] → every answer says `Connection: close` (clients move away by themselves, no
//! request meets a closed door) → nothing more is accepted, idle connections end → what is under
//! way is answered → done.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, Response, header};
use certs::Clients;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use runtime::tasks::chain;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::metrics::{self, Refusal};
use crate::places::Places;
use crate::timed::{Phase, Timed};

/// Limits of the server; the defaults are for production, tests shorten them.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time. An API server holds a handful; this is room for many of them and a
    /// bound on what strangers can take: at most 64 KiB of buffers each. Who has to go for one more
    /// is said in [`places`](crate::places).
    pub connections: usize,
    /// For the TLS handshake: three round trips, with room for a packet lost twice.
    pub handshake: Duration,
    /// From the first byte of a request to the end of its head, which fits into one packet.
    pub head: Duration,
    /// Between two requests. The API server keeps idle connections for 90 s; the side that closes
    /// first must be the client, or its next request meets a closed door.
    pub idle: Duration,
    /// After the end began: how long answers tell clients to go before idle connections are closed.
    pub closing: Duration,
    /// After that: how long answers under way are waited for. No review takes longer than 1 s.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            handshake: Duration::from_secs(5),
            head: Duration::from_secs(5),
            idle: Duration::from_secs(150),
            closing: Duration::from_secs(1),
            drain: Duration::from_secs(5),
        }
    }
}

/// Bound of the buffers of a connection, and so of a request's head; bodies pass through in parts.
const BUFFER_MAX: usize = 64 * 1024;

/// The pause after a failed accept, which means that the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Between two lines about clients that are refused: strangers shall not fill the log.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);

/// The oldest version of TLS that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum TlsVersion {
    /// For API servers that were told to speak nothing newer.
    #[value(name = "1.2")]
    V1_2,
    /// What every API server of today speaks.
    #[default]
    #[value(name = "1.3")]
    V1_3,
}

/// TLS with the leaf that `served` holds, for those whom `clients` lets in, or for all; HTTP/1.1 is
/// all that is offered.
pub fn tls(
    served: Arc<dyn ResolvesServerCert>,
    least: TlsVersion,
    clients: Option<Clients>,
) -> Result<rustls::ServerConfig, rustls::Error> {
    let versions: &[&SupportedProtocolVersion] = match least {
        TlsVersion::V1_2 => &[&TLS13, &TLS12],
        TlsVersion::V1_3 => &[&TLS13],
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_protocol_versions(versions)?;
    let mut config = match clients {
        None => config.with_no_client_auth().with_cert_resolver(served),
        Some(clients) => {
            let config = config.with_client_cert_verifier(Arc::new(clients));
            let mut config = config.with_cert_resolver(served);
            // A session that is taken up again would not be asked for its certificate.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            config
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Asks a server to end gracefully. Clones ask the same server.
pub type Closing = CancellationToken;

/// What every connection of a server shares.
struct Server {
    acceptor: TlsAcceptor,
    router: Router,
    limits: Limits,
    http: http1::Builder,
    /// Answers tell clients to go.
    closing: AtomicBool,
    /// Idle connections end.
    end: CancellationToken,
    refused: Refused,
}

/// Serves until `closing` is asked for and everything under way is answered. Dropping the future
/// ends every connection at once.
pub async fn serve(
    listener: TcpListener,
    tls: rustls::ServerConfig,
    router: Router,
    limits: Limits,
    closing: Closing,
) {
    let mut http = http1::Builder::new();
    // hyper's own limit for heads also ends idle connections, so it cannot be the shorter one.
    http.header_read_timeout(None).max_buf_size(BUFFER_MAX);
    let server = Arc::new(Server {
        acceptor: TlsAcceptor::from(Arc::new(tls)),
        router,
        limits,
        http,
        closing: AtomicBool::new(false),
        end: CancellationToken::new(),
        refused: Refused::default(),
    });
    let mut connections = JoinSet::new();
    let goodbye = async {
        closing.cancelled().await;
        server.closing.store(true, Ordering::Relaxed);
        sleep(limits.closing).await;
    };
    tokio::select! {
        () = goodbye => {}
        () = accept_all(&server, &listener, &mut connections) => {}
    }
    drop(listener);
    server.end.cancel();
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(limits.drain, drained).await.is_err() {
        tracing::warn!("connections were cut: their answers took too long");
    }
}

/// Accepts for ever.
async fn accept_all(server: &Arc<Server>, listener: &TcpListener, connections: &mut JoinSet<()>) {
    let places = Places::new(server.limits.connections);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = connections.join_next() => {
                if ended.is_err() {
                    tracing::error!("a connection's task panicked");
                }
                continue;
            }
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let phase = Phase::default();
        // Closed at once: an API server that waits for its turn only loses the time of its user.
        let Some((place, displaced)) = places.take(&phase) else {
            metrics::refused(Refusal::Limit);
            continue;
        };
        if displaced {
            metrics::refused(Refusal::Displaced);
        }
        let server = server.clone();
        connections.spawn(async move {
            let ended = tokio::select! {
                ended = server.connection(stream, peer, phase) => ended,
                () = place.given_up() => Ok(()),
            };
            if let Err(error) = ended {
                server.ended_badly(peer, &error);
            }
        });
    }
}

/// Clients that were refused since that was last told, by what they lack.
#[derive(Debug, Default)]
struct Refused(Mutex<BTreeMap<&'static str, (u64, Option<Instant>)>>);

impl Refused {
    /// One more; how many there were, when it is time to say so.
    fn count(&self, lack: &'static str) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, last) = told.entry(lack).or_default();
        *count += 1;
        if last.is_some_and(|last| last.elapsed() < REFUSAL_PAUSE) {
            return None;
        }
        *last = Some(Instant::now());
        Some(std::mem::take(count))
    }
}

/// What a client lacks, and the same in words, if that is why a handshake failed.
fn lack(error: &io::Error) -> Option<(&'static str, String)> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::NoCertificatesPresented => {
            Some(("certificate", "it shows no certificate".to_owned()))
        }
        rustls::Error::InvalidCertificate(CertificateError::Other(error)) => {
            Some(("name", chain(error)))
        }
        rustls::Error::InvalidCertificate(error) => {
            Some(("trust", format!("its certificate: {error}")))
        }
        _ => None,
    }
}

/// How a connection ends when nobody is to blame but the client.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("no TLS handshake in time")]
    HandshakeLate,
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

impl Server {
    async fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        phase: Phase,
    ) -> Result<(), ConnectionError> {
        stream.set_nodelay(true)?;
        let accepted = self.acceptor.accept(stream).into_fallible();
        let accepted = timeout(self.limits.handshake, accepted).await;
        let stream = match accepted.map_err(|_| ConnectionError::HandshakeLate)? {
            Ok(stream) => stream,
            Err((error, stream)) => {
                self.ended_badly(peer, &ConnectionError::Handshake(error));
                self.hear_out(stream).await;
                return Ok(());
            }
        };
        let stream = Timed::new(stream, phase.clone(), self.limits.head, self.limits.idle);
        let service = service_fn(|request| self.answer(request, &phase));
        let mut connection =
            std::pin::pin!(self.http.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = self.end.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        // hyper waits for the first request of a new connection; one that has none is not waited for.
        let patience = if phase.is_unused() {
            self.limits.closing
        } else {
            self.limits.drain
        };
        match timeout(patience, connection).await {
            Ok(ended) => Ok(ended?),
            Err(_) => Ok(()),
        }
    }

    /// Lets a client that was refused read why: it may be sending its request by then, and a socket that is
    /// closed before that was read takes back what it has sent. The API server's user would be told of a
    /// broken pipe, and not of a certificate.
    async fn hear_out(&self, mut stream: TcpStream) {
        let rest = async {
            stream.shutdown().await?;
            let most = u64::try_from(BUFFER_MAX).unwrap_or(u64::MAX);
            tokio::io::copy(&mut stream.take(most), &mut tokio::io::sink()).await
        };
        if let Ok(Err(error)) = timeout(self.limits.closing, rest).await {
            tracing::debug!(%error, "a client that was refused did not hear why");
        }
    }

    /// Tells of a connection that ended otherwise than by its client's wish.
    fn ended_badly(&self, peer: SocketAddr, error: &ConnectionError) {
        tracing::debug!(%error, "a connection ended badly");
        let ConnectionError::Handshake(error) = error else {
            if matches!(error, ConnectionError::HandshakeLate) {
                metrics::refused(Refusal::Handshake);
            }
            return;
        };
        let Some((lack, reason)) = lack(error) else {
            return metrics::refused(Refusal::Handshake);
        };
        metrics::refused(Refusal::Client);
        if let Some(refused) = self.refused.count(lack) {
            let peer = peer.ip();
            tracing::warn!(%peer, reason, refused, "a client may not ask");
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        phase: &Phase,
    ) -> Result<Response<axum::body::Body>, Infallible> {
        phase.busy();
        let mut response = self
            .router
            .clone()
            .oneshot(request.map(axum::body::Body::new))
            .await?;
        phase.idle();
        if self.closing.load(Ordering::Relaxed) {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}
