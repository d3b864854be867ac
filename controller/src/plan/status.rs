//! The status: phase and conditions from what is wished and what KubeVirt says.
//!
//! A condition that is not met names its cause and what to do about it. `Ready` takes the reason of
//! the first one that is not met, in the order in which a person would mend them.

use std::time::Duration;

use common::api::choice::{Phase, PowerState};
use common::api::normalized::{Normalized, NormalizedDisk};
use common::api::status::{Condition, InterfaceStatus, MachineStatus, VolumeStatus};
use common::api::template::TemplateContent;
use common::names;

use super::{Action, Now, Observed, Plan};
use crate::machine::Machine;
use crate::objects::{Instance, Meta as _, VirtualMachine, told};

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
    /// Claims that are not bound yet.
    pub(super) pending: Vec<String>,
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
    if let Some(told) = live
        .vm
        .and_then(|vm| told(&vm.status.conditions, "RestartRequired", "True"))
    {
        let message = format!(
            "a change takes effect when the guest is restarted: {}",
            told.message
        );
        conditions.set(
            "RestartRequired",
            "True",
            &Fault::new("RestartRequired", message),
        );
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
const OURS: [&str; 7] = [
    "Ready",
    "Normalized",
    "StorageReady",
    "NetworkReady",
    "VirtualMachineReady",
    "RestartRequired",
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

/// What is there of the guest and belongs to the Machine.
struct Live<'a> {
    vm: Option<&'a VirtualMachine>,
    /// What the VirtualMachine's `runStrategy` is, or is about to be.
    strategy: &'a str,
    instance: Option<&'a Instance>,
}

impl<'a> Live<'a> {
    fn of(machine: &Machine, observed: &'a Observed, actions: &'a [Action]) -> Self {
        let vm = observed.vm.as_deref();
        let set = actions.iter().find_map(|action| match action {
            Action::SetRunStrategy { strategy, .. } => Some(strategy.as_str()),
            Action::UpdateVm(wish) => Some(wish.spec.run_strategy.as_str()),
            _ => None,
        });
        let ours = vm.filter(|vm| vm.belongs_to(machine.name(), machine.uid()));
        let instance = observed.instance.as_deref();
        Self {
            vm: ours,
            strategy: set.unwrap_or(vm.map_or("", |vm| &vm.spec.run_strategy)),
            instance: instance
                .filter(|instance| instance.machine() == Some(machine.name()))
                .filter(|_| vm.is_none() || ours.is_some()),
        }
    }

    /// The status with what KubeVirt tells of a running guest.
    fn addresses(&self, machine: &Machine) -> MachineStatus {
        let Some(instance) = self.instance else {
            return MachineStatus::default();
        };
        let network_interfaces: Vec<_> = instance
            .status
            .interfaces
            .iter()
            .map(|nic| {
                let one = nic
                    .ip_address
                    .iter()
                    .filter(|_| nic.ip_addresses.is_empty());
                let all = nic.ip_addresses.iter().chain(one);
                InterfaceStatus {
                    name: nic.name.clone(),
                    mac_address: nic.mac.clone(),
                    ip_addresses: all.filter(|address| !address.is_empty()).cloned().collect(),
                }
            })
            .collect();
        let mut ip_addresses: Vec<String> = Vec::new();
        for address in network_interfaces.iter().flat_map(|nic| &nic.ip_addresses) {
            if !ip_addresses.contains(address) {
                ip_addresses.push(address.clone());
            }
        }
        MachineStatus {
            vmi_name: Some(machine.name().to_owned()),
            node_name: instance.status.node_name.clone(),
            ip_addresses,
            network_interfaces,
            ..MachineStatus::default()
        }
    }
}

/// The disks that have a claim, those that this plan makes or adopts included: what is made here
/// would be news otherwise as soon as it is seen.
fn volumes(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    actions: &[Action],
) -> Vec<VolumeStatus> {
    let made = |name: &str| {
        actions.iter().any(|action| match action {
            Action::CreateClaim(wish) => wish.metadata.name == name,
            Action::PatchClaim(patch) => patch.name == name,
            _ => false,
        })
    };
    let volume = |disk: &NormalizedDisk| {
        let claim_name = names::claim(machine.name(), &disk.name);
        let claim = observed.claims.get(&claim_name);
        let ours = claim.is_some_and(|claim| claim.belongs_to(machine.name(), machine.uid()));
        if !ours && !made(&claim_name) {
            return None;
        }
        let phase = claim.map_or("", |claim| &claim.status.phase);
        let capacity = claim.and_then(|claim| claim.status.capacity.storage);
        Some(VolumeStatus {
            name: disk.name.clone(),
            claim_name,
            // As Kubernetes begins.
            phase: Some(if phase.is_empty() { "Pending" } else { phase }.to_owned()),
            capacity: capacity.map(|size| size.to_string()),
            progress: None,
        })
    };
    block.disks.iter().filter_map(volume).collect()
}

/// What KubeVirt's one-word state means; words of a newer KubeVirt change nothing.
fn phase(machine: &Machine, facts: &Facts<'_>, live: &Live<'_>) -> Phase {
    let last = machine.status.phase;
    let Some(vm) = live.vm else {
        let faults = [&facts.network, &facts.storage, &facts.guest];
        return match facts.block {
            None => Phase::Pending,
            Some(_) if facts.elsewhere.is_some() || (facts.paused && !facts.makes_vm) => {
                Phase::Pending
            }
            Some(_) if faults.iter().any(|outcome| outcome.fault.is_some()) => Phase::Failed,
            Some(_) => Phase::Creating,
        };
    };
    let last = last.unwrap_or(Phase::Creating);
    match vm.status.printable_status.as_str() {
        "Running" | "Paused" | "Migrating" => Phase::Running,
        "Stopped" => stopped(live, last),
        "ErrorUnschedulable"
        | "Provisioning"
        | "Starting"
        | "WaitingForVolumeBinding"
        | "WaitingForReceiver"
        | "" => Phase::Creating,
        status if FAILURES.contains(&status) => Phase::Failed,
        _ if matches!(last, Phase::Pending | Phase::Failed) => Phase::Creating,
        _ => last,
    }
}

/// States of KubeVirt that do not end by waiting.
const FAILURES: [&str; 5] = [
    "ErrorPvcNotFound",
    "DataVolumeError",
    "CrashLoopBackOff",
    "ErrImagePull",
    "ImagePullBackOff",
];

/// KubeVirt says `Stopped` of a machine that has not been started yet, of one that is off, and of
/// one whose ended instance is still there.
fn stopped(live: &Live<'_>, last: Phase) -> Phase {
    let instance = live.instance;
    let ended = instance.is_none_or(|instance| instance.status.phase == "Succeeded");
    match live.strategy {
        "Halted" if instance.is_none() => Phase::Stopped,
        "Halted" => last,
        // The guest shut itself down, and stays down.
        "RerunOnFailure" if ended && matches!(last, Phase::Running | Phase::Stopped) => {
            Phase::Stopped
        }
        _ => Phase::Creating,
    }
}

type Verdict = (&'static str, Fault);

fn normalized(facts: &Facts<'_>, observed: &Observed) -> Fault {
    let pin = facts.block.and_then(|block| block.template.as_ref());
    let current = observed
        .template
        .as_ref()
        .map(|template| TemplateContent::from(template.spec.clone()));
    match (pin, current) {
        (Some(pin), Some(current)) if pin.content != current => Fault::new(
            "TemplateOutdated",
            format!(
                "MachineTemplate '{}' has changed since this Machine was expanded from it: set the annotation {} to a new text to take it over",
                pin.name,
                names::ANNOTATION_REFRESH_TEMPLATE
            ),
        ),
        _ => Fault::new("Normalized", "the block belongs to the spec"),
    }
}

fn storage(facts: &Facts<'_>) -> Verdict {
    if let Some(fault) = &facts.storage.fault {
        return ("False", fault.clone());
    }
    if facts.pending.is_empty() {
        return ("True", Fault::new("PVCBound", "every disk has its volume"));
    }
    let message = format!(
        "waiting for PersistentVolumeClaim {} to be bound; its events tell what it waits for",
        facts.pending.join(", ")
    );
    ("False", Fault::new("PVCPending", message))
}

fn network(facts: &Facts<'_>) -> Verdict {
    match &facts.network.fault {
        Some(fault) => ("False", fault.clone()),
        None => (
            "True",
            Fault::new("NetworkConfigured", "every network card has its network"),
        ),
    }
}

fn virtual_machine(facts: &Facts<'_>, live: &Live<'_>) -> Verdict {
    if let Some(fault) = &facts.guest.fault {
        return ("False", fault.clone());
    }
    let Some(vm) = live.vm else {
        let blocker = facts
            .storage
            .fault
            .as_ref()
            .or(facts.network.fault.as_ref());
        return match blocker {
            Some(fault) => (
                "False",
                Fault::new(
                    fault.reason,
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

fn created() -> Fault {
    Fault::new("VMCreated", "the VirtualMachine is there")
}

fn ready(facts: &Facts<'_>, live: &Live<'_>, phase: Phase, virtual_machine: &Verdict) -> Verdict {
    let faults = [
        facts.unfit.as_ref(),
        facts.elsewhere.as_ref(),
        facts.storage.fault.as_ref(),
        facts.network.fault.as_ref(),
        (virtual_machine.0 == "False" && !facts.paused).then_some(&virtual_machine.1),
    ];
    if let Some(fault) = faults.into_iter().flatten().next() {
        return ("False", fault.clone());
    }
    let status = live.vm.map_or("", |vm| vm.status.printable_status.as_str());
    if status == "Unknown" {
        return (
            "Unknown",
            Fault::new("Unknown", "KubeVirt has lost touch with the guest's node"),
        );
    }
    let running = facts
        .block
        .is_some_and(|block| block.power_state == PowerState::Running);
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
