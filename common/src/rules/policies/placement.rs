//! Taints, affinities and spreads that the policies of a namespace allow.

use std::fmt::Debug;

use crate::api::machine::Affinity;
use crate::catalog::Policy;
use crate::code::Code;
use crate::normalize::Leaf;
use crate::rules::rule::{Check, PolicySubject, rules};
use crate::rules::{affinity, placement};
use crate::violation::Findings;

use super::message::{allows, allows_no, names_of, not_allowed};

rules! {
    "policies" Check::Policy(tolerations), on MACHINES, Always {
        Refuse TolerationNotAllowed = "A MachinePolicy does not allow the toleration of the Machine."
            because "A taint keeps guests away from nodes that are for others, such as those of the control plane."
            fix "Drop the toleration, or name a taint that the message lists."
            crd Nothing,
    }
    "policies" Check::Policy(terms), on MACHINES, Always {
        Refuse AffinityNotAllowed = "A MachinePolicy does not allow the affinity or the spread of the Machine."
            because "Guests that choose their nodes, or are spread over them, leave the scheduler less room for the guests of others."
            fix "Drop the field, or write `{}` or `[]` to take that of the template away. Machines of one namespace are kept apart by `placement.antiAffinityGroup`, which is always allowed."
            crd Nothing,
    }
}

/// Rule [`Code::TolerationNotAllowed`]. A toleration without a key tolerates every taint.
fn tolerations(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let Some(patterns) = &policy.placement.tolerations else {
        return;
    };
    let leaf = placement::requested_tolerations(machine.merged);
    for (index, item) in leaf.value.into_iter().flatten().enumerate() {
        let key = Leaf {
            value: item.key.as_deref().filter(|key| !key.is_empty()),
            path: placement::toleration_path(leaf.path, index, "key"),
        };
        let text = key.value.unwrap_or_default();
        if !patterns.iter().any(|pattern| pattern.matches(text)) {
            let allowed = allows(policy, text, names_of(patterns, &[]));
            let absent = || "without a key every taint is tolerated".to_owned();
            let code = Code::TolerationNotAllowed;
            // The key alone does not tell what is tolerated.
            let fault = not_allowed(code, key, absent, &allowed);
            findings.deny(fault.known_as(format!("{allowed}: {item:?}")));
        }
    }
}

/// Rule [`Code::AffinityNotAllowed`].
fn terms(machine: &PolicySubject<'_>, policy: &Policy, findings: &mut Findings) {
    let affinity = affinity::requested_affinity(machine.merged);
    let spread = affinity::requested_spread(machine.merged);
    let allowed = &policy.placement;
    for (path, is_requested, is_allowed, content, what, instead) in [
        (
            affinity.path,
            affinity.value.is_some_and(|it| *it != Affinity::default()),
            allowed.allows_affinity,
            &affinity.value as &dyn Debug,
            "affinity",
            "nodeSelector selects nodes, and placement.antiAffinityGroup keeps Machines apart",
        ),
        (
            spread.path,
            spread.value.is_some_and(|list| !list.is_empty()),
            allowed.allows_topology_spread,
            &spread.value,
            "topologySpreadConstraints",
            "placement.antiAffinityGroup keeps Machines apart",
        ),
    ] {
        if is_requested && !is_allowed {
            let code = Code::AffinityNotAllowed;
            let fault = allows_no(code, path, policy, what, instead);
            findings.deny(fault.known_as(format!("{what}: {content:?}")));
        }
    }
}
