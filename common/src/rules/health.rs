//! How a guest that no longer works is noticed: the watchdog.

use crate::api::choice::WatchdogAction;
use crate::api::machine::Watchdog;
use crate::code::Code;
use crate::normalize::{Leaf, Merged};
use crate::violation::Findings;

use super::form;
use super::rule::{Check, Parts, Subject, rules};

rules! {
    "health" Check::Part(health), on MACHINES_AND_TEMPLATES, Always {
        Refuse UnsupportedWatchdogAction = "The action of the watchdog does not exist."
            because "Both backends have the three actions that the message lists, and would refuse another one."
            fix "Take one of the values that the message lists."
            crd All,
    }
}

/// What the watchdog is requested to do.
fn action<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    merged.pick(
        "watchdog.action",
        |spec| spec.watchdog.as_ref()?.action.as_deref(),
        |template| template.watchdog.as_ref()?.action.as_deref(),
    )
}

/// The watchdog that is requested.
pub(super) fn watchdog<'a>(merged: &Merged<'a>) -> Leaf<&'a Watchdog> {
    merged.pick(
        "watchdog",
        |spec| spec.watchdog.as_ref(),
        |template| template.watchdog.as_ref(),
    )
}

/// Rule [`Code::UnsupportedWatchdogAction`].
fn health(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    if watchdog(subject.merged).value.is_some() {
        let leaf = action(subject.merged);
        let code = Code::UnsupportedWatchdogAction;
        // The default is KubeVirt's own.
        parts.watchdog = form::choice(leaf, WatchdogAction::Reset, code, findings);
    }
}
