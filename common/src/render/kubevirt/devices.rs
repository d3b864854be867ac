//! Disks, CD-ROM drives and network cards, each with the volume or network behind it.

use super::types::{
    ClaimSource, Devices, Disk, DiskTarget, Interface, Multus, Network, Present, Volume,
};
use super::volume::{medium, volumes};
use crate::api::choice::{AccessMode, Choice as _, DiskBus, NicModel};
use crate::api::normalized::{Normalized, NormalizedCpu, NormalizedDisk, NormalizedNetwork};
use crate::names;
use crate::render::identity::Identity;

/// Network cards and the networks behind them; `attachment` tells a network's
/// NetworkAttachmentDefinition.
pub(super) fn networks<'a>(
    machine: &Identity<'_>,
    block: &'a Normalized,
    attachment: impl Fn(&'a str) -> &'a str,
) -> (Vec<Interface>, Vec<Network>) {
    block
        .networks
        .iter()
        .map(|nic| {
            let mac = nic.mac_address.unwrap_or_else(|| machine.mac(&nic.name));
            let pod = nic.network_name.is_none();
            let interface = Interface {
                name: nic.name.clone(),
                model: nic.model.as_str().to_owned(),
                mac_address: mac.to_string(),
                boot_order: nic.boot_order,
                masquerade: pod.then_some(Present {}),
                bridge: (!pod).then_some(Present {}),
            };
            (interface, network(machine, nic, &attachment))
        })
        .unzip()
}

fn network<'a>(
    machine: &Identity<'_>,
    nic: &'a NormalizedNetwork,
    attachment: impl Fn(&'a str) -> &'a str,
) -> Network {
    let multus = nic.network_name.as_deref().map(|name| Multus {
        network_name: format!("{}/{}", machine.namespace, attachment(name)),
    });
    Network {
        name: nic.name.clone(),
        pod: multus.is_none().then_some(Present {}),
        multus,
    }
}

/// Disks and CD-ROM drives, and the volumes behind them. An empty drive is left out: KubeVirt has
/// none without a feature gate, and admission refuses it.
pub(super) fn disks(machine: &Identity<'_>, block: &Normalized) -> (Vec<Disk>, Vec<Volume>) {
    let disks = block.disks.iter().map(|disk| Disk {
        name: disk.name.clone(),
        disk: Some(disk_target(disk)),
        cdrom: None,
        boot_order: disk.boot_order,
    });
    let cdroms = block.cdroms.iter().filter(|cdrom| medium(cdrom).is_some());
    let cdroms = cdroms.map(|cdrom| Disk {
        name: cdrom.name.clone(),
        disk: None,
        // KubeVirt has no CD-ROM on virtio, and q35 has no IDE.
        cdrom: Some(DiskTarget {
            bus: DiskBus::Sata.as_str().to_owned(),
            readonly: None,
        }),
        boot_order: cdrom.boot_order,
    });
    let volumes = volumes(machine.name, block).map(|volume| Volume {
        name: volume.disk.name.clone(),
        persistent_volume_claim: Some(ClaimSource {
            claim_name: volume.claim,
        }),
        ..Volume::default()
    });
    disks.chain(cdroms).zip(volumes).unzip()
}

fn disk_target(disk: &NormalizedDisk) -> DiskTarget {
    DiskTarget {
        bus: disk.bus.as_str().to_owned(),
        readonly: (disk.access_mode == AccessMode::ReadOnlyMany).then_some(true),
    }
}

/// The disk cloud-init's data is on, on the bus of the first disk: a guest that finds its root
/// there has the driver.
pub(super) fn cloud_init_disk(block: &Normalized) -> Disk {
    let bus = block.disks.first().map_or(DiskBus::Virtio, |disk| disk.bus);
    Disk {
        name: names::CLOUD_INIT_DISK.to_owned(),
        disk: Some(DiskTarget {
            bus: bus.as_str().to_owned(),
            readonly: None,
        }),
        ..Disk::default()
    }
}

/// All devices of a domain.
pub(super) fn devices(block: &Normalized, disks: Vec<Disk>, interfaces: Vec<Interface>) -> Devices {
    let virtio = block
        .networks
        .iter()
        .any(|nic| nic.model == NicModel::Virtio);
    let most = NormalizedCpu {
        sockets: block.cpu.max_sockets,
        ..block.cpu
    };
    Devices {
        // Without this KubeVirt gives a machine that wants no network one on the pod network.
        autoattach_pod_interface: interfaces.is_empty().then_some(false),
        // Queues are per vCPU, and only virtio has them. Of the most vCPUs there can be: a setting that
        // changed with the second one would keep it out of a running guest.
        network_interface_multiqueue: (virtio && most.vcpus() > 1).then_some(true),
        disks,
        interfaces,
        rng: Some(Present {}),
    }
}
