//! The review of one object: object as sent, stored object and catalog → verdict.
//!
//! ```text
//! raw JSON ──decode──▶ intent (+ type faults) ──references──▶ pins ──normalize──▶ block
//!                                    └──────── faults of all rules, in field order ─┘
//! ```
//!
//! Both stages compute the same block. The mutating stage writes it; the validating stage refuses an
//! object with any other block.

mod block;
mod decode;
mod deletion;
mod host;
mod image;
mod lenient;
mod machine;
mod network;
mod policy;
mod ratchet;
mod template;

use self::decode::Metadata;
pub use self::deletion::warn_of_deletion;
pub use crate::api::kind::ObjectKind;
use crate::catalog::Catalog;
use crate::rules;
pub use crate::rules::Settings;
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
    fn check_name(&self, metadata: &Metadata, findings: &mut Findings) {
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

/// Reviews one object.
///
/// Guarantees: the function is pure, and any text gets a verdict. Every fault is reported exactly once.
/// Every path exists in the object or in the schema.
pub fn review(request: &Request<'_>, catalog: &dyn Catalog, settings: &Settings) -> Verdict {
    let mut verdict = match request.kind {
        ObjectKind::Machine => machine::review(request, catalog, settings),
        ObjectKind::MachineTemplate => template::review(request, catalog, settings),
        ObjectKind::NetworkConfiguration => network::review(request, catalog),
        ObjectKind::LibvirtHost => host::review(request),
        ObjectKind::MachinePolicy => policy::review(request),
        ObjectKind::MachineImage => image::review(request),
    };
    if request.stage == Stage::Validate {
        // The mutating stage has already returned them.
        verdict.findings.warnings.clear();
    }
    if !verdict.findings.accepted() {
        verdict.block = None;
        sort_by_field(&mut verdict.findings);
    }
    verdict
}

/// Fields in the order of the API reference. Violations of other fields, such as the name, come first.
const FIELD_ORDER: [&str; 45] = [
    "description",
    "deprecated",
    "source",
    "os",
    "minDiskSize",
    "firmware",
    "defaultUser",
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
    "imageSources",
    "template",
    "backend",
    "powerState",
    "guestShutdownStops",
    "deletionProtection",
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
    "namespaceSelector",
    "backends",
    "templates",
    "storageClasses",
    "libvirtHosts",
    "images",
    "reclaimPolicies",
    "limits",
    "quota",
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
