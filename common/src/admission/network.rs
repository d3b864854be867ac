//! The review of a NetworkConfiguration.

use super::{Request, Verdict, decode};
use crate::api::network::NetworkConfigurationSpec;
use crate::rules::networkconfigurations;
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>) -> Verdict {
    let mut findings = Findings::default();
    let wire = decode::object(request.object, &mut findings);
    let spec: NetworkConfigurationSpec = decode::spec(wire.spec.intent, &mut findings);
    // Machines refer to it by a field that holds a DNS label.
    request.judge_name(&wire.metadata, &mut findings);
    match request.old {
        None => networkconfigurations::check(&spec, None, &mut findings),
        Some(old) => {
            let mut known = Findings::default();
            let old = decode::object(old, &mut known);
            let old: NetworkConfigurationSpec = decode::spec(old.spec.intent, &mut known);
            networkconfigurations::check(&old, Some(&old), &mut known);
            networkconfigurations::check(&spec, Some(&old), &mut findings);
            findings.tolerate(|fault| known.violations.contains(fault));
        }
    }
    findings.settle();
    Verdict {
        findings,
        block: None,
    }
}
