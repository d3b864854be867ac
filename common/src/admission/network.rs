//! The review of a NetworkConfiguration.

use super::decode::{self, RawObject};
use super::{Request, Verdict, ratchet};
use crate::api::network::NetworkConfigurationSpec;
use crate::catalog::Catalog;
use crate::rules::{self, limits};
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>, catalog: &dyn Catalog) -> Verdict {
    let mut findings = Findings::default();
    let raw = decode::object(request.object, &mut findings);
    // A Machine refers to it by a field that must be a DNS label.
    request.check_name(&raw.metadata, &mut findings);
    let new = spec(raw, &mut findings);
    let stored = request.old.map(|old| {
        let mut old_findings = Findings::default();
        let raw = decode::object(old, &mut old_findings);
        (spec(raw, &mut old_findings), old_findings)
    });
    let policies = rules::policies_of(request.namespace, catalog, &mut findings);
    let check = |new: &NetworkConfigurationSpec,
                 old: Option<&NetworkConfigurationSpec>,
                 findings: &mut Findings| {
        rules::check_network(new, old, &policies, findings);
    };
    ratchet::check_against_stored(&new, stored, check, &mut findings);
    Verdict {
        findings,
        block: None,
    }
}

fn spec(raw: RawObject<'_>, findings: &mut Findings) -> NetworkConfigurationSpec {
    decode::spec(raw.spec.intent, limits::truncate_network, findings)
}
