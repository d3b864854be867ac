//! Differences between the desired domain and the running one, by field of the block, and for each whether
//! libvirt can remove it while the guest runs.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use super::build::assign_targets;
use super::devices::{Disk, Nic, PoolVolume};
use super::domain::{Domain, kib};
use super::host_device::HostDevice;
use super::hotplug;
use super::ports::FreePorts;
use crate::api::choice::{Choice as _, CpuMode, FirmwareType};
use crate::names;

/// A field in which the running guest differs from the desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Path of the field, as in `status.pendingChanges`.
    pub field: String,
    /// Value of the running guest, as text for users.
    pub current: String,
    /// Value of the block, as text for users.
    pub desired: String,
    /// The update that applies the desired value to the running guest. `None`: it needs a restart.
    pub live: Option<LiveUpdate>,
}

/// An update of a running guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveUpdate {
    /// Hot-plug a disk.
    AttachDisk(Disk),
    /// Unplug a disk. A disk of another owner stays until the guest is off.
    DetachDisk(Disk),
    /// Hot-plug a network card.
    AttachNic(Nic),
    /// Unplug a network card. A card of another owner stays until the guest is off.
    DetachNic(Nic),
    /// Insert, replace or eject the medium of a CD-ROM drive.
    ChangeMedium(Disk),
    /// Increase the number of vCPUs to this total. It is never decreased, because a guest may ignore the
    /// request to unplug a vCPU.
    SetVcpus(u32),
    /// Set the guest's memory, in KiB, to more or less than before, up to the maximum that the balloon
    /// reaches.
    SetMemory(u64),
}

/// A phrase for logs.
impl Display for LiveUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttachDisk(disk) => write!(f, "disk {} plugged in", disk.name()),
            Self::DetachDisk(disk) => write!(f, "disk {} unplugged", disk.name()),
            Self::AttachNic(nic) => write!(f, "network card {} plugged in", nic.name()),
            Self::DetachNic(nic) => write!(f, "network card {} unplugged", nic.name()),
            Self::ChangeMedium(drive) => {
                write!(f, "{} in drive {}", volume_path(drive), drive.name())
            }
            Self::SetVcpus(vcpus) => write!(f, "{vcpus} vCPUs"),
            Self::SetMemory(kib) => write!(f, "memory {kib} KiB"),
        }
    }
}

impl Domain {
    /// All differences between this desired domain and the `running` one, in the order of the block.
    pub fn differences_from(&self, running: &Self) -> Vec<Difference> {
        let mut differences = Differences::default();
        self.sizes(running, &mut differences);
        self.hardware(running, &mut differences);
        let is_reordered = self.is_reordered(running);
        // A port that a device leaves in this pass is free in a later one.
        let mut ports = FreePorts::of(running);
        self.disks(running, is_reordered, &mut ports, &mut differences);
        self.nics(running, is_reordered, &mut ports, &mut differences);
        differences.0
    }

    fn sizes(&self, running: &Self, differences: &mut Differences) {
        let (current, desired) = (running.cpu, self.cpu);
        let live = hotplug::takes_vcpus(current, desired, running.features.acpi);
        let live = live.then(|| LiveUpdate::SetVcpus(desired.vcpus()));
        differences.field("cpu.sockets", current.sockets, desired.sockets, live);
        differences.restart("cpu.maxSockets", current.max_sockets, desired.max_sockets);
        differences.restart("cpu.cores", current.cores, desired.cores);
        differences.restart("cpu.threads", current.threads, desired.threads);
        let (current, desired) = (running.memory, self.memory);
        let live = hotplug::takes_memory(current, desired);
        let live = live.then(|| LiveUpdate::SetMemory(kib(desired.size)));
        differences.field("memory.size", current.size, desired.size, live);
        differences.restart("memory.maxSize", current.max_size, desired.max_size);
        let pages = |it: &Self| it.hugepages.map_or("none", |size| size.as_str());
        differences.restart("memory.hugepages", pages(running), pages(self));
        let (current, desired) = (running.pinning.describe(), self.pinning.describe());
        differences.restart("cpu.dedicated", current, desired);
        if !self.has_cpu_model_of(running) {
            let model = |it: &Self| {
                let mode = it.cpu_mode.as_str();
                it.cpu_model.clone().unwrap_or_else(|| mode.to_owned())
            };
            differences.restart("cpu.model", model(running), model(self));
        }
    }

    /// Whether the running guest has the CPU model of this desired one. A running guest with `host-model` shows the model
    /// that libvirt chose, as one does that was started with this model. Another mode of the host alone is no difference:
    /// its administrator chose it for guests to come.
    fn has_cpu_model_of(&self, running: &Self) -> bool {
        let requested = self.cpu_model.as_deref();
        match requested.map(|model| CpuMode::parse(model).ok_or(model)) {
            None if self.cpu_mode == CpuMode::HostModel => true,
            None => running.cpu_model.is_none(),
            Some(Ok(mode)) => running.cpu_mode == mode,
            Some(Err(_)) => running.cpu_model.as_deref() == requested,
        }
    }

    fn hardware(&self, running: &Self, differences: &mut Differences) {
        let chipset = |it: &Self| if it.is_q35() { "q35" } else { "pc" };
        differences.restart("machineType", chipset(running), chipset(self));
        let firmware = |it: &Self| match (it.firmware.kind, it.firmware.secure_boot) {
            (FirmwareType::Bios, _) => "bios",
            (FirmwareType::Efi, Some(true)) => "efi with secureBoot",
            (FirmwareType::Efi, _) => "efi",
        };
        differences.restart("firmware", firmware(running), firmware(self));
        let tpm = |it: &Self| match it.tpm {
            None => "none",
            Some(tpm) if tpm.persistent => "persistent",
            Some(_) => "not persistent",
        };
        differences.restart("tpm", tpm(running), tpm(self));
        let devices = |it: &Self| devices_text(&it.host_devices);
        differences.restart("devices", devices(running), devices(self));
        let watchdog = |it: &Self| it.watchdog.map_or("none", |action| action.as_str());
        differences.restart("watchdog", watchdog(running), watchdog(self));
        let zone = |it: &Self| it.timezone.clone().unwrap_or_else(|| "UTC".to_owned());
        differences.restart("clock.timezone", zone(running), zone(self));
        let (current, desired) = (running.features, self.features);
        differences.restart("features.acpi", current.acpi, desired.acpi);
        differences.restart("features.apic", current.apic, desired.apic);
        differences.restart("features.hyperv", current.hyperv, desired.hyperv);
        let (current, desired) = (&running.display, &self.display);
        differences.restart("display.type", current.kind(), desired.kind());
        if current.kind() == desired.kind() {
            differences.restart("display.video", &current.video, &desired.video);
        }
        let log = |it: &Self| it.console_log.is_some();
        differences.restart("console.log", log(running), log(self));
    }

    fn disks(
        &self,
        running: &Self,
        is_reordered: bool,
        ports: &mut FreePorts,
        differences: &mut Differences,
    ) {
        let pluggable = |disk: &Disk| disk.is_our_disk() && running.can_hotplug_disk(disk);
        for current in without_seed(&running.disks) {
            if !self.disks.iter().any(|it| it.alias == current.alias) {
                let live = pluggable(current) && running.can_unplug_at(current.address.as_ref());
                let live = live.then(|| LiveUpdate::DetachDisk(current.clone()));
                differences.field(field_path(current), "present", "absent", live);
            }
        }
        let taken: Vec<_> = running.disks.iter().map(|it| it.target.clone()).collect();
        for desired in without_seed(&self.disks) {
            let path = field_path(desired);
            let Some(current) = running.disks.iter().find(|it| it.alias == desired.alias) else {
                let live =
                    pluggable(desired) && (!hotplug::needs_port(&desired.bus) || ports.take());
                let live = live.then(|| running.attachable_disk(desired, &taken));
                differences.field(path, "absent", "present", live.map(LiveUpdate::AttachDisk));
                continue;
            };
            differences.restart(format!("{path}.bus"), &current.bus, &desired.bus);
            if is_reordered {
                differences.restart(
                    format!("{path}.bootOrder"),
                    or_none(current.boot_order),
                    or_none(desired.boot_order),
                );
            }
            if desired.cdrom {
                let medium = Disk {
                    volume: desired.volume.clone(),
                    ..current.clone()
                };
                differences.field(
                    format!("{path}.image"),
                    volume_path(current),
                    volume_path(desired),
                    Some(LiveUpdate::ChangeMedium(medium)),
                );
            } else {
                differences.restart(
                    format!("{path}.volume"),
                    volume_path(current),
                    volume_path(desired),
                );
                let serial = |disk: &Disk| disk.serial.clone().unwrap_or_else(|| "none".to_owned());
                differences.restart(format!("{path}.serial"), serial(current), serial(desired));
                let access = |disk: &Disk| {
                    if disk.read_only {
                        "read only"
                    } else {
                        "read and write"
                    }
                };
                differences.restart(
                    format!("{path}.accessMode"),
                    access(current),
                    access(desired),
                );
            }
        }
        // The values are confidential, so the texts are fixed. cloud-init reads a seed only when a guest starts.
        if self.seed() != running.seed() {
            differences.restart("cloudInit", "as it was", "as it is now");
        }
    }

    /// Whether the devices that both domains have are in another boot order. A device that is added or removed renumbers
    /// those after it, which changes nothing for them. A drive that was filled or emptied counts as added or removed. A
    /// device that was plugged into the running guest may have no number until the restart, which nothing waits for.
    fn is_reordered(&self, running: &Self) -> bool {
        let plugged_disk = |disk: &Disk| {
            let mut others = running.disks.iter().filter(|it| it.cdrom == disk.cdrom);
            disk.boot_order.is_none() && others.any(|it| it.boot_order.is_some())
        };
        let plugged_nic = |nic: &Nic| {
            nic.boot_order.is_none() && running.nics.iter().any(|it| it.boot_order.is_some())
        };
        let disks = running.disks.iter().filter(|disk| !plugged_disk(disk));
        let disks = disks.filter(|disk| {
            let same = self.disks.iter().find(|it| it.alias == disk.alias);
            same.is_some_and(|it| it.volume.is_some() == disk.volume.is_some())
        });
        let nics = running.nics.iter().filter(|nic| !plugged_nic(nic));
        let nics = nics.filter(|nic| self.nics.iter().any(|it| it.alias == nic.alias));
        let disks = disks.map(|disk| disk.alias.as_str());
        let common: BTreeSet<_> = disks.chain(nics.map(|nic| nic.alias.as_str())).collect();
        self.boot_sequence(&common) != running.boot_sequence(&common)
    }

    /// Those of these devices from which this domain boots, in order.
    fn boot_sequence(&self, devices: &BTreeSet<&str>) -> Vec<&str> {
        let disks = self.disks.iter();
        let disks = disks.filter_map(|disk| Some((disk.boot_order?, disk.alias.as_str())));
        let nics = self.nics.iter();
        let nics = nics.filter_map(|nic| Some((nic.boot_order?, nic.alias.as_str())));
        let all = disks.chain(nics);
        let mut sequence: Vec<_> = all.filter(|(_, alias)| devices.contains(alias)).collect();
        sequence.sort_unstable();
        sequence.into_iter().map(|(_, alias)| alias).collect()
    }

    fn seed(&self) -> Option<&PoolVolume> {
        let mut disks = self.disks.iter();
        disks.find(|disk| is_seed(disk))?.volume.as_ref()
    }

    fn nics(
        &self,
        running: &Self,
        is_reordered: bool,
        ports: &mut FreePorts,
        differences: &mut Differences,
    ) {
        for current in &running.nics {
            if !self.nics.iter().any(|it| it.alias == current.alias) {
                let live = current.is_ours()
                    && running.can_hotplug_nic(current)
                    && running.can_unplug_at(current.address.as_ref());
                let live = live.then(|| LiveUpdate::DetachNic(current.clone()));
                differences.field(
                    format!("networks[{}]", current.name()),
                    "present",
                    "absent",
                    live,
                );
            }
        }
        for desired in &self.nics {
            let path = format!("networks[{}]", desired.name());
            let Some(current) = running.nics.iter().find(|it| it.alias == desired.alias) else {
                let live = running.can_hotplug_nic(desired) && ports.take();
                let live = live.then(|| Nic {
                    boot_order: desired
                        .boot_order
                        .filter(|order| !running.has_boot_order(*order)),
                    address: running.free_address(desired.address.as_ref()),
                    ..desired.clone()
                });
                differences.field(path, "absent", "present", live.map(LiveUpdate::AttachNic));
                continue;
            };
            differences.restart(format!("{path}.model"), &current.model, &desired.model);
            differences.restart(format!("{path}.macAddress"), current.mac, desired.mac);
            if is_reordered {
                differences.restart(
                    format!("{path}.bootOrder"),
                    or_none(current.boot_order),
                    or_none(desired.boot_order),
                );
            }
            differences.restart(
                format!("{path}.networkName"),
                &current.attachment,
                &desired.attachment,
            );
            differences.restart(
                format!("{path}.mtu"),
                or_none(current.attachment.mtu),
                or_none(desired.attachment.mtu),
            );
        }
    }

    /// Whether a disk on this bus can be hot-plugged and unplugged: SATA and IDE do not support it, and on
    /// PCI the guest is notified through ACPI.
    fn can_hotplug_disk(&self, disk: &Disk) -> bool {
        hotplug::takes_disk(&disk.bus, self.features.acpi)
    }

    /// Whether a card of this model can be hot-plugged and unplugged: on q35, models of conventional PCI are
    /// behind a bridge that does not support it.
    fn can_hotplug_nic(&self, nic: &Nic) -> bool {
        hotplug::takes_nic(&nic.model, self.is_q35(), self.features.acpi)
    }

    fn attachable_disk(&self, desired: &Disk, taken: &[String]) -> Disk {
        let mut disk = desired.clone();
        if taken.contains(&disk.target) {
            disk.target.clear();
            assign_targets(std::slice::from_mut(&mut disk), taken);
        }
        disk.boot_order = desired
            .boot_order
            .filter(|order| !self.has_boot_order(*order));
        disk.address = self.free_address(desired.address.as_ref());
        disk
    }

    fn has_boot_order(&self, order: u32) -> bool {
        let disks = self.disks.iter().map(|it| it.boot_order);
        let nics = self.nics.iter().map(|it| it.boot_order);
        disks.chain(nics).flatten().any(|it| it == order)
    }
}

fn is_seed(disk: &Disk) -> bool {
    disk.name() == names::CLOUD_INIT_DISK
}

/// The disks and CD-ROM drives of the block, without the drive of the seed image.
fn without_seed(disks: &[Disk]) -> impl Iterator<Item = &Disk> {
    disks.iter().filter(|disk| !is_seed(disk))
}

fn field_path(disk: &Disk) -> String {
    let list = if disk.cdrom { "cdroms" } else { "disks" };
    format!("{list}[{}]", disk.name())
}

fn volume_path(disk: &Disk) -> String {
    disk.volume.as_ref().map_or_else(
        || "nothing".to_owned(),
        |volume| format!("{}/{}", volume.pool, volume.volume),
    )
}

/// Devices of the host as text: `name=address`.
fn devices_text(devices: &[HostDevice]) -> String {
    if devices.is_empty() {
        return "none".to_owned();
    }
    let text = |it: &HostDevice| format!("{}={}", it.name(), it.source);
    let texts: Vec<_> = devices.iter().map(text).collect();
    texts.join(",")
}

fn or_none(number: Option<u32>) -> String {
    number.map_or_else(|| "none".to_owned(), |number| number.to_string())
}

#[derive(Debug, Default)]
struct Differences(Vec<Difference>);

impl Differences {
    fn field(
        &mut self,
        field: impl Into<String>,
        current: impl Display,
        desired: impl Display,
        live: Option<LiveUpdate>,
    ) {
        let (current, desired) = (current.to_string(), desired.to_string());
        if current != desired {
            self.0.push(Difference {
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
