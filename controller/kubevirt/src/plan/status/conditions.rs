//! Status, reason and message of each condition.

use common::api::choice::{Choice as _, PendingAction, Phase, PowerState};
use common::api::status::PendingChange;

use super::inputs::StatusInputs;
use super::live::{FAILURES, LiveGuest};
use crate::objects::{ForeignCondition, find_condition};
use controller_core::conditions::{Fault, Verdict, stopped};

pub(super) fn storage(inputs: &StatusInputs<'_>) -> Verdict {
    if let Some(fault) = &inputs.storage.fault {
        return ("False", fault.clone());
    }
    if let Some(fault) = &inputs.import {
        return ("False", fault.clone());
    }
    if !inputs.pending.is_empty() {
        let message = format!(
            "waiting for PersistentVolumeClaim {} to be bound; its events have the cause",
            inputs.pending.join(", ")
        );
        return ("False", Fault::new("PVCPending", message));
    }
    if let Some(fixed) = &inputs.sizes.fixed {
        return ("False", fixed.clone());
    }
    let growing = &inputs.sizes.growing;
    if growing.is_empty() {
        return ("True", Fault::new("PVCBound", "every disk has its volume"));
    }
    ("True", Fault::new("PVCResizing", growing.join("; ")))
}

pub(super) fn virtual_machine(inputs: &StatusInputs<'_>, live: &LiveGuest<'_>) -> Verdict {
    if let Some(fault) = &inputs.guest.fault {
        return ("False", fault.clone());
    }
    let Some(vm) = live.vm else {
        let blocker = inputs
            .storage
            .fault
            .as_ref()
            .or(inputs.network.fault.as_ref())
            .or(inputs.import.as_ref());
        return match blocker {
            Some(fault) => (
                "False",
                Fault::new(
                    fault.reason(),
                    "no VirtualMachine yet: its storage or network is not ready",
                ),
            ),
            None if inputs.makes_vm => ("True", created()),
            None => ("False", Fault::new("VMFailed", "no VirtualMachine yet")),
        };
    };
    let status = vm.status.printable_status.as_str();
    if status == "ErrorUnschedulable" {
        let conditions = live
            .instance
            .map_or(&[][..], |instance| &instance.status.conditions);
        let why = find_condition(conditions, "PodScheduled", "False")
            .map_or("", |condition| &condition.message);
        let message = format!(
            "no node can run the guest: add nodes, free resources, or request less CPU, memory or fewer node labels. {why}"
        );
        return (
            "False",
            Fault::new("InsufficientResources", message.trim_end().to_owned()),
        );
    }
    if FAILURES.contains(&status) {
        let why = find_condition(&vm.status.conditions, "Failure", "True")
            .map_or("", |condition| &condition.message);
        let message = format!("KubeVirt reports {status}: {why}");
        let message = message.trim_end_matches([':', ' ']).to_owned();
        return ("False", Fault::new("VMFailed", message));
    }
    ("True", created())
}

/// Whether a change takes effect at the next restart.
pub(super) fn is_for_a_restart(change: &PendingChange) -> bool {
    change.action == PendingAction::Restart.as_str()
}

/// Names the changed fields, or quotes KubeVirt if none of ours differs.
pub(super) fn restart_required(
    changes: &[PendingChange],
    reported: Option<&ForeignCondition>,
) -> Fault {
    let changes = changes.iter().filter(|change| is_for_a_restart(change));
    let fields: Vec<_> = changes.map(|change| change.field.as_str()).collect();
    let why = match reported.filter(|_| fields.is_empty()) {
        Some(condition) => condition.message.clone(),
        None => fields.join(", "),
    };
    let cloud_init = if fields.iter().any(|field| field.starts_with("cloudInit")) {
        "; the guest is given the new cloud-init data then, and cloud-init acts on it on a new instance only: run 'cloud-init clean' in the guest before, or create the Machine anew"
    } else {
        ""
    };
    Fault::new(
        "RestartRequired",
        format!("a change takes effect when the guest is restarted: {why}{cloud_init}"),
    )
}

pub(super) fn agent_connected() -> Fault {
    Fault::new("AgentConnected", "the guest agent answers")
}

fn created() -> Fault {
    Fault::new("VMCreated", "the VirtualMachine exists")
}

pub(super) fn ready(
    inputs: &StatusInputs<'_>,
    live: &LiveGuest<'_>,
    phase: Phase,
    virtual_machine: &Verdict,
) -> Verdict {
    let faults = [
        inputs.unfit.as_ref(),
        inputs.storage.fault.as_ref(),
        inputs.network.fault.as_ref(),
        inputs.import.as_ref().filter(|_| live.vm.is_none()),
        (virtual_machine.0 == "False" && !inputs.paused).then_some(&virtual_machine.1),
        inputs.sizes.fixed.as_ref(),
    ];
    if let Some(fault) = faults.into_iter().flatten().next() {
        return ("False", fault.clone());
    }
    let running = inputs
        .block
        .is_some_and(|block| block.power_state == PowerState::Running);
    let restart = inputs.restart.as_ref();
    if running && restart.is_some_and(|restart| restart.replaces.is_some()) {
        return (
            "False",
            Fault::new("Restarting", "the guest is restarted, as requested"),
        );
    }
    let status = live.vm.map_or("", |vm| vm.status.printable_status.as_str());
    if status == "Unknown" {
        return (
            "Unknown",
            Fault::new("Unknown", "KubeVirt cannot reach the guest's node"),
        );
    }
    match phase {
        Phase::Running if status == "Paused" => (
            "False",
            Fault::new(
                "GuestPaused",
                "the guest is paused in KubeVirt: unpause it with virtctl",
            ),
        ),
        Phase::Running if running => ("True", Fault::new("Running", "the guest runs")),
        Phase::Running => (
            "False",
            Fault::new("Stopping", "the guest is shutting down"),
        ),
        Phase::Stopped if running && live.strategy == "Always" => {
            ("False", Fault::new("Creating", "the guest is starting"))
        }
        Phase::Stopped => ("True", stopped(running)),
        Phase::Pending | Phase::Creating | Phase::Failed if inputs.pending.is_empty() => {
            ("False", Fault::new("Creating", "the guest is starting"))
        }
        Phase::Pending | Phase::Creating | Phase::Failed => (
            "False",
            Fault::new("Creating", "the disks are being created"),
        ),
    }
}
