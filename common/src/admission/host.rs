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
        let mut known = Findings::default();
        (self::spec(old, &mut known), known)
    });
    ratchet::judge(&spec, stored, rules::check_host, &mut findings);
    Verdict {
        findings,
        block: None,
    }
}

fn spec(text: &str, findings: &mut Findings) -> HostIntent {
    let wire = decode::object(text, findings);
    decode::spec(wire.spec.intent, limits::truncate_host, findings)
}
