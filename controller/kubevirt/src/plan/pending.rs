//! Changes that the running guest does not have yet, by field of the block, and what brings each into effect.
//!
//! What is pending is what differs between the desired and the [running](super::running) guest. KubeVirt's condition
//! `RestartRequired` names no fields, and it is also there for a card that was added and removed again.
//!
//! One file, because each part of the block has its few lines here, and a part that is missing is seen.

use std::collections::{BTreeMap, BTreeSet};

use common::api::choice::{Backend, Choice as _, WatchdogAction};
use common::api::normalized::{Normalized, NormalizedMemory};
use common::api::status::PendingChange;
use common::labels_text;
use common::names;
use common::quantity::Bytes;
use common::render::SecretRevision;
use common::render::kubevirt::types::{
    Devices, Disk, Domain, InstanceSpec, Interface, Memory, Network, Template, Volume,
};
use common::render::kubevirt::{hotplug, tolerations_text};
use common::rules::update::{Effect, pending_action, pending_effect};

use super::changes::Changes;
use super::running::running;
use crate::objects::{GuestPod, Instance};
use controller_core::objects::Meta as _;

/// Field of the spec for each annotation that records a Secret's revision.
const ANNOTATIONS: [(&str, &str); 2] = [
    (names::ANNOTATION_USER_DATA, "cloudInit.secretRef"),
    (
        names::ANNOTATION_NETWORK_DATA,
        "cloudInit.networkDataSecretRef",
    ),
];

/// A guest that runs, and what KubeVirt does to it.
#[derive(Clone, Copy)]
pub(super) struct Guest<'a> {
    pub(super) instance: &'a Instance,
    /// The pod in which it runs, if that is known.
    pub(super) pod: Option<&'a GuestPod>,
    /// Whether KubeVirt reports that it applies no change before a restart.
    pub(super) refuses: bool,
    /// Whether KubeVirt plugs disks into it and out of it.
    pub(super) plugs_disks: bool,
}

/// Every desired change that the guest does not have.
pub(super) fn pending(machine: &str, guest: &Guest<'_>, desired: &Template) -> Vec<PendingChange> {
    let Guest {
        instance,
        pod,
        refuses,
        plugs_disks,
    } = *guest;
    let runs = running(machine, instance, pod, &desired.spec);
    let mut list = changes(&runs, &desired.spec);
    let can_migrate = instance.migration_obstacle().is_none();
    // KubeVirt's instance has a change before the guest, if a migration can apply it.
    let missing = changes(&instance.spec, &desired.spec);
    let missing: BTreeSet<_> = missing.into_iter().map(|change| change.field).collect();
    let fits = |field: &str| match field {
        "cpu.sockets" => {
            let [instance, desired] =
                [&instance.spec, &desired.spec].map(|it| it.domain.cpu.topology());
            hotplug::takes_sockets(instance, desired)
        }
        "memory.size" => takes_memory(instance, &desired.spec).unwrap_or(false),
        _ => true,
    };
    // True if the VirtualMachine or the instance has the volume, and each that has it lists it as hot-plugged.
    let can_plug = |field: &str| {
        let volumes = [&desired.spec, &instance.spec].map(|spec| {
            let mut volumes = spec.volumes.iter();
            volumes.find(|volume| changes_with(volume, field))
        });
        let mut volumes = volumes.into_iter().flatten().peekable();
        plugs_disks && volumes.peek().is_some() && volumes.all(Volume::is_plugged_in)
    };
    for change in &mut list {
        let can_apply =
            can_migrate && fits(&change.field) && !(refuses && missing.contains(&change.field));
        // KubeVirt plugs disks in and out without a migration, also while it applies nothing else.
        let effect = pending_effect(Backend::Kubevirt, &change.field);
        let is_plugged = effect == Some(Effect::HotPlugOrRestart);
        let in_progress = if is_plugged {
            can_plug(&change.field)
        } else {
            can_apply
        };
        let action = pending_action(Backend::Kubevirt, &change.field, in_progress);
        action.as_str().clone_into(&mut change.action);
    }
    list.extend(secrets(instance, desired));
    list.extend(started_with(instance, desired));
    list
}

/// The sizes that the guest has in place of those of the block.
pub(super) fn other_sizes(
    machine: &str,
    instance: &Instance,
    pod: Option<&GuestPod>,
    block: &Normalized,
) -> Vec<PendingChange> {
    let runs = running(machine, instance, pod, &instance.spec);
    let memory = &runs.domain.memory;
    let bytes = |text: &str| text.parse::<Bytes>().ok();
    let size = bytes(&memory.guest).unwrap_or(block.memory.size);
    let most = memory.max_guest.as_deref().and_then(bytes);
    let memory = NormalizedMemory {
        size,
        max_size: most.unwrap_or(size),
    };
    let sizes = block.other_sizes(runs.domain.cpu.topology(), memory);
    let change = |(field, current, desired): (&str, String, String)| PendingChange {
        field: field.to_owned(),
        current,
        desired,
        action: pending_action(Backend::Kubevirt, field, false)
            .as_str()
            .to_owned(),
    };
    sizes.into_iter().map(change).collect()
}

/// Whether KubeVirt gives the guest its desired memory without a restart; `None`: the instance has no maximum, or one that
/// cannot be read.
fn takes_memory(instance: &Instance, desired: &InstanceSpec) -> Option<bool> {
    let bytes = |text: &str| text.parse::<Bytes>().ok();
    let memory = &instance.spec.domain.memory;
    let least = instance.status.memory.guest_at_boot.as_ref();
    let least = bytes(least.unwrap_or(&memory.guest))?;
    let most = bytes(memory.max_guest.as_ref()?)?;
    let desired = bytes(&desired.domain.memory.guest)?;
    Some(hotplug::takes_memory(least, most, desired))
}

/// Whether a change of this field, of a disk or of a medium, is one of this volume.
fn changes_with(volume: &Volume, field: &str) -> bool {
    let name = &volume.name;
    field == format!("disks[{name}]") || field == format!("cdroms[{name}].image")
}

/// The group, the labels, the CPU model and the affinity that the guest was started with.
fn started_with(runs: &Instance, desired: &Template) -> Vec<PendingChange> {
    let mut changes = Changes::default();
    for (field, annotation) in [
        ("placement.antiAffinityGroup", names::ANNOTATION_GROUP),
        ("metadata.labels", names::ANNOTATION_LABELS),
        ("cpu.model", names::ANNOTATION_CPU_MODEL),
    ] {
        let current = runs.annotation(annotation).unwrap_or("none");
        let wanted = desired.metadata.annotations.get(annotation);
        changes.field(field, current, wanted.map_or("none", String::as_str));
    }
    for (field, annotation) in [
        ("placement.affinity", names::ANNOTATION_AFFINITY),
        (
            "placement.topologySpreadConstraints",
            names::ANNOTATION_SPREAD,
        ),
        ("backendOverrides", names::ANNOTATION_OVERRIDES),
        ("metadata.annotations", names::ANNOTATION_ANNOTATIONS),
    ] {
        let current = runs.annotation(annotation);
        let wanted = desired.metadata.annotations.get(annotation);
        if current != wanted.map(String::as_str) {
            changes.field(field, "as it was", "as it is now");
        }
    }
    changes.list
}

/// Secrets whose content differs from what the guest was started with. KubeVirt does not compare them.
fn secrets(runs: &Instance, desired: &Template) -> Vec<PendingChange> {
    let mut changes = Changes::default();
    for (key, field) in ANNOTATIONS {
        let runs = runs.annotation(key).and_then(SecretRevision::parse);
        let wanted = desired.metadata.annotations.get(key);
        let both = runs.zip(wanted.and_then(|it| SecretRevision::parse(it)));
        let both = both.filter(|(runs, wanted)| runs.digest != wanted.digest);
        let mut volumes = desired.spec.volumes.iter();
        let field = if volumes.any(|volume| volume.sysprep.is_some()) {
            "cloudInit.sysprep"
        } else {
            field
        };
        if let Some((runs, desired_at)) = both {
            let version = |it: SecretRevision| format!("resourceVersion {}", it.version);
            changes.field(field, version(runs), version(desired_at));
        }
    }
    changes.list
}

/// The differences between the running and the desired guest, in the order of the block.
fn changes(runs: &InstanceSpec, desired: &InstanceSpec) -> Vec<PendingChange> {
    let mut changes = Changes::default();
    hardware(&mut changes, &runs.domain, &desired.domain);
    let [has, wanted] = [runs, desired].map(|spec| disks_in(spec, "disks"));
    changes.items("disks", (&has, &wanted), |disk| &disk.name, disk);
    media(&mut changes, runs, desired);
    changes.items(
        "networks",
        (
            &runs.domain.devices.interfaces,
            &desired.domain.devices.interfaces,
        ),
        |interface| &interface.name,
        interface,
    );
    boot_order(&mut changes, runs, desired);
    for wanted in &desired.networks {
        let same = |network: &&Network| network.name == wanted.name;
        if let Some(runs) = runs.networks.iter().find(same) {
            let field = format!("networks[{}].networkName", wanted.name);
            changes.field(&field, attachment(runs), attachment(wanted));
        }
    }
    changes.field(
        "nodeSelector",
        labels_text(&runs.node_selector),
        labels_text(&desired.node_selector),
    );
    changes.field(
        "placement.tolerations",
        tolerations_text(&runs.tolerations),
        tolerations_text(&desired.tolerations),
    );
    changes.field(
        "placement.priorityClassName",
        or_none(&runs.priority_class_name),
        or_none(&desired.priority_class_name),
    );
    changes.field(
        "evictionStrategy",
        &runs.eviction_strategy,
        &desired.eviction_strategy,
    );
    if runs.readiness_probe != desired.readiness_probe {
        changes.field("probes.readiness", "as it was", "as it is now");
    }
    if runs.liveness_probe != desired.liveness_probe {
        changes.field("probes.liveness", "as it was", "as it is now");
    }
    // KubeVirt has a default of its own.
    if let Some(seconds) = desired.termination_grace_period_seconds {
        let current = runs.termination_grace_period_seconds;
        let current = current.map_or_else(|| "the default".to_owned(), |it| it.to_string());
        changes.field("terminationGracePeriodSeconds", current, seconds);
    }
    // Cloud-init data may hold passwords, so the status shows neither value.
    let cloud_init = |spec: &InstanceSpec| {
        let volumes = spec.volumes.iter();
        let mut volumes = volumes.filter(|volume| volume.persistent_volume_claim.is_none());
        volumes.next().cloned()
    };
    if cloud_init(runs) != cloud_init(desired) {
        changes.field("cloudInit", "as it was", "as it is now");
    }
    changes.list
}

/// The disks that are in this list of the block: `disks` or `cdroms`.
fn disks_in(spec: &InstanceSpec, list: &str) -> Vec<Disk> {
    let disks = spec.domain.devices.disks.iter();
    let ours = disks.filter(|disk| disk.name != names::CLOUD_INIT_DISK);
    ours.filter(|disk| list_of(disk) == list).cloned().collect()
}

/// The list of the block that a disk is in.
fn list_of(disk: &Disk) -> &'static str {
    if disk.cdrom.is_some() {
        "cdroms"
    } else {
        "disks"
    }
}

/// Drives, and the media in them, which are identified by their claims.
fn media(changes: &mut Changes, runs: &InstanceSpec, desired: &InstanceSpec) {
    let claim = |spec: &InstanceSpec, drive: &str| {
        let mut volumes = spec.volumes.iter();
        let volume = volumes.find(|volume| volume.name == drive);
        let claim = volume.and_then(Volume::claim);
        claim.unwrap_or("none").to_owned()
    };
    let [drives, wanted] = [runs, desired].map(|spec| disks_in(spec, "cdroms"));
    let compare = |changes: &mut Changes, path: &str, drive: &Disk, _: &Disk| {
        let (runs, wanted) = (claim(runs, &drive.name), claim(desired, &drive.name));
        changes.field(&format!("{path}.image"), runs, wanted);
    };
    changes.items("cdroms", (&drives, &wanted), |drive| &drive.name, compare);
}

fn hardware(changes: &mut Changes, runs: &Domain, desired: &Domain) {
    let most = |domain: &Domain| domain.cpu.max_sockets.unwrap_or(domain.cpu.sockets);
    changes.field("cpu.sockets", runs.cpu.sockets, desired.cpu.sockets);
    changes.field("cpu.maxSockets", most(runs), most(desired));
    changes.field("cpu.cores", runs.cpu.cores, desired.cpu.cores);
    changes.field("cpu.threads", runs.cpu.threads, desired.cpu.threads);
    let most = |domain: &Domain| {
        let Memory {
            guest, max_guest, ..
        } = &domain.memory;
        max_guest.as_ref().unwrap_or(guest).clone()
    };
    changes.field("memory.size", &runs.memory.guest, &desired.memory.guest);
    // Without a maximum KubeVirt chooses one for the instance.
    if desired.memory.max_guest.is_some() {
        changes.field("memory.maxSize", most(runs), most(desired));
    }
    of_node(changes, runs, desired);
    changes.field("machineType", &runs.machine.r#type, &desired.machine.r#type);
    let firmware = |domain: &Domain| match &domain.firmware.bootloader.efi {
        None => "bios",
        Some(efi) if efi.secure_boot == Some(true) => "efi with secureBoot",
        Some(_) => "efi",
    };
    changes.field("firmware", firmware(runs), firmware(desired));
    // Of the operating system alone, KubeVirt gets the tablet.
    let tablet = |domain: &Domain| {
        let has_one = domain.devices.inputs.iter().any(|it| it.r#type == "tablet");
        if has_one { "windows" } else { "unknown" }
    };
    changes.field("os", tablet(runs), tablet(desired));
    let persistent = |domain: &Domain| {
        let efi = domain.firmware.bootloader.efi.as_ref();
        efi.map(|efi| efi.persistent == Some(true))
    };
    if let Some((runs, desired)) = persistent(runs).zip(persistent(desired)) {
        changes.field("firmware.persistent", runs, desired);
    }
    let tpm = |domain: &Domain| match &domain.devices.tpm {
        None => "none",
        Some(tpm) if tpm.persistent == Some(true) => "persistent",
        Some(_) => "not persistent",
    };
    changes.field("tpm", tpm(runs), tpm(desired));
    changes.field("watchdog", watchdog(runs), watchdog(desired));
    let zone = |domain: &Domain| {
        let clock = domain.clock.as_ref();
        let zone = clock.and_then(|clock| clock.timezone.clone());
        zone.unwrap_or_else(|| "UTC".to_owned())
    };
    changes.field("clock.timezone", zone(runs), zone(desired));
    let acpi = |domain: &Domain| {
        let acpi = domain.features.acpi.as_ref();
        acpi.and_then(|acpi| acpi.enabled).unwrap_or(true)
    };
    changes.field("features.acpi", acpi(runs), acpi(desired));
    let apic = |domain: &Domain| {
        let apic = domain.features.apic.as_ref();
        apic.and_then(|apic| apic.enabled).unwrap_or(true)
    };
    changes.field("features.apic", apic(runs), apic(desired));
    let hyperv = |domain: &Domain| domain.features.hyperv.is_some();
    changes.field("features.hyperv", hyperv(runs), hyperv(desired));
    screen(changes, &runs.devices, &desired.devices);
}

/// What the guest has of its node for itself.
fn of_node(changes: &mut Changes, runs: &Domain, desired: &Domain) {
    let dedicated = |domain: &Domain| domain.cpu.dedicated_cpu_placement;
    changes.field("cpu.dedicated", dedicated(runs), dedicated(desired));
    let pages = |domain: &Domain| {
        let pages = domain.memory.hugepages.as_ref();
        pages.map_or_else(|| "none".to_owned(), |pages| pages.page_size.clone())
    };
    changes.field("memory.hugepages", pages(runs), pages(desired));
    let devices = |domain: &Domain| {
        let Devices {
            gpus, host_devices, ..
        } = &domain.devices;
        [gpus.as_slice(), host_devices].concat()
    };
    changes.items(
        "devices",
        (&devices(runs), &devices(desired)),
        |device| &device.name,
        |changes, path, runs, desired| {
            let field = format!("{path}.deviceName");
            changes.field(&field, &runs.device_name, &desired.device_name);
        },
    );
}

/// What the watchdog of the guest does.
fn watchdog(domain: &Domain) -> String {
    let watchdog = domain.devices.watchdog.as_ref();
    let model = watchdog.and_then(|watchdog| watchdog.i6300esb.as_ref());
    let choice = model.and_then(|model| WatchdogAction::of_backend(&model.action));
    choice.map_or_else(|| "none".to_owned(), |choice| choice.to_string())
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

/// What the spec leaves to KubeVirt is as KubeVirt chose it.
fn screen(changes: &mut Changes, runs: &Devices, desired: &Devices) {
    let kind = |devices: &Devices| match devices.autoattach_graphics_device {
        Some(false) => "none",
        _ => "vnc",
    };
    changes.field("display.type", kind(runs), kind(desired));
    let model = |devices: &Devices| {
        let video = devices.video.as_ref();
        video.map_or_else(|| "the default".to_owned(), |video| video.r#type.clone())
    };
    if desired.video.is_some() && kind(runs) == kind(desired) {
        changes.field("display.video", model(runs), model(desired));
    }
    if let Some(log) = desired.log_serial_console {
        let is = runs.log_serial_console;
        let is = is.map_or_else(|| "the default".to_owned(), |log| log.to_string());
        changes.field("console.log", is, log);
    }
}

fn disk(changes: &mut Changes, path: &str, runs: &Disk, desired: &Disk) {
    let bus = |disk: &Disk| {
        let target = disk.disk.as_ref().or(disk.cdrom.as_ref());
        target.map_or_else(String::new, |target| target.bus.clone())
    };
    changes.field(&format!("{path}.bus"), bus(runs), bus(desired));
    let serial = |disk: &Disk| disk.serial.clone().unwrap_or_else(|| "none".to_owned());
    changes.field(&format!("{path}.serial"), serial(runs), serial(desired));
    let shareable = |disk: &Disk| disk.shareable.unwrap_or(false);
    let shared = (shareable(runs), shareable(desired));
    changes.field(&format!("{path}.shareable"), shared.0, shared.1);
}

fn interface(changes: &mut Changes, path: &str, runs: &Interface, desired: &Interface) {
    changes.field(&format!("{path}.model"), &runs.model, &desired.model);
    changes.field(
        &format!("{path}.macAddress"),
        &runs.mac_address,
        &desired.mac_address,
    );
}

/// The boot order of the devices that both guests have. A device that is added or removed moves the numbers of those
/// behind it, but not their order.
fn boot_order(changes: &mut Changes, runs: &InstanceSpec, desired: &InstanceSpec) {
    let (runs, desired) = (boot_numbers(runs), boot_numbers(desired));
    let ranks = |one: &BTreeMap<String, Option<u32>>, other: &BTreeMap<String, Option<u32>>| {
        let both = one.iter().filter(|(path, _)| other.contains_key(*path));
        let mut ordered: Vec<_> = both.filter_map(|(path, at)| Some(((*at)?, path))).collect();
        ordered.sort_unstable();
        let ordered = ordered.into_iter().enumerate();
        ordered
            .map(|(rank, (_, path))| (path.clone(), rank))
            .collect::<BTreeMap<_, _>>()
    };
    let (was, is) = (ranks(&runs, &desired), ranks(&desired, &runs));
    let show = |number: Option<u32>| number.map_or_else(|| "none".to_owned(), |it| it.to_string());
    for (path, desired) in desired {
        if let Some(runs) = runs.get(&path).filter(|_| was.get(&path) != is.get(&path)) {
            changes.field(&format!("{path}.bootOrder"), show(*runs), show(desired));
        }
    }
}

/// Position in the boot order of each disk and network card, by its path in the block.
fn boot_numbers(spec: &InstanceSpec) -> BTreeMap<String, Option<u32>> {
    let disks = ["disks", "cdroms"].into_iter();
    let disks = disks.flat_map(|list| disks_in(spec, list));
    let disks = disks.map(|disk| {
        let path = format!("{}[{}]", list_of(&disk), disk.name);
        (path, disk.boot_order)
    });
    let cards = spec.domain.devices.interfaces.iter();
    let cards = cards.map(|card| (format!("networks[{}]", card.name), card.boot_order));
    disks.chain(cards).collect()
}

fn attachment(network: &Network) -> &str {
    let multus = network.multus.as_ref();
    multus.map_or("pod", |multus| &multus.network_name)
}
