//! What of a wish the running guest does not have yet, by field of the block, and what libvirt can do
//! about it while the guest runs.

use std::fmt::{self, Display};

use super::devices::{Address, Disk, Nic, Placed};
use super::domain::{Domain, kib};
use super::guest::place;
use super::hotplug;
use crate::api::choice::FirmwareType;
use crate::names;

/// A field in which the guest that runs is not as it is wished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The field, as `status.pendingChanges` names it.
    pub field: String,
    /// What the guest has.
    pub current: String,
    /// What is wished.
    pub desired: String,
    /// What brings it into effect while the guest runs. Absent: it takes a restart.
    pub live: Option<Live>,
}

/// What libvirt can do to a guest that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Live {
    /// Plug a disk in.
    AttachDisk(Disk),
    /// Pull a disk out. What somebody else plugged in stays until the guest is off.
    DetachDisk(Disk),
    /// Plug a network card in.
    AttachNic(Nic),
    /// Pull a network card out.
    DetachNic(Nic),
    /// Change what is in a CD-ROM drive.
    ChangeMedium(Disk),
    /// Give the guest so many vCPUs. Only ever more: to take one away is a request that a guest may
    /// leave unanswered.
    SetVcpus(u32),
    /// Give the guest so much memory, in KiB. More or less, as far as the balloon reaches: a restart would
    /// do just the same.
    SetMemory(u64),
}

/// As a log tells it.
impl Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttachDisk(disk) => write!(f, "disk {} plugged in", disk.name()),
            Self::DetachDisk(disk) => write!(f, "disk {} pulled out", disk.name()),
            Self::AttachNic(nic) => write!(f, "network card {} plugged in", nic.name()),
            Self::DetachNic(nic) => write!(f, "network card {} pulled out", nic.name()),
            Self::ChangeMedium(drive) => write!(f, "{} in drive {}", place_of(drive), drive.name()),
            Self::SetVcpus(vcpus) => write!(f, "{vcpus} vCPUs"),
            Self::SetMemory(kib) => write!(f, "memory {kib} KiB"),
        }
    }
}

impl Domain {
    /// Everything that is wished and that the guest which `runs` does not have, in the order of the block.
    pub fn changes(&self, runs: &Self) -> Vec<Change> {
        let mut changes = Changes::default();
        self.sizes(runs, &mut changes);
        self.hardware(runs, &mut changes);
        self.disks(runs, &mut changes);
        self.nics(runs, &mut changes);
        changes.0
    }

    fn sizes(&self, runs: &Self, changes: &mut Changes) {
        let (was, is) = (runs.cpu, self.cpu);
        let live = hotplug::takes_vcpus(was, is, runs.features.acpi);
        let live = live.then(|| Live::SetVcpus(is.vcpus()));
        changes.field("cpu.sockets", was.sockets, is.sockets, live);
        changes.restart("cpu.maxSockets", was.max_sockets, is.max_sockets);
        changes.restart("cpu.cores", was.cores, is.cores);
        changes.restart("cpu.threads", was.threads, is.threads);
        let (was, is) = (runs.memory, self.memory);
        let live = hotplug::takes_memory(was, is);
        let live = live.then(|| Live::SetMemory(kib(is.size)));
        changes.field("memory.size", was.size, is.size, live);
        changes.restart("memory.maxSize", was.max_size, is.max_size);
    }

    fn hardware(&self, runs: &Self, changes: &mut Changes) {
        let chipset = |it: &Self| if it.is_q35() { "q35" } else { "pc" };
        changes.restart("machineType", chipset(runs), chipset(self));
        let firmware = |it: &Self| match (it.firmware.kind, it.firmware.secure_boot) {
            (FirmwareType::Bios, _) => "bios",
            (FirmwareType::Efi, Some(true)) => "efi with secureBoot",
            (FirmwareType::Efi, _) => "efi",
        };
        changes.restart("firmware", firmware(runs), firmware(self));
        let (was, is) = (runs.features, self.features);
        changes.restart("features.acpi", was.acpi, is.acpi);
        changes.restart("features.apic", was.apic, is.apic);
        changes.restart("features.hyperv", was.hyperv, is.hyperv);
    }

    fn disks(&self, runs: &Self, changes: &mut Changes) {
        let pluggable = |disk: &Disk| disk.is_ours() && !disk.cdrom && runs.takes_disk(disk);
        for was in but_seed(&runs.disks) {
            if !self.disks.iter().any(|it| it.alias == was.alias) {
                let live = pluggable(was) && runs.lets_go(was.address.as_ref());
                let live = live.then(|| Live::DetachDisk(was.clone()));
                changes.field(path_of(was), "present", "absent", live);
            }
        }
        let taken: Vec<_> = runs.disks.iter().map(|it| it.target.clone()).collect();
        let reordered = self.boot_sequence(runs) != runs.boot_sequence(self);
        for wish in but_seed(&self.disks) {
            let path = path_of(wish);
            let Some(was) = runs.disks.iter().find(|it| it.alias == wish.alias) else {
                let live = pluggable(wish).then(|| runs.attachable_disk(wish, &taken));
                changes.field(path, "absent", "present", live.map(Live::AttachDisk));
                continue;
            };
            changes.restart(format!("{path}.bus"), &was.bus, &wish.bus);
            if reordered {
                changes.restart(
                    format!("{path}.bootOrder"),
                    order(was.boot_order),
                    order(wish.boot_order),
                );
            }
            if wish.cdrom {
                let medium = Disk {
                    volume: wish.volume.clone(),
                    ..was.clone()
                };
                changes.field(
                    format!("{path}.image"),
                    place_of(was),
                    place_of(wish),
                    Some(Live::ChangeMedium(medium)),
                );
            } else {
                changes.restart(format!("{path}.volume"), place_of(was), place_of(wish));
                let access = |disk: &Disk| {
                    if disk.read_only {
                        "read only"
                    } else {
                        "read and write"
                    }
                };
                changes.restart(format!("{path}.accessMode"), access(was), access(wish));
            }
        }
        // What is in it is nobody's business, and cloud-init looks at it when a guest starts.
        if self.seed() != runs.seed() {
            changes.restart("cloudInit", "as it was", "as it is now");
        }
    }

    /// The devices that both domains have, in the order in which this one boots from them. A device that
    /// is added or removed renumbers those after it, and changes nothing for them; a drive that is filled
    /// or emptied counts as added or removed.
    fn boot_sequence(&self, other: &Self) -> Vec<&str> {
        let is_common = |disk: &&Disk| {
            let same = other.disks.iter().find(|it| it.alias == disk.alias);
            same.is_some_and(|it| it.volume.is_some() == disk.volume.is_some())
        };
        let disks = self.disks.iter().filter(is_common);
        let disks = disks.filter_map(|disk| Some((disk.boot_order?, disk.alias.as_str())));
        let nics = self.nics.iter();
        let nics = nics.filter(|nic| other.nics.iter().any(|it| it.alias == nic.alias));
        let nics = nics.filter_map(|nic| Some((nic.boot_order?, nic.alias.as_str())));
        let mut sequence: Vec<_> = disks.chain(nics).collect();
        sequence.sort_unstable();
        sequence.into_iter().map(|(_, alias)| alias).collect()
    }

    fn seed(&self) -> Option<&Placed> {
        let mut disks = self.disks.iter();
        disks.find(|disk| is_seed(disk))?.volume.as_ref()
    }

    fn nics(&self, runs: &Self, changes: &mut Changes) {
        for was in &runs.nics {
            if !self.nics.iter().any(|it| it.alias == was.alias) {
                let live =
                    was.is_ours() && runs.takes_nic(was) && runs.lets_go(was.address.as_ref());
                let live = live.then(|| Live::DetachNic(was.clone()));
                changes.field(
                    format!("networks[{}]", was.name()),
                    "present",
                    "absent",
                    live,
                );
            }
        }
        let reordered = self.boot_sequence(runs) != runs.boot_sequence(self);
        for wish in &self.nics {
            let path = format!("networks[{}]", wish.name());
            let Some(was) = runs.nics.iter().find(|it| it.alias == wish.alias) else {
                let live = runs.takes_nic(wish).then(|| Nic {
                    boot_order: wish.boot_order.filter(|order| !runs.boots_from(*order)),
                    address: runs.free(wish.address.as_ref()),
                    ..wish.clone()
                });
                changes.field(path, "absent", "present", live.map(Live::AttachNic));
                continue;
            };
            changes.restart(format!("{path}.model"), &was.model, &wish.model);
            changes.restart(format!("{path}.macAddress"), was.mac, wish.mac);
            if reordered {
                changes.restart(
                    format!("{path}.bootOrder"),
                    order(was.boot_order),
                    order(wish.boot_order),
                );
            }
            changes.restart(format!("{path}.networkName"), &was.attached, &wish.attached);
            changes.restart(
                format!("{path}.mtu"),
                order(was.attached.mtu),
                order(wish.attached.mtu),
            );
        }
    }

    /// Whether a disk of this bus can be plugged in and out: AHCI and IDE cannot, and without ACPI nobody
    /// tells the guest.
    fn takes_disk(&self, disk: &Disk) -> bool {
        hotplug::takes_disk(&disk.bus, self.features.acpi)
    }

    /// Whether a card of this model can be plugged in and out: on q35 older ones sit behind a bridge.
    fn takes_nic(&self, nic: &Nic) -> bool {
        hotplug::takes_nic(&nic.model, self.is_q35(), self.features.acpi)
    }

    /// Whether a device can be pulled out from where it sits: on q35 the root itself holds all it has.
    fn lets_go(&self, address: Option<&Address>) -> bool {
        !(self.is_q35() && address.and_then(Address::pci_bus) == Some(0))
    }

    fn attachable_disk(&self, wish: &Disk, taken: &[String]) -> Disk {
        let mut disk = wish.clone();
        if taken.contains(&disk.target) {
            disk.target.clear();
            place(std::slice::from_mut(&mut disk), taken);
        }
        disk.boot_order = wish.boot_order.filter(|order| !self.boots_from(*order));
        disk.address = self.free(wish.address.as_ref());
        disk
    }

    /// A place, if it is there and nothing is in it. So a device that is plugged in sits where it will
    /// after a restart.
    fn free(&self, wish: Option<&Address>) -> Option<Address> {
        let wish = wish?;
        let bus = wish.pci_bus()?;
        let controllers = || self.controllers.iter();
        let is_there = controllers().any(|it| it.kind == "pci" && it.index == bus);
        let devices = self.disks.iter().map(|it| &it.address);
        let devices = devices.chain(self.nics.iter().map(|it| &it.address));
        let devices = devices.chain(controllers().map(|it| &it.address));
        let mut taken = devices.flatten().chain(self.addresses.values());
        let is_taken = taken.any(|it| it == wish);
        (is_there && !is_taken && self.lets_go(Some(wish))).then(|| wish.clone())
    }

    fn boots_from(&self, order: u32) -> bool {
        let disks = self.disks.iter().map(|it| it.boot_order);
        let nics = self.nics.iter().map(|it| it.boot_order);
        disks.chain(nics).flatten().any(|it| it == order)
    }
}

fn is_seed(disk: &Disk) -> bool {
    disk.name() == names::CLOUD_INIT_DISK
}

/// The disks and CD-ROM drives of the block.
fn but_seed(disks: &[Disk]) -> impl Iterator<Item = &Disk> {
    disks.iter().filter(|disk| !is_seed(disk))
}

fn path_of(disk: &Disk) -> String {
    let list = if disk.cdrom { "cdroms" } else { "disks" };
    format!("{list}[{}]", disk.name())
}

fn place_of(disk: &Disk) -> String {
    disk.volume.as_ref().map_or_else(
        || "nothing".to_owned(),
        |placed| format!("{}/{}", placed.pool, placed.volume),
    )
}

fn order(order: Option<u32>) -> String {
    order.map_or_else(|| "none".to_owned(), |order| order.to_string())
}

#[derive(Debug, Default)]
struct Changes(Vec<Change>);

impl Changes {
    fn field(
        &mut self,
        field: impl Into<String>,
        current: impl Display,
        desired: impl Display,
        live: Option<Live>,
    ) {
        let (current, desired) = (current.to_string(), desired.to_string());
        if current != desired {
            self.0.push(Change {
                field: field.into(),
                current,
                desired,
                live,
            });
        }
    }

    fn restart(&mut self, field: impl Into<String>, current: impl Display, desired: impl Display) {
        self.field(field, current, desired, None);
    }
}
