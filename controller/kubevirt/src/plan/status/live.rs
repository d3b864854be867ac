//! The VirtualMachine and instance of a Machine, and the phase that follows from them.

use std::net::IpAddr;

use common::api::choice::Phase;
use common::api::normalized::Normalized;
use common::api::status::{GuestOs, InterfaceStatus, MachineStatus, VolumeStatus};
use common::render::kubevirt::{HALTED, PRINTABLE_STATUSES, Volume, volumes as render};

use super::cause;
use super::inputs::StatusInputs;
use crate::objects::{
    DataVolume, ForeignCondition, GuestOsInfo, GuestPod, Instance, InstanceInterface,
    VirtualMachine, find_condition,
};
use crate::plan::action::Action;
use crate::plan::loss::{LOST, is_lost};
use crate::plan::observed::{Observed, PodWarning};
use crate::plan::shared_import;
use controller_core::addresses::ReportedAddresses;
use controller_core::machine::Machine;
use controller_core::missing_guest::MissingGuest;
use controller_core::objects::Meta as _;

/// What is said of a VirtualMachine that exists, and right before this plan makes it.
pub(super) const EXISTS: &str = "the VirtualMachine exists";

/// The VirtualMachine and instance of the Machine.
pub(super) struct LiveGuest<'a> {
    pub(super) vm: Option<&'a VirtualMachine>,
    /// Whether this plan makes the VirtualMachine, and the Machine is not paused.
    pub(super) is_created: bool,
    /// The VirtualMachine's `runStrategy` after this plan.
    pub(super) strategy: &'a str,
    pub(super) instance: Option<&'a Instance>,
    /// The pod in which the instance's guest runs.
    pub(super) pod: Option<&'a GuestPod>,
    /// What a node reports about the pod of a guest that takes long to start.
    pub(super) pod_warning: Option<&'a PodWarning>,
}

impl<'a> LiveGuest<'a> {
    pub(super) fn of(machine: &Machine, observed: &'a Observed, actions: &'a [Action]) -> Self {
        let vm = observed.vm.as_deref();
        let set = actions.iter().find_map(|action| match action {
            Action::SetRunStrategy { strategy, .. } => Some(strategy.as_str()),
            Action::UpdateVm(desired) => Some(desired.spec.run_strategy.as_str()),
            _ => None,
        });
        let ours = vm.filter(|vm| vm.belongs_to(machine.name(), machine.uid()));
        let instance = observed.instance.as_deref();
        let creates = |action: &Action| matches!(action, Action::CreateVm(_));
        Self {
            vm: ours,
            is_created: !machine.is_paused() && actions.iter().any(creates),
            strategy: set.unwrap_or(vm.map_or("", |vm| &vm.spec.run_strategy)),
            instance: instance
                .filter(|instance| instance.machine() == Some(machine.name()))
                .filter(|_| vm.is_none() || ours.is_some()),
            pod: observed.pod.as_deref(),
            pod_warning: observed.pod_warning.as_ref(),
        }
    }

    /// What is reported while there is no VirtualMachine.
    pub(super) fn missing<'i>(&self, inputs: &'i StatusInputs<'_>) -> MissingGuest<'i> {
        let outcomes = [&inputs.network, &inputs.storage, &inputs.guest];
        let [network, storage, guest] = outcomes.map(|outcome| outcome.fault.as_ref());
        MissingGuest {
            object: "VirtualMachine",
            planned: EXISTS,
            blocker: storage.or(network).or(inputs.import.as_ref()),
            is_planned: self.is_created,
            is_left_alone: false,
            fails: network.or(storage).or(guest).is_some(),
        }
    }

    /// Whether the Machine has no VirtualMachine, or one that is on although the Machine is to be off, or the other
    /// way round.
    pub(super) fn differs_from(&self, running: bool) -> bool {
        self.vm.is_none() || (self.strategy != HALTED) != running
    }

    /// The guest, unless it has ended.
    pub(super) fn guest(&self) -> Option<&'a Instance> {
        let has_ended = |it: &&Instance| matches!(&*it.status.phase, "Succeeded" | "Failed");
        self.instance.filter(|instance| !has_ended(instance))
    }

    /// Whether KubeVirt describes the VirtualMachine by a word that this release does not know, and its instance does not
    /// show that the guest runs either.
    pub(super) fn is_unclear(&self) -> bool {
        let word = self.vm.map_or("", |vm| &vm.status.printable_status);
        let is_known = word.is_empty() || PRINTABLE_STATUSES.contains(&word);
        let runs = |instance: &Instance| {
            let conditions = &instance.status.conditions;
            instance.runs() && find_condition(conditions, "Ready", "False").is_none()
        };
        !is_known && !self.instance.is_some_and(runs)
    }

    /// Whether the readiness probe of the guest does not succeed: KubeVirt passes the condition of the pod on, whose reason
    /// is the kubelet's.
    pub(super) fn fails_readiness(&self) -> bool {
        let probed = self.instance.filter(|it| it.spec.readiness_probe.is_some());
        let conditions = probed.map(|instance| &instance.status.conditions);
        let not_ready = conditions.and_then(|it| find_condition(it, "Ready", "False"));
        not_ready.is_some_and(|it| it.reason == "ContainersNotReady")
    }

    /// Why KubeVirt cannot migrate the guest; `None`: it can, or does not know yet.
    pub(super) fn migration_obstacle(&self) -> Option<&'a ForeignCondition> {
        self.instance?.migration_obstacle()
    }

    /// The part of the status that comes from the guest: of one that is not up yet, only its name.
    pub(super) fn addresses(&self, machine: &Machine, is_up: bool) -> MachineStatus {
        let Some(instance) = self.instance else {
            return MachineStatus::default();
        };
        let vmi_name = Some(machine.name().to_owned());
        if !is_up {
            return MachineStatus {
                vmi_name,
                ..MachineStatus::default()
            };
        }
        let (network_interfaces, ip_addresses) = interfaces(instance);
        MachineStatus {
            vmi_name,
            node_name: instance.status.node_name.clone(),
            ip_addresses,
            network_interfaces,
            guest_os: guest_os(&instance.status.guest_os),
            ..MachineStatus::default()
        }
    }

    /// Whether KubeVirt reports that the guest agent answers.
    pub(super) fn has_agent(&self) -> bool {
        let conditions = self.instance.map(|instance| &instance.status.conditions);
        conditions.is_some_and(|conditions| {
            find_condition(conditions, "AgentConnected", "True").is_some()
        })
    }
}

/// The network cards of the spec, in the order of the spec. Cards that only the guest has, such as the bridges of a
/// container engine, have no name and are left out. Also the addresses of all of them.
fn interfaces(instance: &Instance) -> (Vec<InterfaceStatus>, Vec<String>) {
    let cards = &instance.spec.domain.devices.interfaces;
    let index = |nic: &&InstanceInterface| cards.iter().position(|card| card.name == nic.name);
    let named = instance.status.interfaces.iter();
    let mut named: Vec<_> = named.filter(|nic| !nic.name.is_empty()).collect();
    named.sort_by_key(|nic| index(nic).unwrap_or(cards.len()));
    let addresses = |nic: &&InstanceInterface| {
        let all = nic.ip_addresses.iter().chain(&nic.ip_address);
        all.filter_map(|address| parsed(address)).collect()
    };
    let reported = ReportedAddresses::of(named.iter().map(addresses));
    let cards = named.into_iter().zip(reported.cards);
    let cards = cards.map(|(nic, ip_addresses)| InterfaceStatus {
        name: nic.name.clone(),
        mac_address: nic.mac.clone(),
        allocated_addresses: vec![],
        ip_addresses,
    });
    (cards.collect(), reported.guest)
}

/// Parses an address. KubeVirt reports some with the length of the network's prefix.
fn parsed(address: &str) -> Option<IpAddr> {
    let (address, _) = address.split_once('/').unwrap_or((address, ""));
    address.parse().ok()
}

fn guest_os(reported: &GuestOsInfo) -> Option<GuestOs> {
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let guest_os = GuestOs {
        name: text(&reported.name),
        version: text(&reported.version),
        kernel: text(&reported.kernel_release),
    };
    (guest_os != GuestOs::default()).then_some(guest_os)
}

/// The disks that have a claim, including those that this plan creates or adopts: otherwise each would need a second
/// status write as soon as it is observed.
pub(super) fn volumes(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    actions: &[Action],
) -> Vec<VolumeStatus> {
    let made = |name: &str| {
        actions.iter().any(|action| match action {
            Action::CreateClaim(desired) => desired.metadata.name == name,
            Action::CreateDataVolume(desired) => desired.metadata.name == name,
            Action::PatchClaim(patch) => patch.name == name,
            _ => false,
        })
    };
    let ends = |import: &DataVolume| {
        actions.iter().any(|action| {
            matches!(action, Action::DeleteDataVolume(it) if it.exact().name() == import.name())
        })
    };
    let (owner, uid) = (machine.name(), machine.uid());
    let status = |volume: Volume<'_>| {
        let claim_name = volume.claim.clone();
        let claim = observed.claims.get(&claim_name);
        let import = observed.data_volumes.get(&claim_name);
        let import = import.filter(|import| import.belongs_to(owner, uid));
        let ours = claim.is_some_and(|claim| claim.belongs_to(owner, uid)) || import.is_some();
        if !ours && !made(&claim_name) {
            // A loss is known until the claim exists again. The image of a claim that could not be made may be corrected.
            let phase = match (is_lost(machine, &volume, observed), &volume.disk.image) {
                (true, _) => LOST,
                (false, Some(_)) if claim.is_none() => "Pending",
                _ => return None,
            };
            return Some(VolumeStatus {
                name: volume.disk.name.clone(),
                claim_name,
                phase: Some(phase.to_owned()),
                capacity: None,
                progress: shared_import::progress(&volume, observed),
            });
        }
        let phase = claim.map_or("", |claim| &claim.status.phase);
        // A claim that is deleted with its unfinished import has no content that could be lost.
        let is_incomplete = match import {
            Some(import) => !import.is_finished() && (import.is_deleting() || ends(import)),
            None => was_incomplete(&machine.status, &claim_name),
        };
        let is_discarded =
            is_incomplete && claim.is_some_and(|claim| claim.data_volume().is_some());
        // A claim without a status yet is pending.
        let is_pending = is_discarded || phase.is_empty();
        let phase = if is_pending { "Pending" } else { phase };
        // Admission concludes from the progress that the image of a bound claim is incomplete.
        let unknown = || (phase != "Pending").then(|| "0%".to_owned());
        let capacity = claim.and_then(|claim| claim.status.capacity.storage);
        Some(VolumeStatus {
            name: volume.disk.name.clone(),
            claim_name,
            phase: Some(phase.to_owned()),
            capacity: capacity.map(|size| size.to_string()),
            // A finished import has no progress to report.
            progress: import
                .filter(|import| !import.is_finished())
                .and_then(|import| import.progress().or_else(unknown)),
        })
    };
    let existing = block.existing_disks.iter().filter_map(|disk| {
        let known = observed.existing.get(disk.source())?;
        let claim = known.claim.as_ref()?;
        let capacity = claim.status.capacity.storage;
        let phase = Some(claim.status.phase.clone()).filter(|phase| !phase.is_empty());
        Some(VolumeStatus {
            name: disk.name.clone(),
            claim_name: disk.source().to_owned(),
            phase: phase.or_else(|| Some("Pending".to_owned())),
            capacity: capacity.map(|size| size.to_string()),
            progress: None,
        })
    });
    let own = render(owner, block).filter_map(status);
    own.chain(existing).collect()
}

/// Whether the last status says that the import into a claim was not complete.
fn was_incomplete(status: &MachineStatus, claim: &str) -> bool {
    let mut volumes = status.volumes.iter();
    let volume = volumes.find(|volume| volume.claim_name == claim);
    volume.is_some_and(|it| it.progress.is_some() || it.phase.as_deref() == Some("Pending"))
}

/// The phase for KubeVirt's `printableStatus`. A value of a newer KubeVirt that is unknown here does not change the
/// phase; [`LiveGuest::is_unclear`] decides what `Ready` says.
pub(super) fn phase(machine: &Machine, inputs: &StatusInputs<'_>, live: &LiveGuest<'_>) -> Phase {
    let last = machine.status.phase;
    let Some(vm) = live.vm else {
        let missing = || live.missing(inputs).phase(machine);
        return inputs.block.map_or(Phase::Pending, |_| missing());
    };
    let last = last.unwrap_or(Phase::Creating);
    if !vm.has_guest() && cause::fault(vm, inputs, live).is_some_and(|it| it.reason() == "VMFailed")
    {
        return Phase::Failed;
    }
    match vm.status.printable_status.as_str() {
        "Running" | "Paused" | "Migrating" => Phase::Running,
        "Stopped" => stopped(live, last),
        "ErrorUnschedulable"
        | "Provisioning"
        | "Starting"
        | "WaitingForVolumeBinding"
        | "WaitingForReceiver"
        | "" => Phase::Creating,
        _ if matches!(last, Phase::Pending | Phase::Failed) => Phase::Creating,
        _ => last,
    }
}

/// KubeVirt reports `Stopped` before the first start, while the machine is off, and while an instance that has ended
/// still exists.
fn stopped(live: &LiveGuest<'_>, last: Phase) -> Phase {
    let instance = live.instance;
    let ended = instance.is_none_or(|instance| instance.status.phase == "Succeeded");
    match live.strategy {
        HALTED if instance.is_none() => Phase::Stopped,
        HALTED => last,
        // The guest shut itself down and stays off.
        "RerunOnFailure" if ended && matches!(last, Phase::Running | Phase::Stopped) => {
            Phase::Stopped
        }
        _ => Phase::Creating,
    }
}
