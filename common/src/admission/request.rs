//! A request for review, and its verdict.

use super::decode::Metadata;
use crate::api::kind::ObjectKind;
use crate::rules;
use crate::rules::rule::ObjectName;
use crate::violation::Findings;

/// The webhook that sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The mutating webhook: the answer may write the block.
    Mutate,
    /// The validating webhook: the object is final.
    Validate,
}

/// One request for review. An update has an old object, a creation has none.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// The webhook that sent the request.
    pub stage: Stage,
    /// Namespace of the object; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// The object as sent, in JSON.
    pub object: &'a str,
    /// The object as stored, in JSON.
    pub old: Option<&'a str>,
}

impl Request<'_> {
    /// Applies the rules about names. The API server generates a name after the mutating stage.
    pub(super) fn check_name(&self, metadata: &Metadata, findings: &mut Findings) {
        let name = ObjectName {
            kind: self.kind,
            name: metadata.name(),
            generate_name: metadata.generate_name(),
        };
        let is_pending = name.name.is_empty() && self.stage == Stage::Mutate;
        if self.old.is_none() && (!is_pending || name.generate_name.is_some()) {
            rules::check_name(&name, findings);
        }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Violations in field order, warnings, and references that the catalog did not have. The object is
    /// refused exactly if there are violations.
    pub findings: Findings,
    /// JSON to write to `spec.normalized`; `None` if the object already has it.
    pub block: Option<String>,
}
