//! What concerns a Machine as a whole: backend, power state, node selector.

use crate::api::choice::{Backend, PowerState};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::Merged;
use crate::violation::Findings;

use super::form;

/// The backend: rule [`Code::UnsupportedBackend`].
pub(crate) fn backend(
    merged: &Merged<'_>,
    pinned: Backend,
    findings: &mut Findings,
) -> Option<Backend> {
    let leaf = merged.own("backend", |spec| spec.backend.as_deref());
    form::choice(leaf, pinned, Code::UnsupportedBackend, findings)
}

/// The power state: rule [`Code::UnsupportedPowerState`].
pub(crate) fn power_state(merged: &Merged<'_>, findings: &mut Findings) -> Option<PowerState> {
    let leaf = merged.own("powerState", |spec| spec.power_state.as_deref());
    form::choice(
        leaf,
        PowerState::Running,
        Code::UnsupportedPowerState,
        findings,
    )
}

/// Rule [`Code::InvalidLabel`] for the node selector.
pub(crate) fn node_selector(merged: &Merged<'_>, findings: &mut Findings) {
    if let Some(labels) = &merged.user().node_selector {
        form::labels(FieldPath::field("nodeSelector"), labels, findings);
    }
}
