//! When a status is worth a write.

use std::time::Duration;

use common::api::choice::Phase;
use common::api::status::{InterfaceStatus, MachineStatus};

use crate::conditions::{TYPES, ready};
use crate::machine::Machine;
use crate::plan::{Now, Plan};

/// While a Machine is created its progress is written at most this often: a claim that is bound just before the guest
/// starts is not worth a write of its own.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Reasons of a `Ready` that is not true which are progress of a creation. All others are written at once.
const PROGRESS: [&str; 2] = ["Creating", "PVCPending"];

/// A plan with these actions, and with the status if it differs from the Machine's in more than times. The last restart,
/// migration and reset stay as they are unless the status has another one.
///
/// While the Machine is `Creating`, a status whose `Ready` is the same, or progress like the last, is held back until
/// 2 s after the last write; the plan then requests a pass at that time.
pub(crate) fn plan_with_status<A>(
    machine: &Machine,
    now: Now,
    status: MachineStatus,
    actions: Vec<A>,
) -> Plan<A> {
    let old = &machine.status;
    let mut status = with_held_addresses(status, machine).within_limits();
    let block = machine.desired();
    status.vcpus = block.map(|block| block.cpu.vcpus()).or(old.vcpus);
    status.last_restart = status.last_restart.or_else(|| old.last_restart.clone());
    status.last_migration = status.last_migration.or_else(|| old.last_migration.clone());
    status.last_reset = status.last_reset.or_else(|| old.last_reset.clone());
    if worth_a_write(old, &status) == worth_a_write(old, old) {
        return Plan {
            actions,
            ..Plan::default()
        };
    }
    let progress = status.phase == Some(Phase::Creating)
        && old.phase == status.phase
        && old.observed_generation == status.observed_generation
        && (ready(&status) == ready(old) || (is_progress(&status) && is_progress(old)));
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

/// The status with the addresses that the Machine holds, beside those that its guest reports. Cards that the guest does
/// not have yet are added in the order of the spec.
fn with_held_addresses(mut status: MachineStatus, machine: &Machine) -> MachineStatus {
    let held = &machine.addresses.held;
    for interface in &mut status.network_interfaces {
        let addresses = held.get(&interface.name).into_iter().flatten();
        interface.allocated_addresses = addresses.map(|it| it.address.to_string()).collect();
    }
    status.network_interfaces.retain(|it| {
        let is_of_guest = it.mac_address.is_some() || !it.ip_addresses.is_empty();
        is_of_guest || !it.allocated_addresses.is_empty()
    });
    let cards = machine.desired().into_iter().flat_map(|it| &it.networks);
    for card in cards {
        let mut listed = status.network_interfaces.iter();
        let Some(addresses) = held
            .get(&card.name)
            .filter(|_| !listed.any(|it| it.name == card.name))
        else {
            continue;
        };
        let addresses = addresses.iter().map(|it| it.address.to_string());
        status.network_interfaces.push(InterfaceStatus {
            name: card.name.clone(),
            mac_address: None,
            allocated_addresses: addresses.collect(),
            ip_addresses: vec![],
        });
    }
    status
}

/// Whether the Machine is being created and nothing is known to be wrong.
fn is_progress(status: &MachineStatus) -> bool {
    ready(status).is_some_and(|(met, reason)| met == "False" && PROGRESS.contains(&reason))
}

/// A status without times and versions, which change with every write, and without conditions of other writers. The
/// number of vCPUs, which earlier releases did not write, is left to the next write of something else; so are the names
/// of the instance and the node of a guest that does not run yet.
fn worth_a_write(old: &MachineStatus, status: &MachineStatus) -> MachineStatus {
    let mut status = status.clone();
    status.last_updated = None;
    status.resource_version = None;
    status.vcpus = old.vcpus.and(status.vcpus);
    if status.phase == Some(Phase::Creating) {
        status.vmi_name.clone_from(&old.vmi_name);
        status.node_name.clone_from(&old.node_name);
    }
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
    use serde_json::json;
    use time::OffsetDateTime;

    use super::*;
    use crate::fixtures;
    use crate::machine::Block;

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
    fn vcpus_are_written_with_something_else_and_when_they_change() {
        let machine = written(creating());
        assert_eq!(plan(&machine, at(9), creating()).status, None);
        let ready = fixtures::ready("True", "Running");
        let status = plan(&machine, at(9), ready).status.unwrap();
        assert_eq!(status.vcpus, Some(2));
        let mut machine = written(status.clone());
        if let Block::Matching(block) = &mut machine.block {
            block.cpu.sockets = 4;
        }
        let vcpus = plan(&machine, at(9), status).status.unwrap().vcpus;
        assert_eq!(vcpus, Some(8));
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
    fn a_bound_claim_is_progress_and_the_node_of_a_starting_guest_is_no_write_of_its_own() {
        let waiting = MachineStatus {
            phase: Some(Phase::Creating),
            ..fixtures::ready("False", "PVCPending")
        };
        let machine = written(waiting);
        assert_eq!(plan(&machine, at(1), creating()).status, None);
        assert!(plan(&machine, at(2), creating()).status.is_some());

        let machine = written(creating());
        let placed = MachineStatus {
            vmi_name: Some("web".into()),
            node_name: Some("node-1".into()),
            ..creating()
        };
        assert_eq!(plan(&machine, at(9), placed.clone()).status, None);
        let runs = MachineStatus {
            phase: Some(Phase::Running),
            ..placed
        };
        let status = plan(&machine, at(9), runs).status.unwrap();
        assert_eq!(status.node_name.as_deref(), Some("node-1"));
    }

    /// A release that had no limits wrote more, and a domain that somebody edited has more cards than a spec can have.
    #[test]
    fn lists_are_cut_to_what_the_crd_accepts() {
        let many = MachineStatus {
            ip_addresses: (0..70).map(|number| format!("10.0.0.{number}")).collect(),
            network_interfaces: vec![
                InterfaceStatus {
                    name: "eth0".into(),
                    mac_address: None,
                    allocated_addresses: vec![],
                    ip_addresses: vec!["10.0.0.1".into(); 70],
                };
                40
            ],
            ..fixtures::ready("True", "Running")
        };
        let machine = written(many.clone());
        let status = plan(&machine, at(9), many).status.unwrap();
        assert_eq!(status.ip_addresses.len(), 64);
        assert_eq!(status.ip_addresses[63], "10.0.0.63");
        assert_eq!(status.network_interfaces.len(), 32);
        assert_eq!(status.network_interfaces[0].ip_addresses.len(), 64);
        let rewritten = written(status.clone());
        assert_eq!(plan(&rewritten, at(9), status).status, None);
    }

    #[test]
    fn the_last_restart_migration_and_reset_stay_until_there_is_another_one() {
        let of = |request: &str| MachineStatus {
            last_restart: serde_json::from_value(json!({"request": request})).unwrap(),
            last_migration: serde_json::from_value(json!({"request": request})).unwrap(),
            last_reset: serde_json::from_value(json!({"request": request})).unwrap(),
            ..fixtures::ready("True", "Running")
        };
        let machine = written(of("first"));
        let running = fixtures::ready("True", "Running");
        assert_eq!(plan(&machine, at(9), running).status, None);
        let status = plan(&machine, at(9), of("second")).status.unwrap();
        assert_eq!(status.last_restart.unwrap().request, "second");
        assert_eq!(status.last_migration.unwrap().request, "second");
        assert_eq!(status.last_reset.unwrap().request, "second");
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
                ..fixtures::ready("False", "StorageClassNotFound")
            },
        ] {
            let plan = plan(&machine, at(0), status);
            assert!(plan.status.is_some() && plan.requeue_after.is_none());
        }
    }
}
