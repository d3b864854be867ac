//! What there is of the guest, and the phase that it means.

use std::net::IpAddr;

use common::api::choice::Phase;
use common::api::normalized::Normalized;
use common::api::status::{GuestOs, InterfaceStatus, MachineStatus, VolumeStatus};
use common::render::kubevirt::{Volume, volumes as render};

use super::Facts;
use crate::objects::{GuestOsInfo, Instance, InstanceInterface, VirtualMachine, told};
use crate::plan::{Action, Observed};
use controller_core::addresses::is_reported;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// What is there of the guest and belongs to the Machine.
pub(super) struct Live<'a> {
    pub(super) vm: Option<&'a VirtualMachine>,
    /// What the VirtualMachine's `runStrategy` is, or is about to be.
    pub(super) strategy: &'a str,
    pub(super) instance: Option<&'a Instance>,
}

impl<'a> Live<'a> {
    pub(super) fn of(machine: &Machine, observed: &'a Observed, actions: &'a [Action]) -> Self {
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
    pub(super) fn addresses(&self, machine: &Machine) -> MachineStatus {
        let Some(instance) = self.instance else {
            return MachineStatus::default();
        };
        let network_interfaces = interfaces(instance);
        let mut ip_addresses: Vec<String> = Vec::new();
        for address in network_interfaces.iter().flat_map(|nic| &nic.ip_addresses) {
            if !ip_addresses.contains(address) {
                ip_addresses.push(address.clone());
            }
        }
        if ip_addresses.iter().any(|address| is_global(address)) {
            ip_addresses.retain(|address| is_global(address));
        }
        MachineStatus {
            vmi_name: Some(machine.name().to_owned()),
            node_name: instance.status.node_name.clone(),
            ip_addresses,
            network_interfaces,
            guest_os: guest_os(&instance.status.guest_os),
            ..MachineStatus::default()
        }
    }

    /// Whether the guest's agent answers, as KubeVirt says.
    pub(super) fn has_agent(&self) -> bool {
        let conditions = self.instance.map(|instance| &instance.status.conditions);
        conditions.is_some_and(|conditions| told(conditions, "AgentConnected", "True").is_some())
    }
}

/// The cards of the spec, in its order. What else the agent tells of, such as the bridges of a
/// container engine, has no name and stays in the guest.
///
/// Addresses are in an order of their own: the agent's is another one now and then, and that would be
/// news each time.
fn interfaces(instance: &Instance) -> Vec<InterfaceStatus> {
    let cards = &instance.spec.domain.devices.interfaces;
    let place = |nic: &&InstanceInterface| cards.iter().position(|card| card.name == nic.name);
    let named = instance.status.interfaces.iter();
    let mut named: Vec<_> = named.filter(|nic| !nic.name.is_empty()).collect();
    named.sort_by_key(|nic| place(nic).unwrap_or(cards.len()));
    let told = |nic: &InstanceInterface| {
        let all = nic.ip_addresses.iter().chain(&nic.ip_address);
        let mut all: Vec<_> = all.filter(|address| !address.is_empty()).cloned().collect();
        all.sort_by_cached_key(|address| (!is_global(address), parsed(address), address.clone()));
        all.dedup();
        InterfaceStatus {
            name: nic.name.clone(),
            mac_address: nic.mac.clone(),
            ip_addresses: all,
        }
    };
    named.into_iter().map(told).collect()
}

/// The address; KubeVirt has told some with the length of their network's prefix.
fn parsed(address: &str) -> Option<IpAddr> {
    let (address, _) = address.split_once('/').unwrap_or((address, ""));
    address.parse().ok()
}

/// Whether a text is an address that can mean the guest to others.
fn is_global(address: &str) -> bool {
    parsed(address).is_some_and(is_reported)
}

fn guest_os(told: &GuestOsInfo) -> Option<GuestOs> {
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let guest_os = GuestOs {
        name: text(&told.name),
        version: text(&told.version),
        kernel: text(&told.kernel_release),
    };
    (guest_os != GuestOs::default()).then_some(guest_os)
}

/// The disks that have a claim or are about to, those that this plan makes or adopts included: what is
/// made here would be news otherwise as soon as it is seen.
pub(super) fn volumes(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    actions: &[Action],
) -> Vec<VolumeStatus> {
    let made = |name: &str| {
        actions.iter().any(|action| match action {
            Action::CreateClaim(wish) => wish.metadata.name == name,
            Action::CreateDataVolume(wish) => wish.metadata.name == name,
            Action::PatchClaim(patch) => patch.name == name,
            _ => false,
        })
    };
    let (owner, uid) = (machine.name(), machine.uid());
    let status = |volume: Volume<'_>| {
        let claim_name = volume.claim;
        let claim = observed.claims.get(&claim_name);
        let import = observed.data_volumes.get(&claim_name);
        let import = import.filter(|import| import.belongs_to(owner, uid));
        let ours = claim.is_some_and(|claim| claim.belongs_to(owner, uid)) || import.is_some();
        if !ours && !made(&claim_name) {
            return None;
        }
        let phase = claim.map_or("", |claim| &claim.status.phase);
        let capacity = claim.and_then(|claim| claim.status.capacity.storage);
        Some(VolumeStatus {
            name: volume.disk.name.clone(),
            claim_name,
            // As Kubernetes begins.
            phase: Some(if phase.is_empty() { "Pending" } else { phase }.to_owned()),
            capacity: capacity.map(|size| size.to_string()),
            // Of what has come to its end nothing is left to tell.
            progress: import
                .filter(|import| !import.is_finished())
                .and_then(|import| import.progress()),
        })
    };
    render(owner, block).filter_map(status).collect()
}

/// What KubeVirt's one-word state means; words of a newer KubeVirt change nothing.
pub(super) fn phase(machine: &Machine, facts: &Facts<'_>, live: &Live<'_>) -> Phase {
    let last = machine.status.phase;
    let Some(vm) = live.vm else {
        let faults = [&facts.network, &facts.storage, &facts.guest];
        return match facts.block {
            None => Phase::Pending,
            Some(_) if facts.paused && !facts.makes_vm => Phase::Pending,
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
pub(super) const FAILURES: [&str; 5] = [
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
