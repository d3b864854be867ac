//! Endpoints for administrators: the version of the program and its log level.
//!
//! ```text
//! GET /version    every client
//! GET /loglevel   every client
//! PUT /loglevel   loopback clients only: kubectl port-forward
//! ```
//!
//! The port is open to the pod network, for kubelet and Prometheus. A client that could set `trace` from
//! there could fill disks and slow reviews. So a change must come from a loopback address and go to one:
//! the sidecar proxy of a service mesh also connects from loopback, but to the address of the pod.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{RequestExt as _, Router};
use serde_json::json;

use super::logging::{LogControl, LogFilter};

/// Size limit of the body of a PUT, in bytes: a filter is one line.
const BODY_MAX: usize = 1024;

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Both addresses of the connection are loopback addresses.
    Loopback,
    /// Any other connection.
    Remote,
}

impl Origin {
    /// The origin of a connection between these addresses.
    pub(super) fn of(peer: SocketAddr, local: SocketAddr) -> Self {
        // A dual-stack socket reports an IPv4 address as an IPv4-mapped IPv6 address.
        let is_loopback = |address: SocketAddr| IpAddr::to_canonical(&address.ip()).is_loopback();
        if is_loopback(peer) && is_loopback(local) {
            Self::Loopback
        } else {
            Self::Remote
        }
    }
}

/// `/version` of this program, and `/loglevel`.
pub fn control_router(program: &'static str, log: LogControl) -> Router {
    Router::new()
        .route("/loglevel", get(shown).put(changed))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(log)
        .route("/version", get(async move || version(program)))
}

fn version(program: &'static str) -> Response {
    // Set by the build of the image; a local build has none.
    let commit = option_env!("GIT_COMMIT").filter(|commit| !commit.is_empty());
    let version = json!({
        "program": program,
        "version": env!("CARGO_PKG_VERSION"),
        "gitCommit": commit,
        "rustVersion": env!("RUST_VERSION"),
    });
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, format!("{version}\n")).into_response()
}

async fn shown(State(log): State<LogControl>) -> String {
    format!("{}\n", log.filter())
}

async fn changed(
    State(log): State<LogControl>,
    Extension(origin): Extension<Origin>,
    request: Request,
) -> Response {
    let refused = |status: StatusCode, why: String| (status, format!("{why}\n")).into_response();
    if origin == Origin::Remote {
        let why = "the log level can only be changed through kubectl port-forward";
        return refused(StatusCode::FORBIDDEN, why.to_owned());
    }
    let text = match request.extract::<String, _>().await {
        Ok(text) => text,
        Err(rejection) => return rejection.into_response(),
    };
    let filter = match text.trim().parse::<LogFilter>() {
        Ok(filter) => filter,
        Err(error) => return refused(StatusCode::BAD_REQUEST, error.to_string()),
    };
    match log.change(filter) {
        Ok(()) => shown(State(log)).await.into_response(),
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_between_loopback_addresses_is_loopback() {
        let origin =
            |peer: &str, local: &str| Origin::of(peer.parse().unwrap(), local.parse().unwrap());
        for address in [
            "127.0.0.1:9",
            "[::1]:9",
            "[::ffff:127.0.0.1]:9",
            "127.0.0.6:9",
        ] {
            assert_eq!(
                origin(address, "127.0.0.1:1"),
                Origin::Loopback,
                "{address}"
            );
            // A connection through the sidecar proxy of a service mesh.
            assert_eq!(origin(address, "10.1.2.3:1"), Origin::Remote);
            assert_eq!(origin("10.1.2.3:1", address), Origin::Remote);
        }
        assert_eq!(origin("[::ffff:10.0.0.1]:9", "[::1]:1"), Origin::Remote);
    }
}
