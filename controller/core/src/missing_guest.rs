//! What the status says of a Machine whose VirtualMachine or domain is not there: one rule for both backends.

use common::api::choice::Phase;

use crate::conditions::{Fault, Verdict};
use crate::machine::Machine;

/// A Machine with a block and without a VirtualMachine or domain.
#[derive(Clone, Copy, Debug)]
pub struct MissingGuest<'a> {
    /// What is not there: "VirtualMachine" or "domain".
    pub object: &'static str,
    /// What is said while this plan makes it. The same text as once it is there saves a write of the status.
    pub planned: &'static str,
    /// What keeps its storage or network from being ready.
    pub blocker: Option<&'a Fault>,
    /// Whether this plan makes it, or a part of it. A paused Machine gets nothing of its plan.
    pub is_planned: bool,
    /// Whether the backend does nothing for the Machine now, although nothing is wrong with it.
    pub is_left_alone: bool,
    /// Whether something is wrong that keeps it from being made.
    pub fails: bool,
}

impl MissingGuest<'_> {
    /// `VirtualMachineReady`, unless a fault of the guest itself is reported.
    pub fn verdict(&self, machine: &Machine) -> Verdict {
        let object = self.object;
        if let Some(fault) = self.blocker {
            let message = format!("no {object} yet: its storage or network is not ready");
            return ("False", Fault::new(fault.reason(), message));
        }
        if self.is_planned && !self.waits(machine) {
            return ("True", Fault::new("VMCreated", self.planned));
        }
        let message =
            format!("no {object} yet: the conditions Paused, Scheduled and Ready show why");
        ("False", Fault::new("VMPending", message))
    }

    /// The phase.
    pub fn phase(&self, machine: &Machine) -> Phase {
        if self.waits(machine) {
            Phase::Pending
        } else if self.fails {
            Phase::Failed
        } else {
            Phase::Creating
        }
    }

    fn waits(&self, machine: &Machine) -> bool {
        machine.is_paused() || self.is_left_alone
    }
}

#[cfg(test)]
mod tests {
    use common::names::ANNOTATION_PAUSED;

    use super::*;
    use crate::fixtures;

    #[test]
    fn what_nobody_makes_is_not_reported_as_made() {
        let blocker = Fault::new("PoolNotFound", "no pool");
        let planned = MissingGuest {
            object: "domain",
            planned: "the domain is being defined",
            blocker: None,
            is_planned: true,
            is_left_alone: false,
            fails: false,
        };
        let is_left_alone = MissingGuest {
            is_left_alone: true,
            ..planned
        };
        let fails = MissingGuest {
            blocker: Some(&blocker),
            fails: true,
            ..planned
        };
        let later = MissingGuest {
            is_planned: false,
            ..planned
        };
        let machine = fixtures::machine(fixtures::block());
        let mut paused = machine.clone();
        fixtures::annotate(&mut paused, ANNOTATION_PAUSED, "true");
        for (missing, machine, status, reason, phase) in [
            (planned, &machine, "True", "VMCreated", Phase::Creating),
            (planned, &paused, "False", "VMPending", Phase::Pending),
            (later, &machine, "False", "VMPending", Phase::Creating),
            (
                is_left_alone,
                &machine,
                "False",
                "VMPending",
                Phase::Pending,
            ),
            (fails, &machine, "False", "PoolNotFound", Phase::Failed),
            (fails, &paused, "False", "PoolNotFound", Phase::Pending),
        ] {
            let verdict = missing.verdict(machine);
            assert_eq!((verdict.0, verdict.1.reason()), (status, reason));
            assert_eq!(missing.phase(machine), phase);
        }
    }
}
