//! The review of a NetworkConfiguration.

use super::{Request, Verdict, decode};
use crate::api::network::NetworkConfigurationSpec;
use crate::rules::{self, networkconfigurations};
use crate::violation::Findings;

pub(super) fn review(request: &Request<'_>) -> Verdict {
    let mut findings = Findings::default();
    let wire = decode::object(request.object, &mut findings);
    let spec: NetworkConfigurationSpec = decode::typed(wire.spec, "spec", &mut findings);
    networkconfigurations::check(&spec, &mut findings);
    match request.old {
        // Machines refer to it by a field that holds a DNS label.
        None => rules::names::object(&wire.metadata.name.unwrap_or_default(), &mut findings),
        Some(old) => {
            // What is stored is not judged again.
            let mut ignored = Findings::default();
            let old = decode::object(old, &mut ignored);
            let old: NetworkConfigurationSpec = decode::typed(old.spec, "spec", &mut ignored);
            networkconfigurations::change(&old, &spec, &mut findings);
        }
    }
    decode::without_consequences(&mut findings);
    Verdict {
        findings,
        block: None,
    }
}
