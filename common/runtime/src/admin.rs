//! The plain HTTP server for kubelet, Prometheus and administrators: `/healthz`, `/readyz`, `/metrics`
//! and the endpoints of [`control`](super::control).
//!
//! The health endpoints answer 200, or 500 with the conditions that are not met in the body.
//!
//! Any client of the pod network reaches this port, and a probe must be answered whatever the others do:
//!
//! ```text
//!  accept ──▶ slot ──▶ head ──▶ response ──▶ closed
//!              │       5 s    └─ 10 s from the accept ─┘
//!              └─ none free: connection_slots.rs closes one for it
//! ```
//!
//! A connection carries one request: a client that pipelines and does not read occupies nothing but its slot.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
pub use metrics_exporter_prometheus::PrometheusHandle;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::checks::Checks;
use super::connection_slots::ConnectionSlots;
use super::control::Origin;

/// Default bounds of histograms, in seconds. They include the targets of a review (0.5, 1 and 5 ms) and
/// the limits around it (25, 100, 500 ms, 1 s), so that quantiles are exact at these values.
pub const LATENCY_BUCKETS: [f64; 14] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

/// Connections at a time: kubelet, two scrapers and an administrator need a handful.
const MAX_CONNECTIONS: usize = 32;

/// Time limit for the head of a request: it fits into one packet.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of a connection, from the accept to the last byte of the response. It also bounds the time for reading a
/// body and for writing the response. Prometheus gives up a scrape after ten seconds, kubelet a probe after one.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);

/// Time between two runs of the recorder's upkeep, which moves recorded samples into buckets. Without it,
/// memory grows with every observation until the next scrape.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Pause after a failed accept: usually the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Installs the Prometheus recorder of the process. Call it once, before any metric is recorded.
///
/// `buckets` are the bounds of histograms that do not use [`LATENCY_BUCKETS`].
pub fn install_recorder(buckets: &[(&str, &[f64])]) -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new().set_buckets(&LATENCY_BUCKETS)?;
    for (name, bounds) in buckets {
        builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), bounds)?;
    }
    builder.install_recorder()
}

/// `/healthz` and `/readyz`.
pub fn health_router(health: Checks, ready: Checks) -> Router {
    Router::new()
        .route("/healthz", get(async move || verdict(&health)))
        .route("/readyz", get(async move || verdict(&ready)))
}

/// `/metrics`.
pub fn metrics_router(metrics: PrometheusHandle) -> Router {
    const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    Router::new().route(
        "/metrics",
        get(async move || ([(header::CONTENT_TYPE, TEXT_FORMAT)], metrics.render())),
    )
}

fn verdict(checks: &Checks) -> Response {
    match checks.verdict() {
        Ok(()) => "ok\n".into_response(),
        Err(missing) => (StatusCode::INTERNAL_SERVER_ERROR, missing).into_response(),
    }
}

/// Runs the recorder's upkeep for ever.
pub async fn upkeep(metrics: PrometheusHandle) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}

/// Serves `router` for ever. Dropping the future closes every connection.
pub async fn serve(listener: TcpListener, router: Router) -> Result<(), Infallible> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .keep_alive(false);
    let mut slots = ConnectionSlots::new(MAX_CONNECTIONS);
    loop {
        let stream = match accept(&listener).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
            continue;
        };
        let origin = Extension(Origin::of(peer, local));
        let service = TowerToHyperService::new(router.clone().layer(origin));
        let connection = http.serve_connection(TokioIo::new(stream), service);
        slots.spawn(peer.ip(), async move {
            match timeout(CONNECTION_LIMIT, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an admin connection failed"),
                Err(_) => tracing::debug!("closed an admin connection at its time limit"),
            }
        });
    }
}

async fn accept(listener: &TcpListener) -> io::Result<tokio::net::TcpStream> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::task::JoinSet;

    async fn ask(address: std::net::SocketAddr, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_owned(),
        )
    }

    #[tokio::test]
    async fn health_readiness_and_metrics_are_served_over_http() {
        let (health, ready) = (Checks::default(), Checks::default());
        let synced = ready.register("catalog");
        let recorder = PrometheusBuilder::new()
            .set_buckets(&LATENCY_BUCKETS)
            .unwrap()
            .build_recorder();
        let router = health_router(health, ready).merge(metrics_router(recorder.handle()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, router));

        assert_eq!(ask(address, "/healthz").await, (200, "ok\n".into()));
        assert_eq!(
            ask(address, "/readyz").await,
            (500, "catalog: not yet\n".into())
        );
        synced.met();
        assert_eq!(ask(address, "/readyz").await, (200, "ok\n".into()));
        assert_eq!(ask(address, "/metrics").await.0, 200);
        assert_eq!(ask(address, "/").await.0, 404);
    }

    #[tokio::test]
    async fn the_log_level_is_read_by_every_client_and_changed_from_loopback_only() {
        let log = crate::logging::LogControl::detached();
        let router = crate::control::control_router("program", log);
        let remote = router.clone().layer(Extension(Origin::Remote));
        let mut tasks = JoinSet::new();
        for (router, status, text) in [
            (
                router,
                500,
                "the logger of this process was installed by another component\n",
            ),
            (
                remote,
                403,
                "the log level can only be changed through kubectl port-forward\n",
            ),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tasks.spawn(serve(listener, router));
            assert_eq!(ask(address, "/loglevel").await, (200, "info\n".into()));
            let mut stream = TcpStream::connect(address).await.unwrap();
            let put = "PUT /loglevel HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                       content-length: 5\r\n\r\ndebug";
            stream.write_all(put.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
            assert!(answer.ends_with(&format!("\r\n\r\n{text}")), "{answer}");
        }
    }

    /// A router with a response that no socket buffer holds.
    fn endless() -> Router {
        let large = axum::body::Bytes::from(vec![b'x'; 16 * 1024 * 1024]);
        health_router(Checks::default(), Checks::default())
            .route("/large", get(async move || large))
    }

    async fn serving(router: Router) -> (std::net::SocketAddr, JoinSet<Result<(), Infallible>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, router));
        (address, tasks)
    }

    /// Limit of two probes, on a busy machine too. A connection that is not displaced ends later, at [`CONNECTION_LIMIT`].
    const PROBED_WITHIN: Duration = Duration::from_secs(8);

    /// Checks that both probes are answered before another connection ends by itself.
    async fn assert_probed(address: std::net::SocketAddr) {
        let probes = async {
            for path in ["/healthz", "/readyz"] {
                assert_eq!(ask(address, path).await, (200, "ok\n".to_owned()));
            }
        };
        timeout(PROBED_WITHIN, probes).await.unwrap();
    }

    #[tokio::test]
    async fn probes_are_answered_beside_clients_that_pipeline_and_do_not_read() {
        let (address, _tasks) = serving(endless()).await;
        let mut stuck = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let requests = "GET /large HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
            stream.write_all(requests.as_bytes()).await.unwrap();
            stuck.push(stream);
        }
        assert_probed(address).await;
    }

    #[tokio::test]
    async fn probes_are_answered_beside_a_thousand_idle_connections() {
        let (address, _tasks) = serving(endless()).await;
        let mut idle = Vec::new();
        for _ in 0..1_000 {
            idle.push(TcpStream::connect(address).await.unwrap());
            if idle.len() % 100 == 0 {
                assert_probed(address).await;
            }
        }
    }

    #[tokio::test]
    async fn a_connection_carries_one_request() {
        let (address, _tasks) = serving(endless()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let requests = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2);
        stream.write_all(requests.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).await.unwrap();
        let answer = std::str::from_utf8(&answer[..read]).unwrap();
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_head_ends_at_its_limit_and_a_slow_body_with_its_connection() {
        let log = crate::logging::LogControl::detached();
        let (address, _tasks) = serving(crate::control::control_router("program", log)).await;
        for (sent, limit) in [
            ("GET /healthz HT", HEAD_LIMIT),
            (
                "PUT /loglevel HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nd",
                CONNECTION_LIMIT,
            ),
        ] {
            let start = tokio::time::Instant::now();
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            // The end of the stream, or a reset: there was unread input.
            let _ended = stream.read_to_end(&mut Vec::new()).await;
            let elapsed = start.elapsed();
            assert!(
                (limit..limit + Duration::from_secs(1)).contains(&elapsed),
                "{sent:?}: {elapsed:?}"
            );
        }
    }
}
