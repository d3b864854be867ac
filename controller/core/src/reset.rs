//! A requested reset of the hardware of a running guest: one rule for both backends.
//!
//! ```text
//! new request ─▶ the guest runs on ─▶ it is reset ─▶ status: Done
//!          └──▶ it is off, stopped or restarted, or the backend does not reset guests ─▶ status: Refused
//!          └──▶ the reset fails for another reason ─▶ status as before: the next pass tries it again
//! ```
//! A backend resets the guest in the last action of a plan, so that the status is written right after it. It is carried out
//! even if another action was refused: a guest that hangs does not wait for a volume that cannot be made.
//!
//! A guest that is being stopped or restarted goes down in an orderly way, or is switched off after its grace period. A reset
//! beside that would take the orderly end away and boot a guest that goes down again. So the request is answered at once,
//! and is not carried out later on the guest that has just booted.
//!
//! No backend records that a guest was reset, so the request is in the status only afterwards: a controller that is
//! killed in between resets the guest a second time.

use common::api::choice::ResetResult;
use common::api::status::LastReset;
use common::bounds::TEXT_MAX;

use crate::machine::Machine;
use crate::plan::{Refusal, Subject};

/// Reason of a reset that the backend refuses for good.
pub const REFUSED: &str = "ResetRefused";

/// What the plan does about the power of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerPlan {
    /// It runs, and goes on running.
    KeepsRunning,
    /// There is no running guest that can be reset.
    IsOff,
    /// It runs, and is shut down because it is to be off.
    Stops,
    /// It is shut down to be started again, or was.
    Restarts,
}

impl PowerPlan {
    /// Why the guest is not reset.
    fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::KeepsRunning => None,
            Self::IsOff => Some("the guest does not run: request the reset again when it does"),
            Self::Stops => Some(
                "the guest is shut down, because spec.powerState is Stopped: request the reset again when it runs",
            ),
            Self::Restarts => Some(
                "the guest is being restarted, and boots again without a reset: request the reset again if it hangs then",
            ),
        }
    }
}

/// What a plan does about a requested reset.
#[derive(Debug, Default)]
pub struct Reset {
    /// The last request, for the status.
    pub last: Option<LastReset>,
    /// Whether the guest is to be reset.
    pub is_due: bool,
}

/// Whether a refusal is that of a reset which is not tried again. It is in `status.lastReset`, and in no condition.
pub fn is_final(refusal: &Refusal) -> bool {
    refusal.subject == Subject::Reset && refusal.reason == Some(REFUSED)
}

/// What a plan does about a requested reset of a guest with this power.
pub fn reset(machine: &Machine, power: PowerPlan, refusal: Option<&Refusal>) -> Reset {
    let Some(request) = machine.new_reset_request() else {
        return Reset {
            last: machine.status.last_reset.clone(),
            is_due: false,
        };
    };
    let refusal = refusal.filter(|it| it.subject == Subject::Reset);
    if refusal.is_some_and(|it| !is_final(it)) {
        return Reset {
            last: machine.status.last_reset.clone(),
            is_due: false,
        };
    }
    let refused = refusal.map(|it| it.message.clone());
    let message = refused.or_else(|| power.obstacle().map(str::to_owned));
    let result = match message {
        Some(_) => ResetResult::Refused,
        None => ResetResult::Done,
    };
    Reset {
        is_due: result == ResetResult::Done,
        last: Some(LastReset {
            request,
            result: Some(result),
            message: message.map(|it| it.chars().take(TEXT_MAX).collect()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use common::names::ANNOTATION_RESET_REQUESTED;

    use super::PowerPlan::{IsOff, KeepsRunning, Restarts, Stops};
    use super::*;
    use crate::fixtures::{annotate, block, machine};

    fn requesting(text: &str) -> Machine {
        let mut machine = machine(block());
        annotate(&mut machine, ANNOTATION_RESET_REQUESTED, text);
        machine
    }

    #[test]
    fn each_new_text_resets_a_running_guest_once() {
        let mut machine = requesting("hangs");
        let first = reset(&machine, KeepsRunning, None);
        assert!(first.is_due);
        let done = first.last.clone().unwrap();
        assert_eq!((done.result, done.message), (Some(ResetResult::Done), None));
        machine.status.last_reset = first.last.clone();
        let second = reset(&machine, KeepsRunning, None);
        assert!(!second.is_due);
        assert_eq!(second.last, first.last);
    }

    #[test]
    fn a_guest_that_is_off_or_goes_down_or_that_the_backend_does_not_reset_is_not_reset_later() {
        let refusal = Refusal {
            subject: Subject::Reset,
            reason: Some(REFUSED),
            message: "too old".to_owned(),
        };
        for (power, refusal, why) in [
            (IsOff, None, "the guest does not run"),
            (Stops, None, "spec.powerState is Stopped"),
            (Restarts, None, "is being restarted"),
            (KeepsRunning, Some(&refusal), "too old"),
        ] {
            let mut machine = requesting("hangs");
            let Reset { last, is_due } = reset(&machine, power, refusal);
            assert!(!is_due);
            let last = last.unwrap();
            assert_eq!(last.result, Some(ResetResult::Refused));
            assert!(last.message.as_ref().is_some_and(|it| it.contains(why)));
            machine.status.last_reset = Some(last);
            assert!(!reset(&machine, KeepsRunning, None).is_due);
        }
    }

    #[test]
    fn a_reset_that_failed_for_another_reason_is_tried_again() {
        let mut machine = requesting("hangs again");
        machine.status.last_reset = Some(LastReset {
            request: "hangs".to_owned(),
            result: Some(ResetResult::Done),
            message: None,
        });
        let busy = |subject| Refusal {
            subject,
            reason: None,
            message: "busy".to_owned(),
        };
        let failed = reset(&machine, KeepsRunning, Some(&busy(Subject::Reset)));
        assert!(!failed.is_due, "not in the same pass");
        assert_eq!(failed.last, machine.status.last_reset);
        machine.status.last_reset = failed.last;
        // Nor does it wait for another action that was refused.
        for refusal in [None, Some(&busy(Subject::Storage))] {
            let next = reset(&machine, KeepsRunning, refusal);
            assert!(next.is_due);
            assert_eq!(next.last.unwrap().request, "hangs again");
        }
    }
}
