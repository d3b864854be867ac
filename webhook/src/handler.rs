//! The way of a review, top to bottom.
//!
//! ```text
//! envelope ▶ a matter of rules? ▶ judge ─ misses? ▶ read them live ─┐ ▶ answer, metrics, log line
//!                                   ▲────────── once more ──────────┘
//! ```

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use common::admission::{self, ObjectKind, Settings, Stage, Verdict};
use common::violation::Reference;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::answer::{Answer, Failure};
use crate::body::Budget;
use crate::catalog::{Cache, Overlay};
use crate::lookup::{Lookup, find_all};
use crate::metrics::{self, About, Outcome};
use crate::report;
use crate::review::{DELETION_TIMESTAMP, Head, Operation, Request};

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

/// What the path that is asked decides.
pub(crate) struct Way {
    pub(crate) stage: Stage,
    pub(crate) settings: Settings,
}

/// When a review came, and until when it has to be answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time {
    pub(crate) start: Instant,
    pub(crate) deadline: Instant,
}

impl Reviewer {
    /// Answers a review. Whatever happens, the answer carries its uid.
    pub(crate) async fn answer(&self, way: &Way, review: &Request<'_>, time: Time) -> Answer {
        let kind = object_kind(review);
        let judged = match kind {
            Some(kind) if is_matter_of_rules(review) => {
                self.judged(way, kind, review, time.deadline).await
            }
            Some(_) => Ok((Answer::allow(review), Outcome::Passed)),
            None => {
                let kind = &review.kind.kind;
                let warning =
                    format!("machine-webhook was asked about a {kind}, for which it has no rules");
                let answer = Answer::allow_with_warning(review, warning);
                Ok((answer, Outcome::Passed))
            }
        };
        let (answer, outcome) = judged.unwrap_or_else(|failure| {
            report::unjudged(way.stage, review, &failure);
            let uid = review.uid.clone().into_owned();
            (Answer::error(uid, &failure), Outcome::Error)
        });
        let about = About::review(way.stage, review.operation, kind);
        metrics::observe(about, outcome, time.start.elapsed());
        answer
    }

    async fn judged(
        &self,
        way: &Way,
        kind: ObjectKind,
        review: &Request<'_>,
        deadline: Instant,
    ) -> Result<(Answer, Outcome), Failure> {
        if Instant::now() >= deadline {
            return Err(Failure::Timeout);
        }
        let object = review.object.ok_or(Failure::NoObject)?;
        if is_being_deleted(object.get()) {
            // It may go, whatever it says.
            return Ok((Answer::allow(review), Outcome::Passed));
        }
        if !self.cache.is_complete() {
            // What is not known yet must not be told to users as missing.
            return Err(Failure::Starting);
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
        let verdict = self.judge(way, &request, deadline).await;
        let verdict = verdict.ok_or(Failure::Internal)?;
        let findings = &verdict.findings;
        let name = match review.name.as_deref() {
            Some(name) if !name.is_empty() => Cow::Borrowed(name),
            // It is still to be generated; only a refusal needs to say of what.
            _ if findings.accepted() => Cow::Borrowed(""),
            _ => Cow::Owned(Head::of(object.get()).name()),
        };
        let answer = Answer::verdict(review, &name, findings, verdict.block.as_deref());
        let outcome = match (answer.allowed(), answer.patches()) {
            (false, _) => Outcome::Denied,
            (true, true) => Outcome::Patched,
            (true, false) => Outcome::Allowed,
        };
        metrics::found(
            About::review(way.stage, review.operation, Some(kind)),
            findings,
        );
        if outcome == Outcome::Denied {
            report::denied(way.stage, review, &name, findings);
        }
        Ok((answer, outcome))
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

/// Whether somebody has asked for its deletion. Nearly no text has the word, and only one that has
/// it is read for it.
fn is_being_deleted(object: &str) -> bool {
    object.contains(DELETION_TIMESTAMP) && Head::of(object).is_being_deleted()
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
        "LibvirtHost" => Some(ObjectKind::LibvirtHost),
        _ => None,
    }
}
