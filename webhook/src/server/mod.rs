//! The TLS server: accept loop, limits of a connection, graceful shutdown.
//!
//! ```text
//!  accept ──▶ TLS handshake ──▶ idle ──first byte──▶ head ──complete──▶ busy ──answered──▶ idle …
//!    │            5 s           150 s                 5 s          (the handler's own limits)
//!    └─ beyond 1,024 connections, or 256 of one address: connection_limiter.rs chooses one to close
//! ```
//!
//! Graceful shutdown: [`Closing`] → every response has `Connection: close`, so that clients open their
//! next connection to another replica → nothing more is accepted, idle connections are closed →
//! pending requests are answered → done.

mod activity;
mod connection_limiter;
mod rejections;
mod timeout_stream;
mod tls;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use self::activity::Activity;
use self::connection_limiter::ConnectionLimiter;
use self::rejections::{Rejection, RejectionCounter};
use self::timeout_stream::TimeoutStream;
pub use self::tls::{TlsVersion, tls};
use crate::metrics::{self, ConnectionRefusal};

/// Limits of the server; the defaults are for production, tests shorten them.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time. An API server keeps a handful; this leaves room for many API servers,
    /// and limits what other clients can occupy: at most 64 KiB of buffers each.
    pub connections: usize,
    /// Connections of one address at a time: a quarter of all, so that one client cannot make every connection busy.
    /// All API servers may have one address, that of a proxy or load balancer in front of the pods.
    pub connections_of_peer: usize,
    /// Duration of the TLS handshake: three round trips, and two retransmissions of a lost packet.
    pub handshake: Duration,
    /// Duration from the first byte of a request to the end of its head, which fits into one packet.
    pub head: Duration,
    /// Time between two requests. The API server closes idle connections after 90 s. The client must
    /// be the side that closes first, or its next request fails on a closed connection.
    pub idle: Duration,
    /// How long a response waits for a client that does not read.
    pub write: Duration,
    /// How long a connection is kept whose client may be about to send its first request, or to read why it is rejected.
    pub closing: Duration,
    /// Shutdown, first part: for this long responses have `Connection: close` before idle connections
    /// are closed.
    pub announced: Duration,
    /// Shutdown, second part: for this long pending requests are answered. A review takes 1 s at most.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1_024,
            connections_of_peer: 256,
            handshake: Duration::from_secs(5),
            head: Duration::from_secs(5),
            idle: Duration::from_secs(150),
            write: Duration::from_secs(10),
            closing: Duration::from_secs(1),
            announced: Duration::from_secs(5),
            drain: Duration::from_secs(5),
        }
    }
}

/// Limit of the buffers of a connection in bytes, and thereby of a request's head. Bodies are read in
/// parts.
const BUFFER_MAX: usize = 64 * 1024;

/// Pause after a failed accept: usually the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The address of a request's client, an extension of the request.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Starts the graceful shutdown of a server. Clones are for the same server.
pub type Closing = CancellationToken;

/// What all connections of a server share.
struct Server {
    acceptor: TlsAcceptor,
    router: Router,
    limits: Limits,
    http: http1::Builder,
    /// Whether responses have `Connection: close`.
    closing: AtomicBool,
    /// Closes idle connections.
    end: CancellationToken,
    rejections: RejectionCounter,
}

/// Serves until `closing` is cancelled and pending requests are answered. Dropping the future closes
/// every connection at once.
pub async fn serve(
    listener: TcpListener,
    tls: rustls::ServerConfig,
    router: Router,
    limits: Limits,
    closing: Closing,
) {
    let mut http = http1::Builder::new();
    // hyper's own limit for heads also closes idle connections: TimeoutStream has both limits.
    http.header_read_timeout(None).max_buf_size(BUFFER_MAX);
    let server = Arc::new(Server {
        acceptor: TlsAcceptor::from(Arc::new(tls)),
        router,
        limits,
        http,
        closing: AtomicBool::new(false),
        end: CancellationToken::new(),
        rejections: RejectionCounter::default(),
    });
    let mut connections = JoinSet::new();
    let announce_close = async {
        closing.cancelled().await;
        server.closing.store(true, Ordering::Relaxed);
        sleep(limits.announced).await;
    };
    tokio::select! {
        () = announce_close => {}
        () = accept_all(&server, &listener, &mut connections) => {}
    }
    drop(listener);
    server.end.cancel();
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(limits.drain, drained).await.is_err() {
        tracing::warn!("closed connections with pending requests: the drain time is over");
    }
}

/// Accepts connections for ever.
async fn accept_all(server: &Arc<Server>, listener: &TcpListener, connections: &mut JoinSet<()>) {
    let Limits {
        connections: max,
        connections_of_peer,
        ..
    } = server.limits;
    let limiter = ConnectionLimiter::new(max, connections_of_peer);
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
        let activity = Activity::default();
        // Close it at once: an API server that waited here would only lose time of its request's timeout.
        let Some((permit, has_evicted)) = limiter.admit(peer.ip(), &activity) else {
            metrics::connection_refused(ConnectionRefusal::Limit);
            continue;
        };
        if has_evicted {
            metrics::connection_refused(ConnectionRefusal::Displaced);
        }
        let server = server.clone();
        connections.spawn(async move {
            let ended = tokio::select! {
                ended = server.connection(stream, peer, activity) => ended,
                () = permit.evicted() => Ok(()),
            };
            if let Err(error) = ended {
                server.connection_failed(peer, &error);
            }
        });
    }
}

/// Why a connection failed; the cause is on the client's side or in the network.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("no TLS handshake in time")]
    HandshakeTimeout,
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
        activity: Activity,
    ) -> Result<(), ConnectionError> {
        stream.set_nodelay(true)?;
        let accepted = self.acceptor.accept(stream).into_fallible();
        let accepted = timeout(self.limits.handshake, accepted).await;
        let stream = match accepted.map_err(|_| ConnectionError::HandshakeTimeout)? {
            Ok(stream) => stream,
            Err((error, stream)) => {
                self.connection_failed(peer, &ConnectionError::Handshake(error));
                self.drain_after_alert(stream).await;
                return Ok(());
            }
        };
        let stream = TimeoutStream::new(stream, activity.clone(), self.limits);
        let service = service_fn(|request| self.answer(request, peer, &activity));
        let mut connection =
            std::pin::pin!(self.http.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = self.end.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        // hyper waits for the first request of a new connection, which may never come.
        let limit = if activity.is_unused() {
            self.limits.closing
        } else {
            self.limits.drain
        };
        match timeout(limit, connection).await {
            Ok(ended) => Ok(ended?),
            Err(_) => Ok(()),
        }
    }

    /// Keeps a rejected connection open until the client has read the TLS alert. Closing a socket with
    /// unread input sends RST, and the client would report a broken pipe instead of the certificate
    /// error.
    async fn drain_after_alert(&self, mut stream: TcpStream) {
        let rest = async {
            stream.shutdown().await?;
            let limit = u64::try_from(BUFFER_MAX).unwrap_or(u64::MAX);
            tokio::io::copy(&mut stream.take(limit), &mut tokio::io::sink()).await
        };
        if let Ok(Err(error)) = timeout(self.limits.closing, rest).await {
            tracing::debug!(%error, "cannot send the TLS alert to a rejected client");
        }
    }

    /// Logs and counts a connection that failed.
    fn connection_failed(&self, peer: SocketAddr, error: &ConnectionError) {
        tracing::debug!(%error, "a connection failed");
        let ConnectionError::Handshake(error) = error else {
            if matches!(error, ConnectionError::HandshakeTimeout) {
                metrics::connection_refused(ConnectionRefusal::Handshake);
            }
            return;
        };
        let Some((rejection, reason)) = Rejection::of(error) else {
            return metrics::connection_refused(ConnectionRefusal::Handshake);
        };
        metrics::connection_refused(ConnectionRefusal::Client);
        if let Some(refused) = self.rejections.count(rejection) {
            let peer = peer.ip();
            tracing::warn!(%peer, reason, refused, "refused clients by their certificate");
        }
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        peer: SocketAddr,
        activity: &Activity,
    ) -> Result<Response<axum::body::Body>, Infallible> {
        activity.request_started();
        request
            .extensions_mut()
            .insert(Peer(peer.ip().to_canonical()));
        let mut response = self
            .router
            .clone()
            .oneshot(request.map(axum::body::Body::new))
            .await?;
        activity.response_ready();
        if self.closing.load(Ordering::Relaxed) {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}
