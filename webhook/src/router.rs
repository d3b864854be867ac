//! The HTTP endpoints: from an HTTP request to a review and back.
//!
//! ```text
//! POST /mutate   [/missing-networks/deny | /missing-networks/warn]
//! POST /validate [/missing-networks/deny | /missing-networks/warn]
//! ```
//!
//! The webhook configurations have one entry per path. The label of a namespace selects the entry, and
//! thereby the path that the API server calls.

use std::future::poll_fn;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use common::MissingNetworks;
use common::admission::{Settings, Stage};
use runtime::settings::GoDuration;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::body::{BufferedBody, LARGE_BODY};
use crate::handler::{Endpoint, Handler, Timing};
use crate::metrics::{self, Outcome, ReviewLabels};
use crate::review::{DecodeError, Failure, Request, Response as ReviewResponse};
use crate::review_log;
use crate::server::Peer;

/// The API server's default timeout, used if the request names none. Longer timeouts are cut to this
/// one: [`REVIEW_LIMIT`] is shorter anyway.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Reserved for sending the response before the API server's deadline.
const RESPONSE_MARGIN: Duration = Duration::from_millis(200);
/// Time limit of a review from the last byte of its body, including live reads and the wait for other
/// large bodies. The user waits for the answer.
const REVIEW_LIMIT: Duration = Duration::from_secs(1);

/// Initial capacity of a response in bytes; a response without a patch fits.
const RESPONSE_CAPACITY: usize = 1024;

/// The endpoints of `handler`.
pub fn router(handler: &Arc<Handler>) -> Router {
    let missing_networks = [
        ("", handler.settings.missing_networks),
        ("/missing-networks/deny", MissingNetworks::Deny),
        ("/missing-networks/warn", MissingNetworks::Warn),
    ];
    let mut router = Router::new();
    for (path, stage) in [("/mutate", Stage::Mutate), ("/validate", Stage::Validate)] {
        for (suffix, missing_networks) in missing_networks {
            let settings = Settings {
                missing_networks,
                ..handler.settings.clone()
            };
            let endpoint = Arc::new(Endpoint { stage, settings });
            let handler = handler.clone();
            let serve = async move |request| serve(handler, endpoint, request).await;
            router = router.route(&format!("{path}{suffix}"), post(serve));
        }
    }
    router
        .fallback(async || {
            refuse(
                StatusCode::NOT_FOUND,
                "send reviews to /mutate or /validate",
            )
        })
        .method_not_allowed_fallback(async || {
            refuse(StatusCode::METHOD_NOT_ALLOWED, "send reviews with POST")
        })
}

async fn serve(handler: Arc<Handler>, endpoint: Arc<Endpoint>, request: HttpRequest) -> Response {
    let start = Instant::now();
    let deadline = start + timeout(request.uri());
    if !is_json(request.headers()) {
        let text = "send an AdmissionReview with Content-Type: application/json";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    if request.headers().contains_key(header::CONTENT_ENCODING) {
        let text = "send the AdmissionReview without Content-Encoding";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    let peer = request.extensions().get::<Peer>().map(|Peer(peer)| *peer);
    let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let body = match handler.budget.read(peer, request.into_body()).await {
        Ok(body) => body,
        Err(error) => return refuse(error.status(), &error.to_string()),
    };
    let timing = Timing {
        start,
        deadline: deadline.min(Instant::now() + REVIEW_LIMIT),
    };
    if body.bytes.len() < LARGE_BODY {
        let response = review(&handler, &endpoint, &body, timing).await;
        // Release the request body before yielding: a burst of large reviews exhausted the byte budget
        // and was answered 429.
        drop(body);
        // The reviews whose requests have been received are validated before any response is sent. Otherwise each
        // client that gets its response takes processor time from the reviews that still wait.
        run_ready_tasks().await;
        return response;
    }
    // Without permits the deadline is over: the handler answers without decoding the object.
    let permits = handler.budget.large_body_permits(&body, timing.deadline);
    let permits = permits.await;
    // Decoding a large body takes long: it must not block a thread that serves other connections.
    let runtime = Handle::current();
    let response = spawn_blocking(move || {
        let _permits = permits;
        runtime.block_on(review(&handler, &endpoint, &body, timing))
    });
    response.await.unwrap_or_else(|_| {
        let text = "the webhook failed on this review";
        refuse(StatusCode::INTERNAL_SERVER_ERROR, text)
    })
}

/// Lets the tasks run that are ready. `yield_now` of tokio asks the kernel for further events first, which takes a third of the
/// processor time of a review (`tests/lab bench`, one client).
async fn run_ready_tasks() {
    let mut is_done = false;
    poll_fn(|context| {
        if mem::replace(&mut is_done, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn review(
    handler: &Handler,
    endpoint: &Endpoint,
    body: &BufferedBody,
    timing: Timing,
) -> Response {
    match Request::decode(&body.bytes) {
        Ok(review) => json(&handler.handle(endpoint, &review, timing).await),
        Err(DecodeError::Invalid {
            uid,
            api_version,
            reason,
        }) => {
            review_log::invalid(endpoint.stage);
            let labels = ReviewLabels::unknown(endpoint.stage);
            metrics::review(labels, Outcome::Error, timing.start.elapsed());
            let failure = Failure::Undecodable(reason);
            json(&ReviewResponse::error(uid, &failure).in_version(api_version))
        }
        Err(DecodeError::NoUid(reason)) => refuse(StatusCode::BAD_REQUEST, &reason),
    }
}

/// How long the response may take: the API server's timeout, which it passes as `?timeout=3s`, less the
/// time for sending the response. Anything else in the query is ignored.
fn timeout(uri: &Uri) -> Duration {
    let pairs = uri.query().unwrap_or_default().split('&');
    let timeout = pairs
        .filter_map(|pair| pair.strip_prefix("timeout="))
        .find_map(|text| text.parse::<GoDuration>().ok())
        .map_or(TIMEOUT_DEFAULT, |timeout| timeout.0);
    timeout.min(TIMEOUT_DEFAULT).saturating_sub(RESPONSE_MARGIN)
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media_type = value.and_then(|value| value.split(';').next());
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

/// An HTTP error, for a request without a uid that a review could answer.
fn refuse(status: StatusCode, text: &str) -> Response {
    metrics::http_error(status);
    (status, format!("{text}\n")).into_response()
}

fn json(response: &ReviewResponse) -> Response {
    let mut body = Vec::with_capacity(RESPONSE_CAPACITY);
    match serde_json::to_writer(&mut body, response) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_the_query_parameter_less_the_response_margin() {
        for (uri, millis) in [
            ("/mutate?timeout=3s", 2_800),
            ("/mutate?a=b&timeout=1.5s&timeout=9s", 1_300),
            // Longer than the default.
            ("/mutate?timeout=30s", 9_800),
            ("/mutate?timeout=100ms", 0),
            // Absent or invalid.
            ("/mutate", 9_800),
            ("/mutate?timeout=soon", 9_800),
            ("/mutate?timeout=-1s", 9_800),
        ] {
            let expected = Duration::from_millis(millis);
            assert_eq!(timeout(&uri.parse().unwrap()), expected, "{uri}");
        }
    }
}
