//! Fields of a Machine as a whole: backend, power state, node selector.

use crate::api::choice::PowerState;
use crate::api::normalized::Normalized;
use crate::bounds::GRACE_PERIOD_MAX;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Leaf, Merged};
use crate::violation::{Findings, Kind, Violation};

use super::rule::{Check, Parts, Subject, rules};
use super::{form, guest_os};

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
    "machine" Check::Part(grace_period), on MACHINES_AND_TEMPLATES, Always {
        Refuse InvalidGracePeriod = "The time that the guest has to shut down is below 0 or above a day."
            because "A stop or a deletion waits that long for a guest that does not react."
            fix "Give 0 to 86400 seconds."
            crd All,
    }
    "machine" Check::Part(eviction_strategy), on MACHINES_AND_TEMPLATES, Always {
        Refuse UnsupportedEvictionStrategy = "The eviction strategy does not exist."
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

/// Default of the time in seconds that a guest has to shut down, except on Windows. KubeVirt's own is 30
/// (`DefaultGracePeriodSeconds`), in which a guest that writes back its caches does not end; the templates of the KubeVirt
/// project have this one.
const GRACE_PERIOD: u32 = 180;

/// The time in seconds that the guest has to shut down.
pub(super) fn requested_grace_period(merged: &Merged<'_>) -> Leaf<i64> {
    merged.pick(
        "terminationGracePeriodSeconds",
        |spec| spec.termination_grace_period_seconds,
        |template| template.termination_grace_period_seconds,
    )
}

/// Rule [`Code::InvalidGracePeriod`].
fn grace_period(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let leaf = requested_grace_period(subject.merged);
    let Some(seconds) = leaf.value else {
        let is_left = subject.pins.left_to_backend.grace_period;
        parts.grace_period = if guest_os::is_windows(subject.merged) {
            Some(guest_os::WINDOWS_GRACE_PERIOD)
        } else {
            (!is_left).then_some(GRACE_PERIOD)
        };
        return;
    };
    let valid = u32::try_from(seconds).ok();
    parts.grace_period = valid.filter(|seconds| *seconds <= GRACE_PERIOD_MAX);
    if parts.grace_period.is_none() {
        let detail = format!("must be from 0 to {GRACE_PERIOD_MAX} seconds");
        let fault = Violation::new(leaf.path, Code::InvalidGracePeriod, Kind::Invalid, detail);
        findings.deny(fault.value(seconds.to_string()));
    }
}

/// What KubeVirt is asked to do with the running guest when its node is drained.
pub(super) fn requested_eviction_strategy<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    merged.pick(
        "evictionStrategy",
        |spec| spec.eviction_strategy.as_deref(),
        |template| template.eviction_strategy.as_deref(),
    )
}

/// Rule [`Code::UnsupportedEvictionStrategy`].
fn eviction_strategy(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let leaf = requested_eviction_strategy(subject.merged);
    let code = Code::UnsupportedEvictionStrategy;
    parts.eviction_strategy = form::given_choice(leaf, code, findings);
}

/// Rule [`Code::InvalidLabel`] for the node selector.
fn node_selector(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    if let Some(labels) = &subject.merged.user().node_selector {
        form::labels(FieldPath::field("nodeSelector"), labels, findings);
    }
}

/// Whether a Machine runs and is to keep running.
pub(crate) fn keeps_running(stored: &Normalized, merged: &Merged<'_>) -> bool {
    let desired = desired_power_state(merged, &mut Findings::default());
    stored.power_state == PowerState::Running && desired == Some(PowerState::Running)
}
