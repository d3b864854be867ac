//! Disks, CD-ROM drives and network cards, each with its volume or network.

use super::types::{
    ClaimSource, Devices, Disk, DiskTarget, HostDevice, I6300esb, Input, Interface, Multus,
    Network, Present, Tpm, Video, Volume, Watchdog,
};
use super::volume::{claim_of_medium, medium};
use crate::api::choice::{
    AccessMode, Choice as _, DeviceKind, DiskBus, DisplayType, NicModel, OsFamily,
};
use crate::api::normalized::{AnyDisk, Normalized, NormalizedCpu, NormalizedNetwork};
use crate::names;
use crate::render::identity::Identity;

/// Network cards and their networks. `attachment` returns the name of the NetworkAttachmentDefinition
/// of a NetworkConfiguration.
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

/// Disks and CD-ROM drives, and their volumes. An empty drive has none.
pub(super) fn disks(machine: &Identity<'_>, block: &Normalized) -> (Vec<Disk>, Vec<Volume>) {
    let disks = block.all_disks();
    let (mut disks, mut volumes): (Vec<_>, Vec<_>) = disks
        .into_iter()
        .map(|disk| {
            let claim = match disk {
                AnyDisk::Own(disk) => names::claim(machine.name, &disk.name),
                AnyDisk::Existing(disk) => disk.source().to_owned(),
            };
            let is_plugged_in = disk.is_hotpluggable();
            (
                guest_disk(disk),
                claim_volume(disk.name(), claim, is_plugged_in),
            )
        })
        .unzip();
    for cdrom in &block.cdroms {
        disks.push(Disk {
            name: cdrom.name.clone(),
            disk: None,
            // KubeVirt does not support a CD-ROM on virtio, and q35 has no IDE.
            cdrom: Some(DiskTarget {
                bus: DiskBus::Sata.as_str().to_owned(),
                readonly: None,
            }),
            boot_order: cdrom.boot_order,
            serial: None,
            shareable: None,
        });
        if medium(cdrom).is_some() {
            let claim = claim_of_medium(machine.name, cdrom);
            volumes.push(claim_volume(&cdrom.name, claim, cdrom.hotpluggable));
        }
    }
    (disks, volumes)
}

fn claim_volume(disk: &str, claim_name: String, is_plugged_in: bool) -> Volume {
    Volume {
        name: disk.to_owned(),
        persistent_volume_claim: Some(ClaimSource {
            claim_name,
            hotpluggable: is_plugged_in.then_some(true),
        }),
        ..Volume::default()
    }
}

fn guest_disk(disk: AnyDisk<'_>) -> Disk {
    let is_read_only = match disk {
        AnyDisk::Own(disk) => disk.access_mode == AccessMode::ReadOnlyMany,
        AnyDisk::Existing(_) => false,
    };
    Disk {
        name: disk.name().to_owned(),
        disk: Some(DiskTarget {
            bus: disk.bus().as_str().to_owned(),
            readonly: is_read_only.then_some(true),
        }),
        cdrom: None,
        boot_order: disk.boot_order(),
        serial: disk.serial().map(str::to_owned),
        shareable: disk.is_shareable().then_some(true),
    }
}

/// The disk with cloud-init's data, on the bus of the first disk: a guest that boots from this bus has
/// a driver for it. Windows Setup looks for an answer file on CD-ROMs.
pub(super) fn cloud_init_disk(block: &Normalized, is_cdrom: bool) -> Disk {
    if is_cdrom {
        return Disk {
            name: names::CLOUD_INIT_DISK.to_owned(),
            cdrom: Some(DiskTarget {
                bus: DiskBus::Sata.as_str().to_owned(),
                readonly: None,
            }),
            ..Disk::default()
        };
    }
    let disks = block.all_disks();
    let bus = disks.first().map_or(DiskBus::Virtio, |disk| disk.bus());
    Disk {
        name: names::CLOUD_INIT_DISK.to_owned(),
        disk: Some(DiskTarget {
            bus: bus.as_str().to_owned(),
            readonly: None,
        }),
        ..Disk::default()
    }
}

pub(super) fn devices(block: &Normalized, disks: Vec<Disk>, interfaces: Vec<Interface>) -> Devices {
    let virtio = block
        .networks
        .iter()
        .any(|nic| nic.model == NicModel::Virtio);
    let maximum = NormalizedCpu {
        sockets: block.cpu.max_sockets,
        ..block.cpu
    };
    // The pointer of a screen is where the viewer's is, without drivers in the guest.
    let tablet = (block.os == Some(OsFamily::Windows)).then(|| Input {
        bus: "usb".into(),
        name: "tablet".into(),
        r#type: "tablet".into(),
    });
    let host_devices = |kind| {
        let devices = block.devices().iter();
        let devices = devices.filter(move |device| device.kind == kind);
        let devices = devices.map(|device| HostDevice {
            device_name: device.device_name.clone(),
            name: device.name.clone(),
        });
        devices.collect()
    };
    let has_display = block.display_type() != DisplayType::None;
    Devices {
        autoattach_graphics_device: (!has_display).then_some(false),
        log_serial_console: block.console_log(),
        video: block.video().map(|model| Video {
            r#type: model.as_str().to_owned(),
        }),
        // Otherwise KubeVirt attaches a machine without network cards to the pod network.
        autoattach_pod_interface: interfaces.is_empty().then_some(false),
        // One queue per vCPU; only virtio supports it. The maximum number of vCPUs counts, not the
        // current one: otherwise hot-plugging a second vCPU would change this setting, too, and would
        // need a restart.
        network_interface_multiqueue: (virtio && maximum.vcpus() > 1).then_some(true),
        disks,
        gpus: host_devices(DeviceKind::Pci),
        host_devices: host_devices(DeviceKind::Usb),
        inputs: tablet.into_iter().collect(),
        interfaces,
        rng: Some(Present {}),
        tpm: block.tpm.map(|tpm| Tpm {
            persistent: Some(tpm.persistent),
        }),
        watchdog: block.watchdog.map(|action| Watchdog {
            name: "watchdog".into(),
            i6300esb: Some(I6300esb {
                action: action.backend_name().to_owned(),
            }),
        }),
    }
}
