//! The review of a MachineImage.

use super::{Request, Verdict, decode, ratchet};
use crate::api::machine_image::MachineImageSpec;
use crate::rules::{self, limits};
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>) -> Verdict {
    let mut findings = Findings::default();
    let new = spec(request.object, &mut findings);
    let stored = request.old.map(|old| {
        let mut old_findings = Findings::default();
        (spec(old, &mut old_findings), old_findings)
    });
    ratchet::check_against_stored(&new, stored, rules::check_image, &mut findings);
    Verdict {
        findings,
        block: None,
    }
}

fn spec(text: &str, findings: &mut Findings) -> MachineImageSpec {
    let raw = decode::object(text, findings);
    decode::spec(raw.spec.intent, limits::truncate_nothing, findings)
}
