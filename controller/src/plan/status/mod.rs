//! The status: phase and conditions from what is wished and what KubeVirt says.
//!
//! A condition that is not met names its cause and what to do about it. `Ready` takes the reason of
//! the first one that is not met, in the order in which a person would mend them.

mod conditions;
mod live;

use std::time::Duration;

use common::api::choice::Phase;
use common::api::normalized::Normalized;
use common::api::status::{Condition, LastRestart, MachineStatus};
use common::names;
use common::render::kubevirt::types::Template;

use self::conditions::{
    agent_connected, is_for_a_restart, network, normalized, ready, restart_required, storage,
    virtual_machine,
};
use self::live::{Live, phase, volumes};
use super::pending::pending;
use super::storage::Sizes;
use super::{Action, Now, Observed, Plan};
use crate::machine::Machine;
use crate::objects::{Meta as _, told};

/// While a Machine is being created its progress is written at most this often: a claim that binds
/// a moment before the guest starts is worth no write of its own.
const PROGRESS_PAUSE: Duration = Duration::from_secs(2);

/// Why something is not as wished, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    reason: &'static str,
    message: String,
}

impl Fault {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    pub(super) fn reason(&self) -> &'static str {
        self.reason
    }
}

/// Whether something is as wished. The first fault found is the one that is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) fault: Option<Fault>,
}

impl From<Fault> for Outcome {
    fn from(fault: Fault) -> Self {
        Self { fault: Some(fault) }
    }
}

impl Outcome {
    pub(super) fn worsen(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }
}

/// What the plan found out.
#[derive(Debug, Default)]
pub(super) struct Facts<'a> {
    pub(super) block: Option<&'a Normalized>,
    /// Why there is no block to act on.
    pub(super) unfit: Option<Fault>,
    /// Why somebody else has to act on it.
    pub(super) elsewhere: Option<Fault>,
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
        conditions.set("Normalized", "True", &normalized(facts, observed));
    }
    if facts.block.is_some() && facts.elsewhere.is_none() {
        let storage = storage(facts);
        conditions.set("StorageReady", storage.0, &storage.1);
        let network = network(facts);
        conditions.set("NetworkReady", network.0, &network.1);
        conditions.set("VirtualMachineReady", virtual_machine.0, &virtual_machine.1);
    }
    if let Some(fault) = &facts.elsewhere {
        conditions.set("VirtualMachineReady", "False", fault);
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
        let message = format!(
            "the Machine is observed only: remove the annotation {} to go on",
            names::ANNOTATION_PAUSED
        );
        conditions.set("Paused", "True", &Fault::new("Paused", message));
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
    finish(machine, now, status, actions)
}

/// The plan of a Machine whose deletion waits for something.
pub(super) fn deleting(machine: &Machine, observed: &Observed, now: Now, message: String) -> Plan {
    let mut conditions = Conditions::new(machine, now);
    for old in &machine.status.conditions {
        if OURS.contains(&old.kind.as_str()) && old.kind != "Ready" {
            conditions.list.push(old.clone());
        }
    }
    conditions.set("Ready", "False", &Fault::new("Deleting", message));
    let live = Live::of(machine, observed, &[]);
    let status = MachineStatus {
        conditions: conditions.list,
        observed_generation: machine.generation(),
        vmi_name: live.instance.map(|_| machine.name().to_owned()),
        ..machine.status.clone()
    };
    finish(machine, now, status, vec![])
}

/// Decides whether the status is worth a write, and dates it.
fn finish(machine: &Machine, now: Now, mut status: MachineStatus, actions: Vec<Action>) -> Plan {
    let old = &machine.status;
    if undated(&status) == undated(old) {
        return Plan {
            actions,
            ..Plan::default()
        };
    }
    let progress = status.phase == Some(Phase::Creating)
        && old.phase == status.phase
        && old.observed_generation == status.observed_generation
        && verdict(&status) == verdict(old);
    if progress && let Some(wait) = now.until(old.last_updated.as_deref(), PROGRESS_PAUSE) {
        return Plan {
            actions,
            status: None,
            again: Some(wait),
        };
    }
    status.last_updated = Some(now.text());
    status
        .resource_version
        .clone_from(&machine.metadata.resource_version);
    Plan {
        actions,
        status: Some(status),
        again: None,
    }
}

/// Status and reason of `Ready`.
pub(crate) fn verdict(status: &MachineStatus) -> Option<(&str, &str)> {
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.kind == "Ready")?;
    Some((&ready.status, &ready.reason))
}

/// The conditions this controller writes.
const OURS: [&str; 8] = [
    "Ready",
    "Normalized",
    "StorageReady",
    "NetworkReady",
    "VirtualMachineReady",
    "RestartRequired",
    "AgentConnected",
    "Paused",
];

/// A status without what changes by itself, and without other writers' conditions.
fn undated(status: &MachineStatus) -> MachineStatus {
    let mut status = status.clone();
    status.last_updated = None;
    status.resource_version = None;
    status
        .conditions
        .retain(|condition| OURS.contains(&condition.kind.as_str()));
    for condition in &mut status.conditions {
        condition.last_transition_time = String::new();
    }
    status.conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    status
}

/// The conditions of a new status.
struct Conditions<'a> {
    machine: &'a Machine,
    now: Now,
    list: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    fn new(machine: &'a Machine, now: Now) -> Self {
        Self {
            machine,
            now,
            list: Vec::new(),
        }
    }

    /// Sets a condition; its time is that of the last change of its status.
    fn set(&mut self, kind: &str, status: &str, why: &Fault) {
        let old = self
            .machine
            .status
            .conditions
            .iter()
            .find(|old| old.kind == kind);
        let since = match old {
            Some(old) if old.status == status => old.last_transition_time.clone(),
            _ => self.now.text(),
        };
        self.list.push(Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: why.reason.to_owned(),
            message: why.message.clone(),
            last_transition_time: since,
            observed_generation: self.machine.generation(),
        });
    }
}
