//! The status: phase and conditions from what is wished and what KubeVirt says.
//!
//! A condition that is not met names its cause and what to do about it. `Ready` takes the reason of
//! the first one that is not met, in the order in which a person would mend them.

mod conditions;
mod live;

use common::api::normalized::Normalized;
use common::api::status::{LastRestart, MachineStatus};
use common::render::kubevirt::types::Template;

use self::conditions::{
    agent_connected, is_for_a_restart, ready, restart_required, storage, virtual_machine,
};
use self::live::{Live, phase, volumes};
use super::pending::pending;
use super::storage::Sizes;
use super::{Action, Observed, Plan};
use crate::objects::told;
use controller_core::conditions::{Conditions, Fault, Outcome, network, normalized, paused};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;
use controller_core::status::plan_with_status;

/// What the plan found out.
#[derive(Debug, Default)]
pub(super) struct Facts<'a> {
    pub(super) block: Option<&'a Normalized>,
    /// Why there is no block to act on.
    pub(super) unfit: Option<Fault>,
    pub(super) network: Outcome,
    pub(super) storage: Outcome,
    pub(super) guest: Outcome,
    /// The guest that is wished, where the VirtualMachine is made of it.
    pub(super) wish: Option<Template>,
    /// What is told of an image that is not there yet.
    pub(super) import: Option<Fault>,
    /// What is to be remembered of a restart, when that was looked at.
    pub(super) restart: Option<LastRestart>,
    /// Claims that are not bound yet.
    pub(super) pending: Vec<String>,
    /// Volumes that do not have their size yet.
    pub(super) sizes: Sizes,
    /// Whether this plan makes the VirtualMachine.
    pub(super) makes_vm: bool,
    pub(super) paused: bool,
}

/// The plan with the status that goes with it.
pub(super) fn report(
    machine: &Machine,
    observed: &Observed,
    now: Now,
    facts: &Facts<'_>,
    actions: Vec<Action>,
) -> Plan {
    let live = Live::of(machine, observed, &actions);
    let phase = phase(machine, facts, &live);
    let mut conditions = Conditions::new(machine, now);
    let virtual_machine = virtual_machine(facts, &live);
    if let Some(fault) = &facts.unfit {
        conditions.set("Normalized", "False", fault);
    } else {
        conditions.set(
            "Normalized",
            "True",
            &normalized(facts.block, observed.template.as_deref()),
        );
    }
    if facts.block.is_some() {
        let storage = storage(facts);
        conditions.set("StorageReady", storage.0, &storage.1);
        let network = network(&facts.network);
        conditions.set("NetworkReady", network.0, &network.1);
        conditions.set("VirtualMachineReady", virtual_machine.0, &virtual_machine.1);
    }
    let restart = live
        .vm
        .and_then(|vm| told(&vm.status.conditions, "RestartRequired", "True"));
    let mut pending_changes = Vec::new();
    if let (Some(instance), Some(wish)) = (live.instance, &facts.wish) {
        pending_changes = pending(instance, wish, restart.is_some());
    }
    if restart.is_some() || pending_changes.iter().any(is_for_a_restart) {
        let told = restart_required(&pending_changes, restart);
        conditions.set("RestartRequired", "True", &told);
    }
    if live.has_agent() {
        conditions.set("AgentConnected", "True", &agent_connected());
    }
    if facts.paused {
        conditions.set("Paused", "True", &paused());
    }
    let ready = ready(facts, &live, phase, &virtual_machine);
    conditions.set("Ready", ready.0, &ready.1);

    let status = MachineStatus {
        phase: Some(phase),
        conditions: conditions.list,
        observed_generation: machine.generation(),
        vm_name: (live.vm.is_some() || facts.makes_vm).then(|| machine.name().to_owned()),
        volumes: facts
            .block
            .map(|block| volumes(machine, block, observed, &actions))
            .unwrap_or_default(),
        pending_changes,
        last_restart: facts
            .restart
            .clone()
            .or_else(|| machine.status.last_restart.clone()),
        ..live.addresses(machine)
    };
    plan_with_status(machine, now, status, actions)
}

/// The status of a Machine under deletion, as far as it is known better than the last one written.
pub(super) fn under_deletion(machine: &Machine, observed: &Observed) -> MachineStatus {
    let live = Live::of(machine, observed, &[]);
    MachineStatus {
        vmi_name: live.instance.map(|_| machine.name().to_owned()),
        ..machine.status.clone()
    }
}
