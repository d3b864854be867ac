//! The way of a review, top to bottom.
//!
//! ```text
//! body ▶ envelope (uid) ▶ a matter of rules? ▶ judge ─ misses? ▶ read them live ─┐ ▶ answer
//!                                                ▲────────── once more ──────────┘
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use common::MissingNetworks;
use common::admission::{self, ObjectKind, Settings, Stage, Verdict};
use common::runtime::settings::GoDuration;
use common::violation::Reference;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::body::Budget;
use crate::catalog::{Cache, Overlay};
use crate::lookup::{Lookup, find_all};
use crate::metrics::{self, Outcome};
use crate::review::{Answer, Failure, Operation, Request, Undecodable};

/// When the API server does not say how long it waits: its own default. It never waits for more
/// than 30 s, and nobody here needs more than this.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// What the way back may take; an answer that comes later is none.
const WAY_BACK: Duration = Duration::from_millis(200);
/// For everything but reading the body: users wait at a prompt.
const REVIEW_LIMIT: Duration = Duration::from_secs(1);
/// Judgements of one review: what a first live read finds may name something else that is missed
/// (a template and its class), and that is the end of it.
const ROUNDS_MAX: usize = 3;

/// What every review shares.
pub struct Reviewer {
    /// What the rules may ask.
    pub cache: Arc<Cache>,
    /// Where misses are looked up.
    pub lookup: Box<dyn Lookup>,
    /// What an administrator decided.
    pub settings: Settings,
    /// The memory of bodies.
    pub budget: Budget,
}

impl std::fmt::Debug for Reviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewer")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// One of the paths: what it asks for, and what it decides.
struct Way {
    stage: Stage,
    settings: Settings,
}

/// `/mutate` and `/validate`, and below both what a namespace decides for itself: its label picks the
/// entry of the webhook configurations, and the entry the path.
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
            let serve = async move |request| reviewer.serve(&way, request).await;
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

/// Until when the API server waits, as it hands it over: `?timeout=3s`. Nothing else is read from
/// the query, and nothing in it is worth a refusal.
fn deadline(uri: &Uri, start: Instant) -> Instant {
    let pairs = uri.query().unwrap_or_default().split('&');
    let timeout = pairs
        .filter_map(|pair| pair.strip_prefix("timeout="))
        .find_map(|text| text.parse::<GoDuration>().ok())
        .map_or(TIMEOUT_DEFAULT, |timeout| timeout.0);
    start + timeout.min(TIMEOUT_DEFAULT).saturating_sub(WAY_BACK)
}

impl Reviewer {
    async fn serve(&self, way: &Way, request: HttpRequest) -> Response {
        let start = Instant::now();
        let deadline = deadline(request.uri(), start);
        if !is_json(request.headers()) {
            let text = "send an AdmissionReview with Content-Type: application/json";
            return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
        }
        let body = match self.budget.read(request.into_body()).await {
            Ok(body) => body,
            Err(error) => return refuse(error.status(), &error.to_string()),
        };
        // When it does not come in time, the answer is that of a deadline that is over.
        let _turn = self.budget.turn(body.bytes.len(), deadline).await;
        match Request::decode(&body.bytes) {
            Ok(review) => json(&self.answer(way, &review, start, deadline).await),
            Err(Undecodable::Answer(answer)) => {
                metrics::observe(
                    label(way.stage),
                    "unknown",
                    "other",
                    Outcome::Error,
                    start.elapsed(),
                );
                json(&answer)
            }
            Err(Undecodable::NoUid(reason)) => refuse(StatusCode::BAD_REQUEST, &reason),
        }
    }

    /// Answers a review. From here on everything carries its uid.
    async fn answer(
        &self,
        way: &Way,
        review: &Request<'_>,
        start: Instant,
        deadline: Instant,
    ) -> Answer {
        let kind = object_kind(review);
        let (answer, outcome) = match kind {
            Some(kind) if is_matter_of_rules(review) => {
                self.judged(way, kind, review, deadline).await
            }
            Some(_) => (Answer::allow(review), Outcome::Passed),
            None => {
                let kind = &review.kind.kind;
                let warning =
                    format!("machine-webhook was asked about a {kind}, for which it has no rules");
                (Answer::allow_with_warning(review, warning), Outcome::Passed)
            }
        };
        metrics::observe(
            label(way.stage),
            review.operation.label(),
            kind.map_or("other", kind_label),
            outcome,
            start.elapsed(),
        );
        answer
    }

    async fn judged(
        &self,
        way: &Way,
        kind: ObjectKind,
        review: &Request<'_>,
        deadline: Instant,
    ) -> (Answer, Outcome) {
        let error = |failure, message: &str| {
            (
                Answer::error(review.uid.clone().into_owned(), failure, message.to_owned()),
                Outcome::Error,
            )
        };
        if Instant::now() >= deadline {
            return error(
                Failure::Timeout,
                "no time was left for the review; try again",
            );
        }
        let Some(object) = review.object else {
            return error(Failure::BadRequest, "the review has no object");
        };
        let head = Head::of(object.get());
        if head.deletion_timestamp.is_some() {
            // What is being deleted may go, whatever it says.
            return (Answer::allow(review), Outcome::Passed);
        }
        if !self.cache.is_complete() {
            // What is not known yet must not be told to users as missing.
            return error(
                Failure::Starting,
                "the webhook has not read the cluster yet; try again",
            );
        }
        let request = admission::Request {
            kind,
            stage: way.stage,
            namespace: review.namespace.as_deref().unwrap_or_default(),
            object: object.get(),
            old: review
                .old_object
                .filter(|_| review.operation == Operation::Update)
                .map(RawValue::get),
        };
        let lookups_until = deadline.min(Instant::now() + REVIEW_LIMIT);
        let Some(verdict) = self.judge(way, &request, lookups_until).await else {
            return error(
                Failure::Internal,
                "the webhook failed on this object; its log says where",
            );
        };
        let name = review.name.as_deref().filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| head.name());
        let answer = Answer::verdict(review, name, &verdict.findings, verdict.block.as_ref());
        let outcome = match (answer.allowed(), answer.patches()) {
            (false, _) => Outcome::Denied,
            (true, true) => Outcome::Patched,
            (true, false) => Outcome::Allowed,
        };
        if outcome == Outcome::Denied {
            metrics::rejected(&verdict.findings);
        }
        (answer, outcome)
    }

    /// Judges from the cache; what it does not have is read once, and the object judged again.
    /// `None` when the core panicked, which ends this review and no other.
    async fn judge(
        &self,
        way: &Way,
        request: &admission::Request<'_>,
        until: Instant,
    ) -> Option<Verdict> {
        let mut overlay = Overlay::new(&self.cache);
        let mut asked: Vec<Reference> = Vec::new();
        for _ in 1..ROUNDS_MAX {
            let verdict = guarded(way, request, &overlay)?;
            let mut misses = verdict.findings.misses.clone();
            misses.sort();
            misses.dedup();
            misses.retain(|miss| !asked.contains(miss));
            if misses.is_empty() || Instant::now() >= until {
                return Some(verdict);
            }
            let found = find_all(self.lookup.as_ref(), request.namespace, &misses, until).await;
            if found.is_empty() {
                return Some(verdict);
            }
            overlay.extend(found);
            asked.append(&mut misses);
        }
        guarded(way, request, &overlay)
    }
}

fn guarded(way: &Way, request: &admission::Request<'_>, overlay: &Overlay<'_>) -> Option<Verdict> {
    // The core is pure: nothing that it may leave half done outlives the call.
    let judge = AssertUnwindSafe(|| admission::review(request, overlay, &way.settings));
    catch_unwind(judge).ok()
}

/// Deletions, connections and parts of objects are nobody's matter here.
fn is_matter_of_rules(review: &Request<'_>) -> bool {
    let whole = review.sub_resource.as_deref().is_none_or(str::is_empty);
    whole && matches!(review.operation, Operation::Create | Operation::Update)
}

fn object_kind(review: &Request<'_>) -> Option<ObjectKind> {
    if review.kind.group != common::names::GROUP {
        return None;
    }
    match &*review.kind.kind {
        "Machine" => Some(ObjectKind::Machine),
        "MachineTemplate" => Some(ObjectKind::MachineTemplate),
        "NetworkConfiguration" => Some(ObjectKind::NetworkConfiguration),
        _ => None,
    }
}

fn kind_label(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Machine => "Machine",
        ObjectKind::MachineTemplate => "MachineTemplate",
        ObjectKind::NetworkConfiguration => "NetworkConfiguration",
    }
}

fn label(stage: Stage) -> &'static str {
    match stage {
        Stage::Mutate => "mutate",
        Stage::Validate => "validate",
    }
}

/// What the answer needs of the object beside the verdict.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    name: Option<String>,
    generate_name: Option<String>,
    deletion_timestamp: Option<String>,
}

impl Head {
    /// Metadata of a wrong type is a matter of the rules.
    fn of(object: &str) -> Self {
        #[derive(Deserialize)]
        struct Object {
            metadata: Head,
        }
        serde_json::from_str(object)
            .map_or_else(|_| Self::default(), |object: Object| object.metadata)
    }

    /// The name, or how it will begin.
    fn name(&self) -> &str {
        let name = self.name.as_deref().or(self.generate_name.as_deref());
        name.unwrap_or_default()
    }
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
    match serde_json::to_vec(answer) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}
