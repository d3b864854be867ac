//! The condition `Ready`: one order of its reasons, and one wording of them, for every backend.

use common::api::choice::Phase;
use common::api::status::MachineStatus;
use common::names;

use crate::conditions::{Conditions, Fault, TYPES, Verdict};
use crate::machine::Machine;

/// What decides about `Ready`. The fields are in the order in which [`verdict`](Self::verdict) asks them: that in which a
/// person would repair what they name.
#[derive(Clone, Debug, Default)]
pub struct ReadyInputs<'a> {
    /// Why there is no block to act on.
    pub unfit: Option<&'a Fault>,
    /// That another client has stopped the guest. The faults below have conditions of their own, and none of them has
    /// stopped the guest.
    pub foreign_stop: Option<&'a Fault>,
    /// What the disks lack.
    pub storage: Option<&'a Fault>,
    /// What the network cards lack.
    pub network: Option<&'a Fault>,
    /// Why an image that the guest waits for is not complete.
    pub import: Option<&'a Fault>,
    /// What is wrong with the guest.
    pub guest: Option<&'a Fault>,
    /// Why a volume cannot grow.
    pub growth: Option<&'a Fault>,
    /// That the guest is being restarted.
    pub restart: Option<Fault>,
    /// Why the state of the guest is not known.
    pub unknown: Option<Fault>,
    /// That the guest is paused where it runs.
    pub guest_paused: Option<Fault>,
    /// Why nothing is done about a guest that is on and is to be off, or the other way round.
    pub left_alone: Option<Fault>,
    /// Whether the guest is to run.
    pub is_to_run: bool,
    /// Whether it shuts down although it is to run.
    pub is_stopping: bool,
    /// That the readiness probe of the running guest does not succeed.
    pub probe: Option<Fault>,
    /// Whether a guest that is off is about to be started.
    pub is_starting: bool,
    /// What the start of the guest waits for.
    pub waits_for: Option<Fault>,
}

impl ReadyInputs<'_> {
    /// Status, reason and message of `Ready` of the Machine in this phase. While it is paused the guest is left alone:
    /// neither a restart nor what keeps the guest from being as desired is under way.
    pub fn verdict(mut self, machine: &Machine, phase: Phase) -> Verdict {
        if machine.is_paused() {
            (self.guest, self.restart) = (None, None);
        }
        let faults = [
            self.unfit,
            self.foreign_stop,
            self.storage,
            self.network,
            self.import,
            self.guest,
            self.growth,
        ];
        if let Some(fault) = faults.into_iter().flatten().next() {
            return ("False", fault.clone());
        }
        if let Some(restart) = self.restart {
            return ("False", restart);
        }
        if let Some(unknown) = self.unknown {
            return ("Unknown", unknown);
        }
        if let Some(why) = self.guest_paused.or(self.left_alone) {
            return ("False", why);
        }
        match phase {
            Phase::Running if !self.is_to_run || self.is_stopping => (
                "False",
                Fault::new("Stopping", "the guest is shutting down"),
            ),
            Phase::Running => match self.probe {
                Some(fault) => ("False", fault),
                None => ("True", Fault::new("Running", "the guest runs")),
            },
            Phase::Stopped if !self.is_starting => ("True", stopped(self.is_to_run)),
            Phase::Stopped | Phase::Pending | Phase::Creating | Phase::Failed => {
                let starting = || Fault::new("Creating", "the guest is starting");
                ("False", self.waits_for.unwrap_or_else(starting))
            }
        }
    }
}

/// The guest is off. `itself`: it shut itself down although the Machine is to run.
fn stopped(itself: bool) -> Fault {
    if !itself {
        return Fault::new("Stopped", "the guest is off");
    }
    let message = format!(
        "the guest shut itself down and stays off: set the annotation {} to a new text to start it",
        names::ANNOTATION_RESTART_REQUESTED
    );
    Fault::new("Stopped", message)
}

/// The guest is being restarted. `cause`: why it is started again; `None`: as requested.
pub fn restarting(cause: Option<&str>) -> Fault {
    let message = match cause {
        Some(cause) => format!("the guest is started again: {cause}"),
        None => "the guest is restarted, as requested".to_owned(),
    };
    Fault::new("Restarting", message)
}

/// The guest runs, and its readiness probe does not succeed. `why`: what the probe shows, and what to do.
pub fn readiness_probe_fails(why: &str) -> Fault {
    let message = format!("the guest runs, and its readiness probe does not succeed: {why}");
    Fault::new("ReadinessProbeFailing", message)
}

/// The status of a Machine whose state cannot be observed: `Ready` is unknown for this reason, and everything else is as it
/// was observed last. `conditions`: those that do not depend on the observation. Without `Normalized` among them, nobody has
/// checked the spec, so its generation counts as not observed.
pub fn last_known(machine: &Machine, mut conditions: Conditions<'_>, why: &Fault) -> MachineStatus {
    let is_checked = conditions.list.iter().any(|it| it.kind == "Normalized");
    let generation = if is_checked {
        machine.generation()
    } else {
        machine.status.observed_generation
    };
    conditions.set_paused();
    for kind in TYPES {
        let is_set = conditions.list.iter().any(|it| it.kind == kind);
        if !is_set && !matches!(kind, "Ready" | "Paused") {
            conditions.keep(kind);
        }
    }
    conditions.set("Ready", "Unknown", why);
    MachineStatus {
        conditions: conditions.list,
        observed_generation: generation,
        ..machine.status.clone()
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;
    use crate::fixtures;
    use crate::plan::Now;

    /// Everything that keeps a Machine from being ready, from the `first` on.
    fn from(first: usize, faults: &[Fault]) -> ReadyInputs<'_> {
        let fault = |number: usize| faults.get(number).filter(|_| number >= first);
        let owned = |number: usize| fault(number).cloned();
        ReadyInputs {
            unfit: fault(0),
            foreign_stop: fault(1),
            storage: fault(2),
            network: fault(3),
            import: fault(4),
            guest: fault(5),
            growth: fault(6),
            restart: owned(7),
            unknown: owned(8),
            guest_paused: owned(9),
            left_alone: owned(10),
            is_to_run: true,
            is_stopping: first <= 11,
            probe: owned(12),
            is_starting: false,
            waits_for: None,
        }
    }

    #[test]
    fn of_several_reasons_the_first_is_named() {
        let reasons = [
            "Unfit",
            "ForeignStop",
            "Storage",
            "Network",
            "Import",
            "Guest",
            "Growth",
            "Restarting",
            "Unknown",
            "GuestPaused",
            "LeftAlone",
            "Stopping",
            "Probe",
        ];
        let faults = reasons.map(|reason| Fault::new(reason, "why"));
        let machine = fixtures::machine(fixtures::block());
        for (first, reason) in reasons.into_iter().enumerate() {
            let (status, why) = from(first, &faults).verdict(&machine, Phase::Running);
            let expected = if reason == "Unknown" {
                "Unknown"
            } else {
                "False"
            };
            assert_eq!((status, why.reason()), (expected, reason));
        }
        let (status, why) = from(13, &faults).verdict(&machine, Phase::Running);
        assert_eq!((status, why.reason()), ("True", "Running"));
    }

    #[test]
    fn a_guest_that_is_off_is_ready_unless_it_starts() {
        let machine = fixtures::machine(fixtures::block());
        let verdict = |phase, is_starting, waits_for: Option<Fault>| {
            let inputs = ReadyInputs {
                is_starting,
                waits_for,
                ..ReadyInputs::default()
            };
            let (status, why) = inputs.verdict(&machine, phase);
            (status, why.reason())
        };
        let unbound = || Some(Fault::new("PVCPending", "why"));
        assert_eq!(verdict(Phase::Stopped, false, None), ("True", "Stopped"));
        assert_eq!(verdict(Phase::Stopped, true, None), ("False", "Creating"));
        assert_eq!(verdict(Phase::Creating, false, None), ("False", "Creating"));
        let waits = verdict(Phase::Creating, false, unbound());
        assert_eq!(waits, ("False", "PVCPending"));
    }

    #[test]
    fn of_an_unknown_machine_everything_but_ready_and_paused_stays() {
        let now = Now(OffsetDateTime::UNIX_EPOCH);
        let mut machine = fixtures::machine(fixtures::block());
        machine.status = fixtures::ready("True", "Running");
        let others = [
            "Normalized",
            "AgentConnected",
            "Paused",
            "example.org/Audited",
        ];
        for kind in others {
            let mut other = machine.status.conditions[0].clone();
            other.kind = kind.into();
            machine.status.conditions.push(other);
        }
        let mut known = Conditions::new(&machine, now);
        known.set("Normalized", "False", &Fault::new("Stale", "why"));
        let status = last_known(&machine, known, &Fault::new("HostUnreachable", "why"));
        let conditions = status.conditions.iter();
        let found: Vec<_> = conditions
            .map(|it| (&*it.kind, &*it.status, &*it.reason))
            .collect();
        let expected = [
            ("Normalized", "False", "Stale"),
            ("AgentConnected", "True", "Running"),
            ("Ready", "Unknown", "HostUnreachable"),
        ];
        assert_eq!(found, expected);
    }
}
