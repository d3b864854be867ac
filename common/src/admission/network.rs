//! The review of a NetworkConfiguration.

use super::{Request, Verdict, decode};
use crate::api::network::NetworkConfigurationSpec;
use crate::rules::networkconfigurations;
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>) -> Verdict {
    let mut findings = Findings::default();
    let wire = decode::object(request.object, &mut findings);
    let spec: NetworkConfigurationSpec = decode::spec(wire.spec, &mut findings);
    let old = request.old.map(|old| {
        // What is stored is not judged again.
        let mut ignored = Findings::default();
        let old = decode::object(old, &mut ignored);
        decode::spec(old.spec, &mut ignored)
    });
    // Machines refer to it by a field that holds a DNS label.
    request.judge_name(&wire.metadata, &mut findings);
    networkconfigurations::check(&spec, old.as_ref(), &mut findings);
    findings.settle();
    Verdict {
        findings,
        block: None,
    }
}
