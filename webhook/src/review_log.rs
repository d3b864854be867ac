//! Log lines about reviews: which object of which user was refused, by which rules.
//!
//! They contain names and codes, never a value of an object, and no text that may quote one.

use common::admission::Stage;
use common::violation::Findings;

use crate::metrics::stage_label;
use crate::review::{Failure, Request, codes};

/// Longest name in a line, in characters. No stored object has a longer one; a reviewed one may.
const NAME_MAX: usize = 253;

/// Logs that an object was refused because of violations.
pub(crate) fn refused(stage: Stage, review: &Request<'_>, name: &str, findings: &Findings) {
    tracing::info!(
        namespace = shortened(review.namespace.as_deref().unwrap_or_default()),
        kind = shortened(&review.kind.kind),
        name = shortened(name),
        stage = stage_label(stage),
        operation = review.operation.label(),
        dry_run = review.dry_run.unwrap_or_default(),
        user = shortened(&review.user_info.username),
        faults = findings.violations.len(),
        codes = codes(findings),
        "refused"
    );
}

/// Logs that an object could not be validated.
pub(crate) fn failed(stage: Stage, review: &Request<'_>, failure: &Failure) {
    tracing::warn!(
        namespace = shortened(review.namespace.as_deref().unwrap_or_default()),
        kind = shortened(&review.kind.kind),
        name = shortened(review.name.as_deref().unwrap_or_default()),
        stage = stage_label(stage),
        operation = review.operation.label(),
        uid = shortened(&review.uid),
        reason = failure.reason(),
        "not validated"
    );
}

/// Logs that a body was not a review. The reason is left out, because it may quote the body.
pub(crate) fn invalid(stage: Stage) {
    let (stage, reason) = (stage_label(stage), "BadRequest");
    tracing::warn!(stage, reason, "not validated");
}

fn shortened(name: &str) -> &str {
    let end = name.char_indices().nth(NAME_MAX);
    end.map_or(name, |(end, _)| &name[..end])
}
