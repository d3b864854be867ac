//! Builds the domain of a Machine from its normalized spec, its volumes and its networks.

use std::collections::BTreeMap;

use super::devices::{Controller, Disk, Nic, NicAttachment, NicSource, PoolVolume, UNTAGGED};
use super::display::Display;
use super::domain::{Domain, VirtType};
use super::host_device::HostDevice;
use super::identity::{console_log_name, domain_name, domain_uuid};
use super::limits::{DiskLimits, GuestLimits};
use super::metadata::DomainMetadata;
use super::pinning::Pinning;
use super::ports::{ROOT_PORT, SPARE_PORTS};
use crate::api::choice::{AccessMode, Choice as _, CpuMode, FirmwareType, MachineType, OsFamily};
use crate::api::normalized::{AnyDisk, Firmware, Normalized, NormalizedMemory};
use crate::names;
use crate::pci::PciAddress;
use crate::quantity::Bytes;
use crate::render::identity::Identity;

/// PCI Express ports that every domain needs: USB, SCSI, the guest agent's channel, the balloon, the random
/// number generator, and a bridge for network cards of conventional PCI.
const BASIC_PORTS: usize = 6;
/// Disks that libvirt puts on one SCSI controller (`virDomainDiskDefAssignAddress`: a wide bus).
const DISKS_PER_CONTROLLER: usize = 16;
/// QEMU allocates memory in whole MiB. Any other amount would run as a different one than the desired, and
/// would be reported as a pending change forever.
const MEMORY_UNIT: Bytes = Bytes::mib(1);

/// What a domain is rendered from.
#[derive(Clone, Copy, Debug)]
pub struct DomainInput<'a> {
    /// Name, namespace and uid of the Machine, from which names of objects, MAC addresses and the SMBIOS uuid are derived.
    pub machine: Identity<'a>,
    /// The Machine's normalized spec.
    pub block: &'a Normalized,
    /// Hypervisor of the host.
    pub virt_type: VirtType,
    /// CPU model that the guest sees.
    pub cpu_mode: CpuMode,
    /// Volumes by name of the disk or CD-ROM drive. A disk without a volume is left out of the domain; a
    /// drive without a volume is empty.
    pub volumes: &'a BTreeMap<String, PoolVolume>,
    /// Attachments by name of the network card. A card without an attachment is left out of the domain.
    pub networks: &'a BTreeMap<String, NicAttachment>,
    /// Devices of the host by name of the device. One without an address is left out of the domain.
    pub devices: &'a BTreeMap<String, PciAddress>,
    /// Volume with cloud-init's seed image; `None` if the Machine has no cloud-init data.
    pub seed: Option<&'a PoolVolume>,
    /// Folder of the host's pool for logs of consoles; `None`: it has none.
    pub console_logs: Option<&'a str>,
    /// CPUs of the host that the guest runs on.
    pub pinning: &'a Pinning,
    /// What the host limits the guest to.
    pub limits: GuestLimits,
}

/// The domain of a Machine.
pub fn domain(input: &DomainInput<'_>) -> Domain {
    let DomainInput { machine, block, .. } = input;
    let disks = disks(input);
    let nics = nics(input);
    let host_devices = host_devices(input);
    // libvirt keeps the firmware's variables in any case, so their persistence is no part of the definition.
    let Firmware {
        kind,
        persistent: _,
        secure_boot,
    } = block.firmware;
    let memory = |amount: Bytes| amount.round_up_to(MEMORY_UNIT);
    Domain {
        name: domain_name(machine.namespace, machine.name, machine.uid),
        uuid: domain_uuid(machine.uid),
        metadata: Some(DomainMetadata {
            namespace: machine.namespace.to_owned(),
            name: machine.name.to_owned(),
            uid: machine.uid.to_owned(),
            ..DomainMetadata::default()
        }),
        virt_type: input.virt_type,
        cpu_mode: input.cpu_mode,
        cpu_model: block.cpu_model().map(ToOwned::to_owned),
        cpu: block.cpu,
        memory: NormalizedMemory {
            size: memory(block.memory.size),
            max_size: memory(block.memory.max_size),
        },
        hugepages: block.hugepages(),
        watchdog: block.watchdog,
        machine: block.machine_type.as_str().to_owned(),
        firmware: Firmware {
            secure_boot: (kind == FirmwareType::Efi).then(|| secure_boot.unwrap_or_default()),
            persistent: None,
            kind,
        },
        nvram: None,
        tpm: block.tpm,
        timezone: block.timezone.clone(),
        features: block.features,
        controllers: controllers(block, &disks, nics.len() + host_devices.len()),
        disks,
        nics,
        host_devices,
        display: Display::of(block),
        console_log: input
            .console_logs
            .filter(|_| block.console_log() == Some(true))
            .map(|folder| {
                let name = console_log_name(machine.namespace, machine.name, machine.uid);
                format!("{}/{name}", folder.trim_end_matches('/'))
            }),
        addresses: BTreeMap::new(),
        vcpu_quota: input.limits.vcpu_quota,
        pinning: input.pinning.clone(),
    }
    .sorted()
}

fn disks(input: &DomainInput<'_>) -> Vec<Disk> {
    let block = input.block;
    let disk = |name: &str, bus: &str, volume| Disk {
        alias: Disk::alias_of(name),
        cdrom: false,
        bus: bus.to_owned(),
        target: String::new(),
        volume,
        read_only: false,
        boot_order: None,
        serial: None,
        address: None,
        limits: input.limits.disk,
    };
    let disks = block.all_disks().into_iter().filter_map(|it| {
        let is_read_only = match it {
            AnyDisk::Own(own) => own.access_mode == AccessMode::ReadOnlyMany,
            AnyDisk::Existing(_) => false,
        };
        let volume = input.volumes.get(it.name())?.clone();
        Some(Disk {
            read_only: is_read_only,
            boot_order: it.boot_order(),
            serial: it.serial().map(str::to_owned),
            ..disk(it.name(), it.bus().as_str(), Some(volume))
        })
    });
    let drive = |name: &str, bus, volume| Disk {
        cdrom: true,
        read_only: true,
        limits: DiskLimits::default(),
        ..disk(name, bus, volume)
    };
    // q35 has no IDE. Old and new installers have drivers for these two.
    let bus = match block.machine_type {
        MachineType::Q35 => "sata",
        MachineType::Pc => "ide",
    };
    let cdroms = block.cdroms.iter().map(|it| Disk {
        boot_order: it.boot_order,
        ..drive(&it.name, bus, input.volumes.get(&it.name).cloned())
    });
    // Kernels of cloud images often have drivers for virtio devices only, which virtio-scsi is. Windows has none.
    let seed_bus = match block.os {
        Some(OsFamily::Windows) => bus,
        Some(OsFamily::Linux) | None => "scsi",
    };
    let seed = input.seed.cloned();
    let seed = seed.map(|seed| drive(names::CLOUD_INIT_DISK, seed_bus, Some(seed)));
    let mut disks: Vec<_> = disks.chain(cdroms).chain(seed).collect();
    assign_targets(&mut disks, &[]);
    disks
}

/// Gives every disk without a target a free one: not in `taken`, and not used by another disk.
pub(super) fn assign_targets(disks: &mut [Disk], taken: &[String]) {
    let mut taken = taken.to_vec();
    taken.extend(disks.iter().map(|disk| disk.target.clone()));
    for disk in disks.iter_mut().filter(|disk| disk.target.is_empty()) {
        let prefix = target_prefix(&disk.bus);
        let mut free = (0..).map(|index| format!("{prefix}{}", letters(index)));
        disk.target = free
            .find(|target| !taken.contains(target))
            .unwrap_or_default();
        taken.push(disk.target.clone());
    }
}

/// The prefix that libvirt's schema requires for targets on this bus.
const fn target_prefix(bus: &str) -> &'static str {
    match bus.as_bytes() {
        b"virtio" => "vd",
        b"ide" => "hd",
        _ => "sd",
    }
}

/// `a` to `z`, then `aa`, `ab` and so on.
fn letters(index: usize) -> String {
    let last = char::from(b'a' + u8::try_from(index % 26).unwrap_or_default());
    match index / 26 {
        0 => last.to_string(),
        more => format!("{}{last}", letters(more - 1)),
    }
}

/// `cards`: network cards and devices of the host.
///
/// All controllers are explicit: libvirt would add missing ones itself, but without spare ports, and it
/// would choose another SCSI model.
fn controllers(block: &Normalized, disks: &[Disk], cards: usize) -> Vec<Controller> {
    let on_scsi = disks
        .iter()
        .filter(|disk| target_prefix(&disk.bus) == "sd")
        .count();
    let scsi = on_scsi.div_ceil(DISKS_PER_CONTROLLER).max(1);
    let on_virtio = disks.iter().filter(|disk| disk.bus == "virtio").count();
    let ports = match block.machine_type {
        MachineType::Pc => 0,
        MachineType::Q35 => BASIC_PORTS + scsi - 1 + on_virtio + cards + SPARE_PORTS,
    };
    let controllers = |kind: &'static str, count: usize, first: u32, model: &'static str| {
        (first..)
            .take(count)
            .map(move |index| Controller::new(kind, index, Some(model)))
    };
    controllers("pci", ports.min(1), 0, "pcie-root")
        .chain(controllers("pci", ports, 1, ROOT_PORT))
        .chain(controllers("scsi", scsi, 0, "virtio-scsi"))
        .chain(controllers("usb", 1, 0, "qemu-xhci"))
        .chain([Controller::new("virtio-serial", 0, None)])
        .collect()
}

fn host_devices(input: &DomainInput<'_>) -> Vec<HostDevice> {
    let devices = input.block.devices().iter();
    let with_address = devices.filter_map(|device| {
        let source = *input.devices.get(&device.name)?;
        Some(HostDevice::new(&device.name, source))
    });
    with_address.collect()
}

fn nics(input: &DomainInput<'_>) -> Vec<Nic> {
    let cards = input.block.networks.iter().filter_map(|nic| {
        let mut attachment = input.networks.get(&nic.name)?.clone();
        // libvirt supports VLAN tags only on Open vSwitch, and reports others only when the guest starts.
        attachment.vlan = match attachment.source {
            NicSource::Ovs(_) => attachment.vlan.or(Some(UNTAGGED)),
            NicSource::Network(_) | NicSource::Bridge(_) => None,
        };
        let mac = nic.mac_address;
        Some(Nic {
            alias: Nic::alias_of(&nic.name),
            mac: mac.unwrap_or_else(|| input.machine.mac(&nic.name)),
            model: nic.model.as_str().to_owned(),
            attachment,
            boot_order: nic.boot_order,
            address: None,
        })
    });
    cards.collect()
}
