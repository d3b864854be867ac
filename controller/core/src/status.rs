//! When a status is worth a write.

use std::time::Duration;

use common::api::choice::Phase;
use common::api::status::MachineStatus;

use crate::conditions::{TYPES, ready};
use crate::machine::Machine;
use crate::plan::{Now, Plan};

/// While a Machine is created its progress is written at most this often: a claim that is bound just before the guest
/// starts is not worth a write of its own.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// A plan with these actions, and with the status if it differs from the Machine's in more than times.
///
/// While the Machine is `Creating`, a status with the same `Ready` condition is held back until 2 s after the last
/// write; the plan then requests a pass at that time.
pub fn plan_with_status<A>(
    machine: &Machine,
    now: Now,
    mut status: MachineStatus,
    actions: Vec<A>,
) -> Plan<A> {
    let old = &machine.status;
    if without_times(&status) == without_times(old) {
        return Plan {
            actions,
            ..Plan::default()
        };
    }
    let progress = status.phase == Some(Phase::Creating)
        && old.phase == status.phase
        && old.observed_generation == status.observed_generation
        && ready(&status) == ready(old);
    if progress && let Some(wait) = now.until(old.last_updated.as_deref(), PROGRESS_INTERVAL) {
        return Plan {
            actions,
            requeue_after: Some(wait),
            ..Plan::default()
        };
    }
    status.last_updated = Some(now.text());
    status
        .resource_version
        .clone_from(&machine.metadata.resource_version);
    Plan {
        actions,
        status: Some(status),
        ..Plan::default()
    }
}

/// A status without times and versions, which change with every write, and without conditions of other writers.
fn without_times(status: &MachineStatus) -> MachineStatus {
    let mut status = status.clone();
    status.last_updated = None;
    status.resource_version = None;
    status
        .conditions
        .retain(|condition| TYPES.contains(&condition.kind.as_str()));
    for condition in &mut status.conditions {
        condition.last_transition_time = String::new();
    }
    status.conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    status
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;
    use crate::fixtures;

    fn at(seconds: i64) -> Now {
        Now(OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(seconds))
    }

    /// The Machine after this status was written at second 0.
    fn written(mut status: MachineStatus) -> Machine {
        let mut machine = fixtures::machine(fixtures::block());
        status.last_updated = Some(at(0).text());
        machine.status = status;
        machine
    }

    fn creating() -> MachineStatus {
        MachineStatus {
            phase: Some(Phase::Creating),
            ..fixtures::ready("False", "Creating")
        }
    }

    fn plan(machine: &Machine, now: Now, status: MachineStatus) -> Plan<&'static str> {
        plan_with_status(machine, now, status, vec!["act"])
    }

    #[test]
    fn times_versions_and_foreign_conditions_are_not_worth_a_write() {
        let machine = written(creating());
        let mut status = creating();
        status.conditions[0].last_transition_time = at(9).text();
        status.resource_version = Some("7".into());
        let mut foreign = status.conditions[0].clone();
        foreign.kind = "example.org/Audited".into();
        status.conditions.push(foreign);
        let plan = plan(&machine, at(9), status);
        assert_eq!((plan.status, plan.actions), (None, vec!["act"]));
    }

    #[test]
    fn progress_while_creating_is_written_at_most_every_two_seconds() {
        let machine = written(creating());
        let mut status = creating();
        status.vm_name = Some("web".into());
        let early = plan(&machine, at(1), status.clone());
        assert_eq!(early.status, None);
        assert_eq!(early.requeue_after, Some(Duration::from_secs(1)));
        assert_eq!(early.actions, ["act"]);
        let due = plan(&machine, at(2), status).status.unwrap();
        assert_eq!(due.last_updated, Some(at(2).text()));
    }

    #[test]
    fn a_change_of_ready_or_phase_is_written_at_once() {
        let machine = written(creating());
        for status in [
            MachineStatus {
                phase: Some(Phase::Running),
                ..creating()
            },
            MachineStatus {
                phase: Some(Phase::Creating),
                ..fixtures::ready("False", "PVCPending")
            },
        ] {
            let plan = plan(&machine, at(0), status);
            assert!(plan.status.is_some() && plan.requeue_after.is_none());
        }
    }
}
