//! Fields of a Machine as a whole: backend, power state, node selector.

use crate::api::choice::PowerState;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::Merged;
use crate::violation::Findings;

use super::form;
use super::rule::{Check, Parts, Subject, rules};

rules! {
    "machine" Check::Part(backend), on MACHINES, Always {
        Refuse UnsupportedBackend = "The backend does not exist."
            because "Only the values that the message lists exist."
            fix "Take one of the values that the message lists."
            crd All,
    }
    "machine" Check::Part(power_state), on MACHINES, Always {
        Refuse UnsupportedPowerState = "The power state does not exist."
            because "Only the values that the message lists exist."
            fix "Take one of the values that the message lists."
            crd All,
    }
    "machine" Check::Part(node_selector), on MACHINES, Always, and [InvalidLabel] {}
}

/// Rule [`Code::UnsupportedBackend`].
fn backend(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let leaf = subject
        .merged
        .own("backend", |spec| spec.backend.as_deref());
    parts.backend = form::choice(
        leaf,
        subject.pins.backend,
        Code::UnsupportedBackend,
        findings,
    );
}

/// Rule [`Code::UnsupportedPowerState`].
fn power_state(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    parts.power_state = desired_power_state(subject.merged, findings);
}

/// The power state that the spec requests.
pub(super) fn desired_power_state(
    merged: &Merged<'_>,
    findings: &mut Findings,
) -> Option<PowerState> {
    let leaf = merged.own("powerState", |spec| spec.power_state.as_deref());
    let code = Code::UnsupportedPowerState;
    form::choice(leaf, PowerState::Running, code, findings)
}

/// Rule [`Code::InvalidLabel`] for the node selector.
fn node_selector(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    if let Some(labels) = &subject.merged.user().node_selector {
        form::labels(FieldPath::field("nodeSelector"), labels, findings);
    }
}
