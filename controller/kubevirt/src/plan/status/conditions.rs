//! What each condition tells.

use common::api::choice::{Phase, PowerState};
use common::api::status::PendingChange;

use super::Facts;
use super::live::{FAILURES, Live};
use crate::objects::{ForeignCondition, told};
use crate::plan::pending::RESTART;
use controller_core::conditions::{Fault, Verdict};

pub(super) fn storage(facts: &Facts<'_>) -> Verdict {
    if let Some(fault) = &facts.storage.fault {
        return ("False", fault.clone());
    }
    if let Some(told) = &facts.import {
        return ("False", told.clone());
    }
    if !facts.pending.is_empty() {
        let message = format!(
            "waiting for PersistentVolumeClaim {} to be bound; its events tell what it waits for",
            facts.pending.join(", ")
        );
        return ("False", Fault::new("PVCPending", message));
    }
    if let Some(fixed) = &facts.sizes.fixed {
        return ("False", fixed.clone());
    }
    let growing = &facts.sizes.growing;
    if growing.is_empty() {
        return ("True", Fault::new("PVCBound", "every disk has its volume"));
    }
    ("True", Fault::new("PVCResizing", growing.join("; ")))
}

pub(super) fn virtual_machine(facts: &Facts<'_>, live: &Live<'_>) -> Verdict {
    if let Some(fault) = &facts.guest.fault {
        return ("False", fault.clone());
    }
    let Some(vm) = live.vm else {
        let blocker = facts
            .storage
            .fault
            .as_ref()
            .or(facts.network.fault.as_ref())
            .or(facts.import.as_ref());
        return match blocker {
            Some(fault) => (
                "False",
                Fault::new(
                    fault.reason(),
                    "no VirtualMachine yet: its storage or network is not there",
                ),
            ),
            None if facts.makes_vm => ("True", created()),
            None => ("False", Fault::new("VMFailed", "no VirtualMachine yet")),
        };
    };
    let status = vm.status.printable_status.as_str();
    if status == "ErrorUnschedulable" {
        let conditions = live
            .instance
            .map_or(&[][..], |instance| &instance.status.conditions);
        let why = told(conditions, "PodScheduled", "False").map_or("", |told| &told.message);
        let message = format!(
            "no node can run the guest: add nodes, free resources, or wish for less CPU, memory or fewer node labels. {why}"
        );
        return (
            "False",
            Fault::new("InsufficientResources", message.trim_end().to_owned()),
        );
    }
    if FAILURES.contains(&status) {
        let why = told(&vm.status.conditions, "Failure", "True").map_or("", |told| &told.message);
        let message = format!("KubeVirt says {status}: {why}");
        let message = message.trim_end_matches([':', ' ']).to_owned();
        return ("False", Fault::new("VMFailed", message));
    }
    ("True", created())
}

/// Whether a restart is what brings a change into effect.
pub(super) fn is_for_a_restart(change: &PendingChange) -> bool {
    change.action == RESTART
}

/// Names our fields, or what KubeVirt says when none of them differs.
pub(super) fn restart_required(
    changes: &[PendingChange],
    told: Option<&ForeignCondition>,
) -> Fault {
    let changes = changes.iter().filter(|change| is_for_a_restart(change));
    let fields: Vec<_> = changes.map(|change| change.field.as_str()).collect();
    let why = match told.filter(|_| fields.is_empty()) {
        Some(told) => told.message.clone(),
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
    Fault::new("VMCreated", "the VirtualMachine is there")
}

pub(super) fn ready(
    facts: &Facts<'_>,
    live: &Live<'_>,
    phase: Phase,
    virtual_machine: &Verdict,
) -> Verdict {
    let faults = [
        facts.unfit.as_ref(),
        facts.storage.fault.as_ref(),
        facts.network.fault.as_ref(),
        facts.import.as_ref().filter(|_| live.vm.is_none()),
        (virtual_machine.0 == "False" && !facts.paused).then_some(&virtual_machine.1),
        facts.sizes.fixed.as_ref(),
    ];
    if let Some(fault) = faults.into_iter().flatten().next() {
        return ("False", fault.clone());
    }
    let running = facts
        .block
        .is_some_and(|block| block.power_state == PowerState::Running);
    let restart = facts.restart.as_ref();
    if running && restart.is_some_and(|restart| restart.replaces.is_some()) {
        return (
            "False",
            Fault::new("Restarting", "the guest is restarted, as was asked"),
        );
    }
    let status = live.vm.map_or("", |vm| vm.status.printable_status.as_str());
    if status == "Unknown" {
        return (
            "Unknown",
            Fault::new("Unknown", "KubeVirt has lost touch with the guest's node"),
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
        Phase::Stopped => ("True", Fault::new("Stopped", "the guest is off")),
        Phase::Pending | Phase::Creating | Phase::Failed if facts.pending.is_empty() => {
            ("False", Fault::new("Creating", "the guest is starting"))
        }
        Phase::Pending | Phase::Creating | Phase::Failed => {
            ("False", Fault::new("Creating", "the disks are being made"))
        }
    }
}
