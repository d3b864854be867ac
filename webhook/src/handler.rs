//! Handles a review, top to bottom.
//!
//! ```text
//! request ─▶ do rules apply? ─▶ validate ─ references missing? ─▶ read them live ─┐ ─▶ response
//!                                  ▲──────────────── again ───────────────────────┘
//! ```

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use common::admission::{self, ObjectKind, Settings, Stage, Verdict};
use common::catalog::{Catalog as _, MachineName, Usage};
use common::violation::Reference;
use kube::ResourceExt as _;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::body::BodyBudget;
use crate::catalog::{Cache, Lookup, Machine, Overlay, ReadError, look_up_all};
use crate::metrics::{self, Outcome, ReviewLabels};
use crate::review::{DELETION_TIMESTAMP, Failure, ObjectHead, Operation, Request, Response, Spec};
use crate::review_log;

/// Validations of one review. An object that is read live may name another one that the cache does
/// not have, as a template names a storage class; there is no longer chain.
const VALIDATIONS_MAX: usize = 3;

/// What all reviews share.
pub struct Handler {
    /// The cached objects that rules may read.
    pub cache: Arc<Cache>,
    /// Reads what the cache does not have.
    pub lookup: Box<dyn Lookup>,
    /// The administrator's settings.
    pub settings: Settings,
    /// The memory for request bodies.
    pub budget: BodyBudget,
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handler")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What the URL path of a request selects.
pub(crate) struct Endpoint {
    pub(crate) stage: Stage,
    pub(crate) settings: Settings,
}

/// The times of one review.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// When the head of the request was complete.
    pub(crate) start: Instant,
    /// When the response must be made.
    pub(crate) deadline: Instant,
}

impl Handler {
    /// Answers a review. Every response has the uid of the review, whatever fails.
    pub(crate) async fn handle(
        &self,
        endpoint: &Endpoint,
        review: &Request<'_>,
        timing: Timing,
    ) -> Response {
        let kind = object_kind(review);
        let result = match kind {
            Some(kind) if do_rules_apply(review) => {
                self.admit(endpoint, kind, review, timing.deadline).await
            }
            Some(ObjectKind::Machine) if review.operation == Operation::Delete => {
                Ok((warn_of_deletion(endpoint.stage, review), Outcome::Allowed))
            }
            Some(_) => Ok((Response::allow(review), Outcome::Passed)),
            None => {
                let kind = &review.kind.kind;
                let warning = format!(
                    "machine-webhook received a {kind}, a kind for which it has no rules; remove the \
                     kind from the webhook configuration"
                );
                let response = Response::allow_with_warning(review, warning);
                Ok((response, Outcome::Passed))
            }
        };
        let (response, outcome) = result.unwrap_or_else(|failure| {
            review_log::failed(endpoint.stage, review, &failure);
            let uid = review.uid.clone().into_owned();
            (Response::error(uid, &failure), Outcome::Error)
        });
        let labels = ReviewLabels::new(endpoint.stage, review.operation, kind);
        metrics::review(labels, outcome, timing.start.elapsed());
        response
    }

    /// Admits or refuses the creation or update of an object.
    async fn admit(
        &self,
        endpoint: &Endpoint,
        kind: ObjectKind,
        review: &Request<'_>,
        deadline: Instant,
    ) -> Result<(Response, Outcome), Failure> {
        if Instant::now() >= deadline {
            return Err(Failure::Timeout);
        }
        let object = review.object.ok_or(Failure::NoObject)?;
        let old = review
            .old_object
            .filter(|_| review.operation == Operation::Update)
            .map(RawValue::get);
        if old.is_some_and(|old| keeps_spec_of_deleted(old, object.get())) {
            // Nothing may prevent the removal of a finalizer.
            return Ok((Response::allow(review), Outcome::Passed));
        }
        if !self.cache.is_complete() {
            // An object that the cache does not have yet must not be reported as missing.
            return Err(Failure::Starting);
        }
        let request = admission::Request {
            kind,
            stage: endpoint.stage,
            namespace: review.namespace.as_deref().unwrap_or_default(),
            object: object.get(),
            old,
        };
        let is_dry_run = review.dry_run.unwrap_or_default();
        let verdict = self.validate(endpoint, &request, is_dry_run, deadline);
        let verdict = verdict.await?;
        let findings = &verdict.findings;
        if misses_namespace(&verdict) {
            // A policy that may hold must not be passed over.
            return Err(Failure::NamespaceUnknown);
        }
        let name = match review.name.as_deref() {
            Some(name) if !name.is_empty() => Cow::Borrowed(name),
            // The name will be generated. Only a refusal needs the prefix.
            _ if findings.accepted() => Cow::Borrowed(""),
            _ => Cow::Owned(ObjectHead::of(object.get()).name()),
        };
        let response = Response::of_findings(review, &name, findings, verdict.block.as_deref());
        let outcome = match (response.allowed(), response.patches()) {
            (false, _) => Outcome::Denied,
            (true, true) => Outcome::Patched,
            (true, false) => Outcome::Allowed,
        };
        let labels = ReviewLabels::new(endpoint.stage, review.operation, Some(kind));
        metrics::findings(labels, findings);
        if outcome == Outcome::Denied {
            review_log::refused(endpoint.stage, review, &name, findings);
        }
        Ok((response, outcome))
    }

    /// Runs the rules on what is known now.
    fn compare(
        &self,
        endpoint: &Endpoint,
        request: &admission::Request<'_>,
        overlay: &Overlay<'_>,
    ) -> Result<Comparison, Failure> {
        let revision = self.cache.admitted.revision(request.namespace);
        let verdict = run_rules(endpoint, request, overlay)?;
        Ok(Comparison { revision, verdict })
    }

    /// Counts an admitted Machine from now on against the quota of its namespace. False if another Machine was recorded
    /// since the comparison: it has to be repeated, because together both may exceed the quota.
    fn record(
        &self,
        request: &admission::Request<'_>,
        overlay: &Overlay<'_>,
        comparison: &Comparison,
    ) -> bool {
        let Comparison { revision, verdict } = comparison;
        if !verdict.findings.accepted() || misses_namespace(verdict) {
            return true;
        }
        let Some((name, usage)) = share(request, overlay) else {
            return true;
        };
        let machine = MachineName {
            namespace: request.namespace,
            name: &name,
        };
        let admitted = &self.cache.admitted;
        admitted.record(machine, usage, *revision, Instant::now())
    }

    /// Validates with the cache. What the cache does not have is read once, and the object is
    /// validated again. An object is not refused while something that it may refer to could not be read.
    async fn validate(
        &self,
        endpoint: &Endpoint,
        request: &admission::Request<'_>,
        is_dry_run: bool,
        deadline: Instant,
    ) -> Result<Verdict, Failure> {
        let mut overlay = Overlay::new(&self.cache);
        let mut read: Vec<Reference> = Vec::new();
        let mut failure = None;
        let mut comparison = self.compare(endpoint, request, &overlay)?;
        for _ in 1..VALIDATIONS_MAX {
            let mut misses = comparison.verdict.findings.misses.clone();
            misses.sort();
            misses.dedup();
            misses.retain(|miss| !read.contains(miss));
            if misses.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                failure = failure.or(Some(Failure::Timeout));
                break;
            }
            let lookup = self.lookup.as_ref();
            let reads = look_up_all(lookup, request.namespace, &misses, deadline).await;
            failure = failure.or(reads.failure.map(Failure::from));
            if reads.found.is_empty() {
                break;
            }
            overlay.extend(reads.found);
            read.append(&mut misses);
            comparison = self.compare(endpoint, request, &overlay)?;
        }
        // Other Machines may have been admitted during the reads.
        while !is_dry_run && !self.record(request, &overlay, &comparison) {
            if Instant::now() >= deadline {
                return Err(Failure::Timeout);
            }
            comparison = self.compare(endpoint, request, &overlay)?;
        }
        unless_refused(failure, comparison.verdict)
    }
}

/// A verdict, and what the namespace had of its quota.
struct Comparison {
    /// Revision of the admitted Machines before the rules ran.
    revision: u64,
    verdict: Verdict,
}

/// Name and usage of a Machine in the validating stage, if its namespace has a quota. `None`, too, if the stored Machine
/// uses the same: nothing that others are compared with changes.
fn share(request: &admission::Request<'_>, overlay: &Overlay<'_>) -> Option<(String, Usage)> {
    if request.kind != ObjectKind::Machine || request.stage != Stage::Validate {
        return None;
    }
    let policies = overlay.policies(request.namespace)?;
    if !policies.iter().any(|policy| policy.quota.is_set()) {
        return None;
    }
    let decode = |object: &str| serde_json::from_str::<Machine>(object).ok();
    let machine = decode(request.object)?;
    let usage = machine.usage();
    let stored = request.old.and_then(decode);
    let is_new = stored.is_none_or(|stored| stored.usage() != usage);
    is_new.then(|| (machine.name_any(), usage))
}

/// Whether it is not known which policies hold.
fn misses_namespace(verdict: &Verdict) -> bool {
    verdict.findings.misses.contains(&Reference::Namespace)
}

/// The verdict, or this failure in place of a refusal: the refusal may be about the object that was not read.
fn unless_refused(failure: Option<Failure>, verdict: Verdict) -> Result<Verdict, Failure> {
    match failure {
        Some(failure) if !verdict.findings.accepted() => Err(failure),
        _ => Ok(verdict),
    }
}

impl From<(String, ReadError)> for Failure {
    fn from((what, error): (String, ReadError)) -> Self {
        match error {
            ReadError::Failed => Self::ReadFailed(what),
            ReadError::TimedOut => Self::ReadTimedOut(what),
        }
    }
}

/// Runs the rules. If they panic, this review ends and no other.
fn run_rules(
    endpoint: &Endpoint,
    request: &admission::Request<'_>,
    overlay: &Overlay<'_>,
) -> Result<Verdict, Failure> {
    // Unwind safe: the rules are pure, so a panic leaves no inconsistent state.
    let rules = AssertUnwindSafe(|| admission::review(request, overlay, &endpoint.settings));
    catch_unwind(rules).map_err(|_| Failure::Internal)
}

/// Allows the deletion of a Machine, with a warning for each disk that is destroyed with it.
fn warn_of_deletion(stage: Stage, review: &Request<'_>) -> Response {
    let Some(old) = review.old_object else {
        return Response::allow(review);
    };
    let namespace = review.namespace.as_deref().unwrap_or_default();
    let findings = admission::warn_of_deletion(namespace, old.get());
    let labels = ReviewLabels::new(stage, review.operation, Some(ObjectKind::Machine));
    metrics::findings(labels, &findings);
    // The name matters for refusals only.
    Response::of_findings(review, "", &findings, None)
}

/// Whether the deletion of the stored object was requested and the update leaves its spec as it is: the update then
/// changes nothing but metadata and status. What the sent object says of its deletion proves nothing, because any user
/// can write it. Searching for the field name first avoids decoding nearly every object.
fn keeps_spec_of_deleted(old: &str, object: &str) -> bool {
    old.contains(DELETION_TIMESTAMP)
        && ObjectHead::of(old).is_being_deleted()
        && Spec::of(old).is_some_and(|spec| Some(spec) == Spec::of(object))
}

/// Rules apply when a whole object is created or updated.
fn do_rules_apply(review: &Request<'_>) -> bool {
    let is_whole = review.sub_resource.as_deref().is_none_or(str::is_empty);
    is_whole && matches!(review.operation, Operation::Create | Operation::Update)
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
        "MachinePolicy" => Some(ObjectKind::MachinePolicy),
        "MachineImage" => Some(ObjectKind::MachineImage),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
