//! The plain HTTP server for kubelet, Prometheus and administrators: `/healthz`, `/readyz`, `/metrics`
//! and the endpoints of [`control`](super::control).
//!
//! The health endpoints answer 200, or 500 with the conditions that are not met in the body.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
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
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::checks::Checks;
use super::control::Origin;

/// Default bounds of histograms, in seconds. They include the targets of a review (0.5, 1 and 5 ms) and
/// the limits around it (25, 100, 500 ms, 1 s), so that quantiles are exact at these values.
pub const LATENCY_BUCKETS: [f64; 14] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

/// Connections at a time: kubelet, two scrapers and an administrator need a handful.
const MAX_CONNECTIONS: usize = 32;

/// Time limit for the head of a request. It also closes idle connections: without TLS, opening another
/// one is cheap.
const HEADER_LIMIT: Duration = Duration::from_secs(10);

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
        .header_read_timeout(HEADER_LIMIT);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let stream = match accept(&listener).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Beyond the limit, close the connection at once: a probe that waits fails anyway.
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            continue;
        };
        let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
            continue;
        };
        let origin = Extension(Origin::of(peer, local));
        let service = TowerToHyperService::new(router.clone().layer(origin));
        let connection = http.serve_connection(TokioIo::new(stream), service);
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an admin connection failed");
            }
            drop(slot);
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
                "the log level can only be changed through kubectl port-forward or kubectl exec\n",
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

    #[tokio::test]
    async fn connections_beyond_the_limit_are_closed_until_others_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(
            listener,
            health_router(Checks::default(), Checks::default()),
        ));
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut refused = TcpStream::connect(address).await.unwrap();
        assert_eq!(
            refused.read(&mut [0; 1]).await.unwrap(),
            0,
            "closed at once"
        );
        drop(idle);
        let served_again = async {
            loop {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
                let mut answer = Vec::new();
                if stream.write_all(request).await.is_ok()
                    && stream.read_to_end(&mut answer).await.is_ok()
                    && answer.starts_with(b"HTTP/1.1 200")
                {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), served_again)
            .await
            .unwrap();
    }
}
