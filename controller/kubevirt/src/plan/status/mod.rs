//! The status: phase and conditions, from the desired state and what KubeVirt reports.
//!
//! A condition that is not met names its cause and what to do about it. `Ready` takes the reason of the first one that
//! is not met, in the order in which a person would fix them.

mod conditions;
pub(super) mod inputs;
mod live;

use common::api::status::MachineStatus;

use self::conditions::{
    agent_connected, is_for_a_restart, ready, restart_required, storage, virtual_machine,
};
use self::inputs::StatusInputs;
use self::live::{LiveGuest, phase, volumes};
use super::action::{Action, Plan};
use super::observed::Observed;
use super::pending::pending;
use crate::objects::find_condition;
use controller_core::conditions::{Conditions, network, normalized, paused};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use controller_core::status::plan_with_status;

/// Adds the status to a plan with these actions.
pub(super) fn report(
    machine: &Machine,
    observed: &Observed,
    now: Now,
    inputs: &StatusInputs<'_>,
    actions: Vec<Action>,
) -> Plan {
    let live = LiveGuest::of(machine, observed, &actions);
    let phase = phase(machine, inputs, &live);
    let mut conditions = Conditions::new(machine, now);
    let virtual_machine = virtual_machine(inputs, &live);
    if let Some(fault) = &inputs.unfit {
        conditions.set("Normalized", "False", fault);
    } else {
        conditions.set(
            "Normalized",
            "True",
            &normalized(inputs.block, observed.template.as_deref()),
        );
    }
    if inputs.block.is_some() {
        let storage = storage(inputs);
        conditions.set("StorageReady", storage.0, &storage.1);
        let network = network(&inputs.network);
        conditions.set("NetworkReady", network.0, &network.1);
        conditions.set("VirtualMachineReady", virtual_machine.0, &virtual_machine.1);
    }
    let restart = live
        .vm
        .and_then(|vm| find_condition(&vm.status.conditions, "RestartRequired", "True"));
    let mut pending_changes = Vec::new();
    if let (Some(instance), Some(desired)) = (live.instance, &inputs.desired) {
        pending_changes = pending(instance, desired, restart.is_some());
    }
    if restart.is_some() || pending_changes.iter().any(is_for_a_restart) {
        let required = restart_required(&pending_changes, restart);
        conditions.set("RestartRequired", "True", &required);
    }
    if live.has_agent() {
        conditions.set("AgentConnected", "True", &agent_connected());
    }
    if inputs.paused {
        conditions.set("Paused", "True", &paused());
    }
    let ready = ready(inputs, &live, phase, &virtual_machine);
    conditions.set("Ready", ready.0, &ready.1);

    let status = MachineStatus {
        phase: Some(phase),
        conditions: conditions.list,
        observed_generation: machine.generation(),
        vm_name: (live.vm.is_some() || inputs.makes_vm).then(|| machine.name().to_owned()),
        volumes: inputs
            .block
            .map(|block| volumes(machine, block, observed, &actions))
            .unwrap_or_default(),
        pending_changes,
        last_restart: inputs
            .restart
            .clone()
            .or_else(|| machine.status.last_restart.clone()),
        ..live.addresses(machine)
    };
    plan_with_status(machine, now, status, actions)
}

/// The last status written, updated by what was observed of a Machine under deletion.
pub(super) fn under_deletion(machine: &Machine, observed: &Observed) -> MachineStatus {
    let live = LiveGuest::of(machine, observed, &[]);
    MachineStatus {
        vmi_name: live.instance.map(|_| machine.name().to_owned()),
        ..machine.status.clone()
    }
}
