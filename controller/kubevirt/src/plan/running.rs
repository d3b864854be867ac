//! The guest as it runs: the specification of its instance without what KubeVirt has put there for later.
//!
//! ```text
//! VirtualMachine ─▶ instance ─▶ the running guest
//!                    │            the rest, as it was started
//!                    ├▶ sockets, memory       at once, or by a migration: `currentCPUTopology`, `memory.guestCurrent`
//!                    ├▶ disks and media that are plugged in or out   a moment later: `volumeStatus`
//!                    ├▶ network cards         by a migration (`MigrationRequired`)
//!                    └▶ networks, node labels by a migration: they are those of the pod until then
//! ```
//! KubeVirt 1.9 copies these changes into the instance without waiting for the guest
//! (`pkg/network/controllers/vm.go`, `handleCPUChangeRequest`, `handleMemoryHotplugRequest`,
//! `handleAffinityChangeRequest`). A guest that cannot be
//! migrated never gets them, although the instance has them and no `RestartRequired` is reported.

use common::quantity::Bytes;
use common::render::kubevirt::types::{InstanceSpec, Volume};

use crate::objects::{GuestPod, Instance, InstanceVolume, find_condition};

/// What the guest of an instance has. `pod`: the one in which it runs, if that is known.
pub(super) fn running(
    machine: &str,
    instance: &Instance,
    pod: Option<&GuestPod>,
    desired: &InstanceSpec,
) -> InstanceSpec {
    let mut runs = instance.spec.clone();
    resources(instance, &mut runs);
    cards(instance, pod, &mut runs);
    if let Some(pod) = pod {
        networks(instance, pod, &mut runs);
        node_labels(pod, &mut runs, desired);
        tolerations(pod, &mut runs, desired);
    }
    plugged_volumes(machine, instance, &mut runs, desired);
    runs
}

fn has_condition(instance: &Instance, kind: &str, status: &str) -> bool {
    find_condition(&instance.status.conditions, kind, status).is_some()
}

/// KubeVirt always reports the sockets and the memory of a running guest. Its conditions `HotVCPUChange` and
/// `HotMemoryChange` come a moment after the instance has the change.
fn resources(instance: &Instance, runs: &mut InstanceSpec) {
    let status = &instance.status;
    let sockets = status.cpu.sockets;
    runs.domain.cpu.sockets = sockets.unwrap_or(runs.domain.cpu.sockets);
    let memory = status.memory.guest_current.as_ref();
    let requested = &mut runs.domain.memory.guest;
    if let Some(memory) = memory.filter(|memory| !is_same_memory(memory, requested)) {
        requested.clone_from(memory);
    }
}

/// Whether two amounts of memory differ by less than KubeVirt can plug in: libvirt rounds what it reports.
fn is_same_memory(one: &str, other: &str) -> bool {
    const UNIT: u128 = Bytes::mib(2).get();
    let bytes = |text: &str| text.parse().ok().map(Bytes::get);
    match (bytes(one), bytes(other)) {
        (Some(one), Some(other)) => one.abs_diff(other) < UNIT,
        _ => one == other,
    }
}

/// Leaves out the cards that wait for a migration: KubeVirt reports `MigrationRequired` (`False` while it waits, with
/// reason `AutoMigrationPending`) and no state of the card in the guest. Before it does, the pod has fewer attachments
/// than the instance has networks.
fn cards(instance: &Instance, pod: Option<&GuestPod>, runs: &mut InstanceSpec) {
    let waits = |status| has_condition(instance, "MigrationRequired", status);
    let networks = runs.networks.iter();
    let secondary = networks.filter(|network| network.multus.is_some()).count();
    let lacks_one = pod.is_some_and(|pod| pod.attached().count() < secondary);
    if !waits("True") && !waits("False") && !lacks_one {
        return;
    }
    let status = &instance.status.interfaces;
    let has = |name: &str| {
        let mut cards = status.iter().filter(|card| card.is_in_guest());
        cards.any(|card| card.name == name)
    };
    runs.domain.devices.interfaces.retain(|it| has(&it.name));
    runs.networks.retain(|network| has(&network.name));
}

/// The networks to which the pod connects the cards.
fn networks(instance: &Instance, pod: &GuestPod, runs: &mut InstanceSpec) {
    for network in &mut runs.networks {
        let mut cards = instance.status.interfaces.iter();
        let card = cards.find(|card| card.name == network.name);
        let attachment = card
            .and_then(|card| card.pod_interface_name.as_deref())
            .and_then(|interface| pod.attachment(interface));
        if let Some((multus, attachment)) = network.multus.as_mut().zip(attachment) {
            attachment.clone_into(&mut multus.network_name);
        }
    }
}

/// The node labels that the pod was placed by. A pod that was placed by more than the desired ones is where it may be.
fn node_labels(pod: &GuestPod, runs: &mut InstanceSpec, desired: &InstanceSpec) {
    let placed = &pod.spec.node_selector;
    let desired = &desired.node_selector;
    if desired
        .iter()
        .all(|(key, value)| placed.get(key) == Some(value))
    {
        runs.node_selector.clone_from(desired);
        return;
    }
    // Without those that KubeVirt adds.
    let known = |key: &String| desired.contains_key(key) || runs.node_selector.contains_key(key);
    let placed = placed.iter().filter(|(key, _)| known(key));
    let placed = placed.map(|(key, value)| (key.clone(), value.clone()));
    runs.node_selector = placed.collect();
}

/// The taints that the pod tolerates, without those that Kubernetes and KubeVirt add.
fn tolerations(pod: &GuestPod, runs: &mut InstanceSpec, desired: &InstanceSpec) {
    let known: Vec<_> = runs
        .tolerations
        .iter()
        .chain(&desired.tolerations)
        .collect();
    let tolerated = pod.spec.tolerations.iter();
    let tolerated = tolerated.filter(|it| known.contains(it)).cloned();
    runs.tolerations = tolerated.collect();
}

/// Leaves out volumes of the Machine that the guest does not have yet, and those that others plugged into it (`virtctl
/// addvolume`): they are no change of the Machine, and a restart would not bring one about.
fn plugged_volumes(
    machine: &str,
    instance: &Instance,
    runs: &mut InstanceSpec,
    desired: &InstanceSpec,
) {
    let is_wanted = |name: &str| desired.volumes.iter().any(|ours| ours.name == name);
    let is_left_out = |volume: &Volume| {
        let mut status = instance.status.volume_status.iter();
        let status = status.find(|it| it.name == volume.name);
        if volume.is_plugged_in() && !volume.is_foreign(machine) {
            return status.is_none_or(|status| status.phase != "Ready");
        }
        let is_plugged = status.is_some_and(InstanceVolume::is_plugged);
        is_plugged && !is_wanted(&volume.name)
    };
    let volumes = std::mem::take(&mut runs.volumes).into_iter();
    let (left_out, kept): (Vec<_>, _) = volumes.partition(is_left_out);
    let has = |name: &str| left_out.iter().all(|volume| volume.name != name);
    // A drive stays without its medium.
    let disks = &mut runs.domain.devices.disks;
    disks.retain(|disk| disk.cdrom.is_some() || has(&disk.name));
    runs.volumes = kept;
}
