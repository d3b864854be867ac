//! Boot order and CD-ROMs.
//!
//! A machine always has a network card, so `network` in the order always names one, and an
//! order that passes these rules always names a device to boot from.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::choice::{Backend, BootDevice, Choice as _};
use crate::api::machine::Cdrom;
use crate::api::normalized::NormalizedCdrom;
use crate::catalog::DECLARATIVE_HOTPLUG;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{ClassRequest, Item, Leaf, Merged, Pins};
use crate::quantity::Bytes;
use crate::violation::{Findings, Kind, Violation};

use super::boot_image::{is_filled, written_order};
use super::rule::{Check, Lookup, Parts, Subject, rules};
use super::{disks, form, images, quantities};

rules! {
    "boot" Check::Part(cdroms), on MACHINES, Always, and [InvalidObjectName, SecretNameRequired, EmptyStorageClass, DiskSmallerThanImage] {
        Refuse CdromSizeRequired = "The image of a CD-ROM is imported into a volume of unknown size."
            because "The image is imported into a claim, and a claim has a size."
            fix "Give a size that holds the image."
            crd Some,
    }
    "boot" Check::Lookup(empty_drives), on MACHINES, Always {
        Refuse EmptyCdrom = "A CD-ROM drive is empty, and the cluster's KubeVirt has no empty drives."
            because "KubeVirt has empty drives with the feature gate DeclarativeHotplugVolumes, which is enabled by default since 1.9; otherwise it refuses the VirtualMachine."
            fix "Give an image, remove the drive, or ask an administrator to enable the gate (`spec.configuration.developerConfiguration.featureGates` of the `KubeVirt` object) or to update KubeVirt."
            crd Nothing,
    }
    "boot" Check::Part(boot_order), on MACHINES_AND_TEMPLATES, Always {
        Refuse UnsupportedBootDevice = "The boot order names a class of devices that does not exist."
            because "There are three classes of devices to boot from."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse DuplicateBootDevice = "The boot order names a class of devices twice."
            because "A class has one place in the order."
            fix "Name each class once."
            crd All,
        Refuse BootWithoutDisk = "The boot order names disks, and the Machine has none."
            because "The machine would not find what it shall boot from."
            fix "Add a disk, or take `disk` out of the order."
            crd Nothing,
        Refuse BootWithoutCdrom = "The boot order names CD-ROMs, and on libvirt no drive holds an image, or on KubeVirt the Machine has no drive."
            because "The machine would not find what it shall boot from."
            fix "Add an image, or take `cdrom` out of the order."
            crd Some,
    }
    "boot" Check::Creation(nothing_to_boot), on MACHINES, Create {
        Warn NothingToBoot = "Nothing that the Machine has can be booted from: its disks are blank, and it asks for no CD-ROM and no network boot."
            because "A blank disk boots nothing, and the machine stops at its firmware. The default network card boots only where something answers it, so it counts only if `bootOrder` names `network`."
            fix "Give a disk an image or an existing volume, add a CD-ROM with an image, or name `network` in `bootOrder`."
            crd Nothing,
    }
}

/// The CD-ROM drives of the machine, without boot order.
fn cdroms(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let Subject {
        merged,
        backend,
        pins,
        ..
    } = *subject;
    parts.cdroms = merged
        .cdroms
        .iter()
        .map(|item| cdrom(merged, item, backend, pins, findings))
        .collect::<Vec<_>>()
        .into_iter()
        .collect();
}

fn cdrom(
    merged: &Merged<'_>,
    item: &Item<'_, Cdrom>,
    backend: Backend,
    pins: &Pins,
    findings: &mut Findings,
) -> Option<NormalizedCdrom> {
    let before = findings.count();
    let name = disks::disk_name(merged, item.name(), findings);
    let image = item.written_image();
    if let Some(image) = image.value {
        let at = |part| item.path(part, |_| true);
        let fetched_by_cdi = backend == Backend::Kubevirt;
        images::source(image, backend, fetched_by_cdi, &at, findings);
        images::resolved(item, backend, findings);
    }
    let size = cdrom_size(item, backend, findings);
    let class = item.pick("storageClass", |cdrom| cdrom.storage_class.as_deref());
    let storage_class = if is_imported(item, backend) {
        let request = storage_class_request(class, findings);
        name.and_then(|name| request.resolved(name, pins))
    } else {
        form::object_name(class, findings);
        None
    };
    if findings.count() > before || images::is_unknown(merged, item) {
        return None;
    }
    let name = name?;
    Some(NormalizedCdrom {
        name: name.to_owned(),
        boot_order: None,
        hotpluggable: backend == Backend::Kubevirt && pins.hotpluggable.contains(name),
        image: item.image().cloned(),
        image_pin: item.pinned_image().map(|pinned| pinned.pin.clone()),
        size,
        storage_class,
    })
}

/// Rule [`Code::EmptyCdrom`].
fn empty_drives(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let drives = lookup.merged.cdroms.iter();
    let mut empty = drives.filter(|item| !holds_image(item)).peekable();
    if lookup.backend != Backend::Kubevirt || empty.peek().is_none() {
        return;
    }
    let kubevirt = lookup.catalog.kubevirt();
    let feature = &DECLARATIVE_HOTPLUG;
    if kubevirt.as_ref().and_then(|it| it.offers(feature)) == Some(true) {
        return;
    }
    let version = kubevirt.map(|it| it.version.clone()).unwrap_or_default();
    let gate = feature.gate;
    let detail = if version.is_empty() {
        format!(
            "an empty drive needs KubeVirt 1.9, or its feature gate {gate}, and the version of KubeVirt on this cluster is not known; give an image, or remove the drive"
        )
    } else {
        format!(
            "an empty drive needs KubeVirt's feature gate {gate}, which is enabled by default since 1.9, and not on this cluster ({version}); give an image, remove the drive, or have the gate enabled"
        )
    };
    for item in empty {
        let path = item.written_image().path;
        let fault = Violation::new(path, Code::EmptyCdrom, Kind::Required, &detail);
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
    }
}

/// Whether the image is imported into a volume of the machine's own.
pub(crate) fn is_imported(item: &Item<'_, Cdrom>, backend: Backend) -> bool {
    let has_source = item
        .image()
        .is_some_and(|image| image.url.is_some() || image.persistent_volume_claim.is_some());
    let pinned = item.pinned_image();
    let is_clone = pinned.is_some_and(|pinned| pinned.pin.data_source.is_some());
    backend == Backend::Kubevirt && (has_source || is_clone)
}

/// Rules [`Code::CdromSizeRequired`] and [`Code::DiskSmallerThanImage`], and the bounds.
pub(crate) fn cdrom_size(
    item: &Item<'_, Cdrom>,
    backend: Backend,
    findings: &mut Findings,
) -> Option<Bytes> {
    let leaf = item.pick("size", |cdrom| cdrom.size.as_deref());
    let pinned = item.pinned_image().filter(|_| is_imported(item, backend));
    let least = pinned.map(|pinned| pinned.pin.min_disk_size);
    if let (None, Some(_)) = (leaf.value, least) {
        return least;
    }
    if leaf.value.is_none() && is_imported(item, backend) {
        let detail =
            "give a size that holds the image, such as '5Gi': it is imported into a volume";
        let fault = Violation::new(leaf.path, Code::CdromSizeRequired, Kind::Required, detail);
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
    }
    let size = quantities::bytes(leaf, &disks::CAPACITY, findings)?;
    if let Some(least) = least.filter(|least| size < *least) {
        findings.deny(images::smaller(leaf, least, item.image_name()));
        return None;
    }
    Some(size)
}

/// The class that a CD-ROM requests for its volume; rule [`Code::EmptyStorageClass`].
fn storage_class_request<'a>(leaf: Leaf<&'a str>, findings: &mut Findings) -> ClassRequest<'a> {
    let request = ClassRequest::of(leaf.value);
    if request == ClassRequest::NoClass {
        let detail = "without a class nothing provisions the volume: name a class, or leave the field out for the default one";
        let fault = Violation::new(leaf.path, Code::EmptyStorageClass, Kind::Invalid, detail);
        findings.deny(fault.text("").unless_faulty(FieldPath::field("backend")));
    }
    request
}

/// The classes of devices to boot from: rules [`Code::UnsupportedBootDevice`],
/// [`Code::DuplicateBootDevice`], [`Code::BootWithoutDisk`], [`Code::BootWithoutCdrom`].
fn boot_order(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    parts.boot_order = devices(subject.merged, subject.backend, findings);
}

fn devices(
    merged: &Merged<'_>,
    backend: Backend,
    findings: &mut Findings,
) -> Option<Vec<BootDevice>> {
    let written = written_order(merged);
    let Some(entries) = written.value else {
        return Some(BootDevice::ALL.to_vec());
    };
    let before = findings.count();
    let mut order = Vec::with_capacity(entries.len());
    let mut seen = BTreeSet::new();
    for (index, entry) in entries.iter().enumerate() {
        let path = written.path.element(index);
        let Some(device) = BootDevice::parse(entry) else {
            findings.deny(form::unsupported::<BootDevice>(
                path,
                entry,
                Code::UnsupportedBootDevice,
            ));
            continue;
        };
        if !seen.insert(device) {
            let detail = "is already in the order; each class of devices is named once";
            findings.deny(
                Violation::new(path, Code::DuplicateBootDevice, Kind::Duplicate, detail)
                    .text(entry),
            );
            continue;
        }
        if merged.is_complete() {
            device_exists(merged, backend, device, path, findings);
        }
        order.push(device);
    }
    if findings.count() > before {
        return None;
    }
    Some(order)
}

fn device_exists(
    merged: &Merged<'_>,
    backend: Backend,
    device: BootDevice,
    path: FieldPath,
    findings: &mut Findings,
) {
    let (missing, code, list, detail) = match device {
        BootDevice::Disk => (
            merged.disks.is_empty(),
            Code::BootWithoutDisk,
            "disks",
            "the Machine has no disk; add one to spec.disks, or take 'disk' out",
        ),
        BootDevice::Cdrom => (
            !merged.cdroms.iter().any(holds_image) && !may_get_medium(merged, backend),
            Code::BootWithoutCdrom,
            "cdroms",
            "no CD-ROM holds an image; add one to spec.cdroms, or take 'cdrom' out",
        ),
        BootDevice::Network => return,
    };
    if missing {
        let fault = Violation::new(path, code, Kind::Invalid, detail).text(device.as_str());
        let items = 0..merged.cdroms.len();
        let fault = items.fold(fault, |fault, index| {
            fault.unless_faulty(FieldPath::item("cdroms", index, ""))
        });
        findings.deny(fault.unless_faulty(FieldPath::field(list)));
    }
}

/// Whether the machine has a drive that has its position in the boot order while it is empty, or that another rule
/// refuses: [`Code::EmptyCdrom`].
fn may_get_medium(merged: &Merged<'_>, backend: Backend) -> bool {
    backend == Backend::Kubevirt && !merged.cdroms.is_empty()
}

fn holds_image(item: &Item<'_, Cdrom>) -> bool {
    item.pick("image", |cdrom| cdrom.image.as_ref())
        .value
        .is_some()
}

/// Rule [`Code::NothingToBoot`]. Without the template of its name, a Machine may have more to boot from than it says, and
/// the volumes of a restored one may have content.
fn nothing_to_boot(lookup: &Lookup<'_>, findings: &mut Findings) {
    let merged = lookup.merged;
    let order = written_order(merged).value.unwrap_or_default();
    let asks_network = order.iter().any(|it| it == BootDevice::Network.as_str());
    let boots = merged.disks.iter().any(is_filled) || merged.cdroms.iter().any(holds_image);
    if boots || asks_network || lookup.is_restored || !merged.is_complete() {
        return;
    }
    let disks = if merged.disks.is_empty() {
        "the Machine has no disk"
    } else {
        "every disk is blank"
    };
    let text = format!(
        "spec.disks: {disks}, so there is nothing to boot from; give a disk an image, add a CD-ROM, or set bootOrder: [network]"
    );
    findings.warn(Code::NothingToBoot, &text);
}

/// Sets the boot order of each device, from 1: by class, within a class in the order of the spec. `names`: of the disks
/// in that order. One that is plugged into the running guest has none. Does nothing if a part is missing.
pub(crate) fn assign_order<'n>(names: impl Iterator<Item = &'n str>, parts: &mut Parts) {
    let (Some(order), Some(disks), Some(existing), Some(networks), Some(cdroms)) = (
        &parts.boot_order,
        &mut parts.disks,
        &mut parts.existing_disks,
        &mut parts.networks,
        &mut parts.cdroms,
    ) else {
        return;
    };
    let names: Vec<_> = names.collect();
    let mut next = 1..;
    for device in order {
        match device {
            BootDevice::Disk => {
                for name in &names {
                    let own = disks.iter_mut().find(|disk| disk.name == *name);
                    let existing = existing.iter_mut().find(|disk| disk.name == *name);
                    if let Some(disk) = own {
                        disk.boot_order = (!disk.hotpluggable).then(|| next.next()).flatten();
                    } else if let Some(disk) = existing {
                        disk.boot_order = next.next();
                    }
                }
            }
            BootDevice::Cdrom => cdroms
                .iter_mut()
                .filter(|cdrom| cdrom.image.is_some() || cdrom.hotpluggable)
                .for_each(|cdrom| cdrom.boot_order = next.next()),
            BootDevice::Network => networks
                .iter_mut()
                .for_each(|nic| nic.boot_order = next.next()),
        }
    }
}
