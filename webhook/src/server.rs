//! The TLS server: who may connect, for how long, and how it ends.
//!
//! ```text
//!  accept ──▶ TLS handshake ──▶ idle ──first byte──▶ head ──complete──▶ busy ──answered──▶ idle …
//!    │            5 s           150 s                 5 s          (the handler's own limits)
//!    └─ beyond 1,024 connections: closed at once
//! ```
//!
//! The end: [`Closing`] → every answer says `Connection: close` (clients move away by themselves, no
//! request meets a closed door) → nothing more is accepted, idle connections end → what is under
//! way is answered → done.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::server::ResolvesServerCert;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::timed::{Phase, Timed};

/// Limits of the server; the defaults are for production, tests shorten them.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time. An API server holds a handful; this is room for many of them and a
    /// bound on what strangers can take: at most 64 KiB of buffers each.
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

/// TLS 1.3 with the leaf that `served` holds; HTTP/1.1 is all that is offered.
pub fn tls(served: Arc<dyn ResolvesServerCert>) -> Result<rustls::ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(served);
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
    let slots = Arc::new(Semaphore::new(server.limits.connections));
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
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Closed at once: an API server that waits for its turn only loses the time of its user.
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            continue;
        };
        let server = server.clone();
        connections.spawn(async move {
            if let Err(error) = server.connection(stream).await {
                tracing::debug!(%error, "a connection ended badly");
            }
            drop(slot);
        });
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
    async fn connection(self: Arc<Self>, stream: TcpStream) -> Result<(), ConnectionError> {
        stream.set_nodelay(true)?;
        let stream = timeout(self.limits.handshake, self.acceptor.accept(stream))
            .await
            .map_err(|_| ConnectionError::HandshakeLate)?
            .map_err(ConnectionError::Handshake)?;
        let phase = Phase::default();
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
