//! From the block of a Machine to its domain.

use std::collections::BTreeMap;

use super::devices::{Attached, Controller, Disk, Nic, Placed, Wire};
use super::domain::{Domain, VirtType};
use super::identity::{domain_name, domain_uuid};
use super::mark::Mark;
use crate::api::choice::{AccessMode, Choice as _, CpuMode, FirmwareType, MachineType};
use crate::api::normalized::{Firmware, Normalized, NormalizedMemory};
use crate::names;
use crate::quantity::Bytes;
use crate::render::identity::Identity;

/// Ports for devices that are plugged in while the guest runs. The domain has as many again each time
/// it is started.
const SPARE_PORTS: usize = 4;
/// Devices on PCI Express that every domain has: USB, SCSI, the channel of the agent, balloon, random
/// numbers; and the bridge behind which an older network card sits.
const BASIC_PORTS: usize = 6;
/// Disks that libvirt puts on one SCSI controller (`virDomainDiskDefAssignAddress`: a wide bus).
const DISKS_PER_CONTROLLER: usize = 16;
/// QEMU gives memory in whole MiB: what was not would run as another amount than the one wished.
const MEMORY_UNIT: Bytes = Bytes::mib(1);

/// What a domain is rendered from.
#[derive(Clone, Copy, Debug)]
pub struct Guest<'a> {
    /// Whose it is.
    pub machine: Identity<'a>,
    /// What it is.
    pub block: &'a Normalized,
    /// What runs it.
    pub virt_type: VirtType,
    /// Its processor.
    pub cpu_mode: CpuMode,
    /// Where the volumes are, by the name of the disk or the CD-ROM drive. A disk without one is left
    /// out, a drive without one is empty.
    pub volumes: &'a BTreeMap<String, Placed>,
    /// How the network cards are wired, by their name. A card without one is left out.
    pub networks: &'a BTreeMap<String, Attached>,
    /// Where cloud-init's data is.
    pub seed: Option<&'a Placed>,
}

/// The domain of a Machine.
pub fn domain(guest: &Guest<'_>) -> Domain {
    let Guest { machine, block, .. } = guest;
    let disks = disks(guest);
    let nics = nics(guest);
    let Firmware { kind, secure_boot } = block.firmware;
    let memory = |amount: Bytes| amount.round_up_to(MEMORY_UNIT);
    Domain {
        name: domain_name(machine.namespace, machine.name, machine.uid),
        uuid: domain_uuid(machine.uid),
        mark: Some(Mark {
            namespace: machine.namespace.to_owned(),
            name: machine.name.to_owned(),
            uid: machine.uid.to_owned(),
            ..Mark::default()
        }),
        virt_type: guest.virt_type,
        cpu_mode: guest.cpu_mode,
        cpu: block.cpu,
        memory: NormalizedMemory {
            size: memory(block.memory.size),
            max_size: memory(block.memory.max_size),
        },
        machine: block.machine_type.as_str().to_owned(),
        firmware: Firmware {
            secure_boot: (kind == FirmwareType::Efi).then(|| secure_boot.unwrap_or_default()),
            kind,
        },
        nvram: None,
        features: block.features,
        controllers: controllers(block, &disks, nics.len()),
        disks,
        nics,
        addresses: BTreeMap::new(),
    }
    .sorted()
}

fn disks(guest: &Guest<'_>) -> Vec<Disk> {
    let block = guest.block;
    let disk = |name: &str, bus: &str, volume| Disk {
        alias: Disk::alias_of(name),
        cdrom: false,
        bus: bus.to_owned(),
        target: String::new(),
        volume,
        read_only: false,
        boot_order: None,
        address: None,
    };
    let disks = block.disks.iter().filter_map(|it| {
        Some(Disk {
            read_only: it.access_mode == AccessMode::ReadOnlyMany,
            boot_order: it.boot_order,
            ..disk(
                &it.name,
                it.bus.as_str(),
                Some(guest.volumes.get(&it.name)?.clone()),
            )
        })
    });
    let drive = |name: &str, bus, volume| Disk {
        cdrom: true,
        read_only: true,
        ..disk(name, bus, volume)
    };
    // q35 has no IDE, and an installer of any age has a driver for these.
    let bus = match block.machine_type {
        MachineType::Q35 => "sata",
        MachineType::Pc => "ide",
    };
    let cdroms = block.cdroms.iter().map(|it| Disk {
        boot_order: it.boot_order,
        ..drive(&it.name, bus, guest.volumes.get(&it.name).cloned())
    });
    // The kernels of cloud images have a driver for virtio, and for nothing else.
    let seed = guest.seed.cloned();
    let seed = seed.map(|seed| drive(names::CLOUD_INIT_DISK, "scsi", Some(seed)));
    let mut disks: Vec<_> = disks.chain(cdroms).chain(seed).collect();
    place(&mut disks, &[]);
    disks
}

/// Gives every disk that has none a place which is not among those taken.
pub(super) fn place(disks: &mut [Disk], taken: &[String]) {
    let mut taken = taken.to_vec();
    taken.extend(disks.iter().map(|disk| disk.target.clone()));
    for disk in disks.iter_mut().filter(|disk| disk.target.is_empty()) {
        let prefix = prefix(&disk.bus);
        let mut free = (0..).map(|index| format!("{prefix}{}", letters(index)));
        disk.target = free
            .find(|target| !taken.contains(target))
            .unwrap_or_default();
        taken.push(disk.target.clone());
    }
}

const fn prefix(bus: &str) -> &'static str {
    match bus.as_bytes() {
        b"virtio" => "vd",
        b"ide" => "hd",
        _ => "sd",
    }
}

/// `a` to `z`, `aa`, `ab` and so on.
fn letters(index: usize) -> String {
    let last = char::from(b'a' + u8::try_from(index % 26).unwrap_or_default());
    match index / 26 {
        0 => last.to_string(),
        more => format!("{}{last}", letters(more - 1)),
    }
}

/// libvirt adds what is missing, but with no port to spare, and SCSI as the model that it likes best.
fn controllers(block: &Normalized, disks: &[Disk], nics: usize) -> Vec<Controller> {
    let on_scsi = disks
        .iter()
        .filter(|disk| prefix(&disk.bus) == "sd")
        .count();
    let scsi = on_scsi.div_ceil(DISKS_PER_CONTROLLER).max(1);
    let on_virtio = disks.iter().filter(|disk| disk.bus == "virtio").count();
    let ports = match block.machine_type {
        MachineType::Pc => 0,
        MachineType::Q35 => BASIC_PORTS + scsi - 1 + on_virtio + nics + SPARE_PORTS,
    };
    let controllers = |kind: &'static str, count: usize, first: u32, model: &'static str| {
        (first..)
            .take(count)
            .map(move |index| Controller::new(kind, index, Some(model)))
    };
    controllers("pci", ports.min(1), 0, "pcie-root")
        .chain(controllers("pci", ports, 1, "pcie-root-port"))
        .chain(controllers("scsi", scsi, 0, "virtio-scsi"))
        .chain(controllers("usb", 1, 0, "qemu-xhci"))
        .chain([Controller::new("virtio-serial", 0, None)])
        .collect()
}

fn nics(guest: &Guest<'_>) -> Vec<Nic> {
    let cards = guest.block.networks.iter().filter_map(|nic| {
        let mut attached = guest.networks.get(&nic.name)?.clone();
        // libvirt tags on Open vSwitch alone, and says so only when the guest starts.
        attached.vlan = attached
            .vlan
            .filter(|_| matches!(attached.wire, Wire::Ovs(_)));
        let mac = nic.mac_address;
        Some(Nic {
            alias: Nic::alias_of(&nic.name),
            mac: mac.unwrap_or_else(|| guest.machine.mac(&nic.name)),
            model: nic.model.as_str().to_owned(),
            attached,
            boot_order: nic.boot_order,
            address: None,
        })
    });
    cards.collect()
}
