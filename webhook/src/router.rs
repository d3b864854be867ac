//! The paths: HTTP on one side, reviews on the other.
//!
//! ```text
//! POST /mutate   [/missing-networks/deny | /missing-networks/warn]
//! POST /validate [/missing-networks/deny | /missing-networks/warn]
//! ```
//!
//! A namespace decides by its label which entry of the webhook configurations answers for it, and the
//! entry which path is asked.

use std::sync::Arc;
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
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::Instant;

use crate::answer::Answer;
use crate::body::{LARGE, Whole};
use crate::handler::{Reviewer, Time, Way};
use crate::metrics::{self, About, Outcome};
use crate::report;
use crate::review::{Request, Undecodable};

/// When the API server does not say how long it waits: its own default. It never waits for more
/// than 30 s, and nobody here needs more than this.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// What the way back may take; an answer that comes later is none.
const WAY_BACK: Duration = Duration::from_millis(200);
/// For a review that is here whole, its live reads and its wait for others included: users wait at a
/// prompt.
const REVIEW_LIMIT: Duration = Duration::from_secs(1);

/// Every path.
pub fn router(reviewer: &Arc<Reviewer>) -> Router {
    let missing_networks = [
        ("", reviewer.settings.missing_networks),
        ("/missing-networks/deny", MissingNetworks::Deny),
        ("/missing-networks/warn", MissingNetworks::Warn),
    ];
    let mut router = Router::new();
    for (path, stage) in [("/mutate", Stage::Mutate), ("/validate", Stage::Validate)] {
        for (below, missing_networks) in missing_networks {
            let settings = Settings {
                missing_networks,
                ..reviewer.settings.clone()
            };
            let (reviewer, way) = (reviewer.clone(), Arc::new(Way { stage, settings }));
            let serve = async move |request| serve(reviewer, way, request).await;
            router = router.route(&format!("{path}{below}"), post(serve));
        }
    }
    router
        .fallback(async || {
            refuse(
                StatusCode::NOT_FOUND,
                "reviews are taken at /mutate and /validate",
            )
        })
        .method_not_allowed_fallback(async || {
            refuse(
                StatusCode::METHOD_NOT_ALLOWED,
                "reviews are taken with POST",
            )
        })
}

async fn serve(reviewer: Arc<Reviewer>, way: Arc<Way>, request: HttpRequest) -> Response {
    let start = Instant::now();
    let is_of_use = start + patience(request.uri());
    if !is_json(request.headers()) {
        let text = "send an AdmissionReview with Content-Type: application/json";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    if request.headers().contains_key(header::CONTENT_ENCODING) {
        let text = "send the AdmissionReview as it is, without Content-Encoding";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    let body = match reviewer.budget.read(request.into_body()).await {
        Ok(body) => body,
        Err(error) => return refuse(error.status(), &error.to_string()),
    };
    let time = Time {
        start,
        deadline: is_of_use.min(Instant::now() + REVIEW_LIMIT),
    };
    if body.bytes.len() < LARGE {
        let answer = reviewed(&reviewer, &way, &body, time).await;
        drop(body);
        // Reviews that came together are judged together before any answer leaves: their clients, woken
        // one after another, would else take the processor from those that are still to be judged. An
        // answer that waits has no body any more, whose share of the memory others may need.
        yield_now().await;
        return answer;
    }
    // If the turn does not come in time, nothing but the envelope will be decoded.
    let turn = reviewer.budget.turn(time.deadline).await;
    // What takes its time to decode must not keep a thread that others are served by.
    let runtime = Handle::current();
    let review = spawn_blocking(move || {
        let _turn = turn;
        runtime.block_on(reviewed(&reviewer, &way, &body, time))
    });
    review.await.unwrap_or_else(|_| {
        let text = "the webhook failed on this review";
        refuse(StatusCode::INTERNAL_SERVER_ERROR, text)
    })
}

async fn reviewed(reviewer: &Reviewer, way: &Way, body: &Whole, time: Time) -> Response {
    match Request::decode(&body.bytes) {
        Ok(review) => json(&reviewer.answer(way, &review, time).await),
        Err(Undecodable::Answer(answer)) => {
            report::unread(way.stage);
            let about = About::unknown(way.stage);
            metrics::observe(about, Outcome::Error, time.start.elapsed());
            json(&answer)
        }
        Err(Undecodable::NoUid(reason)) => refuse(StatusCode::BAD_REQUEST, &reason),
    }
}

/// How long the API server waits for an answer to leave here, as it hands it over: `?timeout=3s`.
/// Nothing else is read from the query, and nothing in it is worth a refusal.
fn patience(uri: &Uri) -> Duration {
    let pairs = uri.query().unwrap_or_default().split('&');
    let timeout = pairs
        .filter_map(|pair| pair.strip_prefix("timeout="))
        .find_map(|text| text.parse::<GoDuration>().ok())
        .map_or(TIMEOUT_DEFAULT, |timeout| timeout.0);
    timeout.min(TIMEOUT_DEFAULT).saturating_sub(WAY_BACK)
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media_type = value.and_then(|value| value.split(';').next());
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

/// An HTTP error: there is no uid to answer to.
fn refuse(status: StatusCode, text: &str) -> Response {
    metrics::http_error(status);
    (status, format!("{text}\n")).into_response()
}

fn json(answer: &Answer) -> Response {
    match answer.text() {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_says_how_long_it_waits() {
        for (uri, millis) in [
            ("/mutate?timeout=3s", 2_800),
            ("/mutate?a=b&timeout=1.5s&timeout=9s", 1_300),
            // Nobody needs longer.
            ("/mutate?timeout=30s", 9_800),
            ("/mutate?timeout=100ms", 0),
            // What cannot be read is as absent.
            ("/mutate", 9_800),
            ("/mutate?timeout=soon", 9_800),
            ("/mutate?timeout=-1s", 9_800),
        ] {
            let expected = Duration::from_millis(millis);
            assert_eq!(patience(&uri.parse().unwrap()), expected, "{uri}");
        }
    }
}
