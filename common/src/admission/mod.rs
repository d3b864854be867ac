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
mod field_order;
mod host;
mod image;
mod lenient;
mod machine;
mod network;
mod policy;
mod ratchet;
mod request;
mod template;

pub use self::deletion::warn_of_deletion;
pub use self::request::{Request, Stage, Verdict};
pub use crate::api::kind::ObjectKind;
use crate::catalog::Catalog;
pub use crate::rules::Settings;

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
        field_order::sort(&mut verdict.findings);
        verdict.findings.report_omitted();
    }
    verdict
}
