//! The plain HTTP side door: `/healthz`, `/readyz`, `/metrics`, and what [`control`](super::control) has.
//!
//! Kubelet and Prometheus ask here. Health answers 200, or 500 with what is missing in the body.

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

/// Bounds of every histogram that has none of its own, in seconds: the aims of a review (0.5, 1 and
/// 5 ms) and the limits around it (25, 100, 500 ms, 1 s) are bounds, so that a quantile is exact there.
pub const LATENCY_BUCKETS: [f64; 14] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

/// Kubelet, two scrapers, a curious person: more at once is no honest use.
const MAX_CONNECTIONS: usize = 32;

/// An asker who needs longer for the head of a request holds a connection for nothing. It also ends
/// idle connections, which are cheap to open anew here.
const HEADER_LIMIT: Duration = Duration::from_secs(10);

/// The distance between two passes that fold recorded samples into buckets; without them memory
/// grows with every observation until the next scrape.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The pause after a failed accept, which means that the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes the Prometheus recorder and installs it for the whole process; once, before any metric.
///
/// `buckets` are the histograms whose observations are no latencies of a request.
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

/// Folds recorded samples into buckets for ever.
pub async fn upkeep(metrics: PrometheusHandle) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}

/// Serves `router` for ever; dropping the future closes every connection.
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
        // Beyond the limit the connection is closed at once: an answer late is no answer to a probe.
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
                tracing::debug!(%error, "an admin connection ended badly");
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
    async fn health_readiness_and_metrics_over_a_socket() {
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
    async fn the_log_level_is_changed_from_here_and_read_from_everywhere() {
        let log = crate::logging::LogControl::detached();
        let router = crate::control::control_router("program", log);
        let far = router.clone().layer(Extension(Origin::Elsewhere));
        let mut tasks = JoinSet::new();
        for (router, status, text) in [
            (router, 500, "the log is not this program's to change\n"),
            (
                far,
                403,
                "the log level is changed from the pod itself: use kubectl port-forward\n",
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
    async fn idle_connections_beyond_the_limit_do_not_lock_the_door_for_ever() {
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
        let freed = async {
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
        tokio::time::timeout(Duration::from_secs(10), freed)
            .await
            .unwrap();
    }
}
