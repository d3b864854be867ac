//! The review of a LibvirtHost.

use super::{Request, Verdict, decode, ratchet};
use crate::rules;
use crate::rules::libvirthosts::intent::HostIntent;
use crate::rules::limits;
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>) -> Verdict {
    let mut findings = Findings::default();
    let spec = spec(request.object, &mut findings);
    let stored = request.old.map(|old| {
        let mut old_findings = Findings::default();
        (self::spec(old, &mut old_findings), old_findings)
    });
    ratchet::check_against_stored(&spec, stored, rules::check_host, &mut findings);
    Verdict {
        findings,
        block: None,
    }
}

fn spec(text: &str, findings: &mut Findings) -> HostIntent {
    let raw = decode::object(text, findings);
    decode::spec(raw.spec.intent, limits::truncate_host, findings)
}
