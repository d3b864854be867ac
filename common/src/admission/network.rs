//! The review of a NetworkConfiguration.

use super::decode::{self, Wire};
use super::{Request, Verdict, ratchet};
use crate::api::network::NetworkConfigurationSpec;
use crate::rules::{self, limits};
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>) -> Verdict {
    let mut findings = Findings::default();
    let wire = decode::object(request.object, &mut findings);
    // Machines refer to it by a field that holds a DNS label.
    request.judge_name(&wire.metadata, &mut findings);
    let new = spec(wire, &mut findings);
    let stored = request.old.map(|old| {
        let mut known = Findings::default();
        let wire = decode::object(old, &mut known);
        (spec(wire, &mut known), known)
    });
    ratchet::judge(&new, stored, rules::check_network, &mut findings);
    Verdict {
        findings,
        block: None,
    }
}

fn spec(wire: Wire<'_>, findings: &mut Findings) -> NetworkConfigurationSpec {
    decode::spec(wire.spec.intent, limits::truncate_nothing, findings)
}
