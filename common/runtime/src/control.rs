//! What an administrator asks a running program: which one it is, and to tell more or less.
//!
//! ```text
//! GET /version    anybody
//! GET /loglevel   anybody
//! PUT /loglevel   the pod itself: kubectl port-forward, kubectl exec
//! ```
//!
//! The port is open to the pod network, for kubelet and Prometheus. Whoever could set `trace` from there
//! could fill disks and slow reviews, so a change has to come from loopback, to loopback: a proxy of a
//! service mesh has the first, too, and not the second.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{RequestExt as _, Router};
use serde_json::json;

use super::logging::{LogControl, LogFilter};

/// A filter is a line.
const BODY_MAX: usize = 1024;

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The pod itself.
    Here,
    /// Anywhere else.
    Elsewhere,
}

impl Origin {
    /// Of a connection between these addresses.
    pub(super) fn of(peer: SocketAddr, local: SocketAddr) -> Self {
        // A socket of both families shows an IPv4 address as a part of IPv6.
        let is_loopback = |address: SocketAddr| IpAddr::to_canonical(&address.ip()).is_loopback();
        if is_loopback(peer) && is_loopback(local) {
            Self::Here
        } else {
            Self::Elsewhere
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
    // The image's build says it; who builds at home knows what he builds.
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
    if origin == Origin::Elsewhere {
        let why = "the log level is changed from the pod itself: use kubectl port-forward";
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
    fn only_loopback_to_loopback_is_here() {
        let origin =
            |peer: &str, local: &str| Origin::of(peer.parse().unwrap(), local.parse().unwrap());
        for address in [
            "127.0.0.1:9",
            "[::1]:9",
            "[::ffff:127.0.0.1]:9",
            "127.0.0.6:9",
        ] {
            assert_eq!(origin(address, "127.0.0.1:1"), Origin::Here, "{address}");
            // A mesh's proxy hands over what came to the pod's address.
            assert_eq!(origin(address, "10.1.2.3:1"), Origin::Elsewhere);
            assert_eq!(origin("10.1.2.3:1", address), Origin::Elsewhere);
        }
        assert_eq!(origin("[::ffff:10.0.0.1]:9", "[::1]:1"), Origin::Elsewhere);
    }
}
