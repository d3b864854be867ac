//! Log lines about reviews: who was told no, about what, by which rules.
//!
//! Names and codes, never a value of an object, and no text that may quote one.

use common::admission::Stage;
use common::violation::Findings;

use crate::answer::{Failure, codes};
use crate::metrics::stage_label;
use crate::review::Request;

/// Longest name in a line. Objects have no longer ones, but what is reviewed may never become one.
const NAME_MAX: usize = 253;

/// An object was refused for its faults.
pub(crate) fn denied(stage: Stage, review: &Request<'_>, name: &str, findings: &Findings) {
    tracing::info!(
        namespace = shown(review.namespace.as_deref().unwrap_or_default()),
        kind = shown(&review.kind.kind),
        name = shown(name),
        stage = stage_label(stage),
        operation = review.operation.label(),
        dry_run = review.dry_run.unwrap_or_default(),
        user = shown(&review.user_info.username),
        faults = findings.violations.len(),
        codes = codes(findings),
        "refused"
    );
}

/// A review was not judged.
pub(crate) fn unjudged(stage: Stage, review: &Request<'_>, failure: &Failure) {
    tracing::warn!(
        namespace = shown(review.namespace.as_deref().unwrap_or_default()),
        kind = shown(&review.kind.kind),
        name = shown(review.name.as_deref().unwrap_or_default()),
        stage = stage_label(stage),
        operation = review.operation.label(),
        uid = shown(&review.uid),
        reason = failure.reason(),
        "not judged"
    );
}

/// A body was no review, but for its uid. What it is instead is not told: it may have anything in it.
pub(crate) fn unread(stage: Stage) {
    let (stage, reason) = (stage_label(stage), "BadRequest");
    tracing::warn!(stage, reason, "not judged");
}

fn shown(name: &str) -> &str {
    let end = name.char_indices().nth(NAME_MAX);
    end.map_or(name, |(end, _)| &name[..end])
}
