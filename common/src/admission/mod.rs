//! A review: the object as sent, the old object, the catalog → a verdict.
//!
//! ```text
//! raw JSON ──decode──▶ intent (+ faults of type) ──references──▶ pins ──normalize──▶ block
//!                                    └────────── faults of every rule, in field order ─┘
//! ```
//!
//! The mutating and the validating stage compute the same thing. The first writes the block, the
//! second accepts nothing but it.

mod block;
mod decode;
mod host;
mod lenient;
mod machine;
mod network;
mod ratchet;
mod template;

use self::decode::Metadata;
pub use crate::api::kind::ObjectKind;
use crate::catalog::Catalog;
use crate::rules;
pub use crate::rules::Settings;
use crate::violation::Findings;

/// Which of the two webhooks asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The block may still be written.
    Mutate,
    /// The object is final.
    Validate,
}

/// One review. An update has an old object, a creation has none.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Which of the two webhooks asks.
    pub stage: Stage,
    /// Namespace of the object; empty for kinds of the cluster.
    pub namespace: &'a str,
    /// The object as sent, in JSON.
    pub object: &'a str,
    /// The object as stored, in JSON.
    pub old: Option<&'a str>,
}

impl Request<'_> {
    /// The rule about names, for an object that has its name now.
    fn judge_name(&self, metadata: &Metadata, findings: &mut Findings) {
        let still_unnamed = metadata.name().is_empty() && self.stage == Stage::Mutate;
        if self.old.is_none() && !still_unnamed {
            rules::check_name(self.kind, metadata.name(), findings);
        }
    }
}

/// What is to be answered.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Faults in field order, warnings, and what the catalog did not have. The object is refused
    /// exactly when there are violations.
    pub findings: Findings,
    /// What must be written to `spec.normalized`, in JSON; absent when it is there already.
    pub block: Option<String>,
}

/// Judges one object.
///
/// Pure, and total: any JSON text gets a verdict. Every fault is told, none twice. Every path
/// resolves in the object or in the schema.
pub fn review(request: &Request<'_>, catalog: &dyn Catalog, settings: &Settings) -> Verdict {
    let mut verdict = match request.kind {
        ObjectKind::Machine => machine::review(request, catalog, settings),
        ObjectKind::MachineTemplate => template::review(request, catalog),
        ObjectKind::NetworkConfiguration => network::review(request),
        ObjectKind::LibvirtHost => host::review(request),
    };
    if request.stage == Stage::Validate {
        // The mutating stage has said them already.
        verdict.findings.warnings.clear();
    }
    if !verdict.findings.accepted() {
        verdict.block = None;
        sort_by_field(&mut verdict.findings);
    }
    verdict
}

/// Fields in the order of the API's reference; others, such as the name, come first.
const FIELD_ORDER: [&str; 29] = [
    "description",
    "deprecated",
    "uri",
    "credentialsSecretRef",
    "virtType",
    "cpuMode",
    "schedulable",
    "maintenance",
    "overcommit",
    "reserved",
    "storage",
    "imagePool",
    "template",
    "backend",
    "powerState",
    "guestShutdownStops",
    "resources",
    "disks",
    "networks",
    "bootOrder",
    "cdroms",
    "cloudInit",
    "domain",
    "nodeSelector",
    "normalized",
    "vlan",
    "bridge",
    "mtu",
    "networkAttachmentDefinition",
];

fn sort_by_field(findings: &mut Findings) {
    findings.violations.sort_by_cached_key(|violation| {
        let field = violation.field.strip_prefix("spec.").unwrap_or_default();
        let end = field.find(['.', '[']).unwrap_or(field.len());
        let (first, rest) = field.split_at(end);
        let index: Option<usize> = rest
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
            .and_then(|(index, _)| index.parse().ok());
        (FIELD_ORDER.iter().position(|name| *name == first), index)
    });
}
