//! Disks.

use std::collections::BTreeMap;

use crate::api::choice::{AccessMode, Backend, Choice as _, DiskBus, ReclaimPolicy, VolumeMode};
use crate::api::machine::Disk;
use crate::api::normalized::{Normalized, NormalizedDisk};
use crate::bounds;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::names;
use crate::normalize::{Base, ClassRequest, Item, Leaf, Merged, Named, Pins};
use crate::quantity::Bytes;
use crate::violation::{Findings, Kind, Violation};

use crate::rules::form;
use crate::rules::guest_os;
use crate::rules::images;
use crate::rules::name_form::NameForm;
use crate::rules::quantities::{self, Range};
use crate::rules::rule::{Check, Parts, Subject, rules};

pub(crate) mod existing;
pub(crate) mod hotplug;
pub(super) mod lists;
mod serial;

rules! {
    "disks" Check::Part(disks), on MACHINES_AND_TEMPLATES, Always, and [InvalidQuantity, UnitMissing, InvalidObjectName, SecretNameRequired, InvalidLabel, EmptyStorageClass] {
        Refuse DiskNameRequired = "A disk has no name."
            because "The name ties a disk to its volume and to the template's disk."
            fix "Give a name such as `data`."
            crd All,
        Refuse InvalidDiskName = "The name of a disk is not a DNS label."
            because "The name becomes part of the claim's name and of the guest's device id."
            fix "Take the corrected name from the message."
            crd All,
        Refuse ReservedDiskName = "The name of a disk is reserved for a volume that the operator or KubeVirt adds to a guest."
            because "One of them contains cloud-init's data, the others are volumes of the pod in which KubeVirt runs the guest; no pod has two volumes of one name."
            fix "Choose another name."
            crd All,
        Refuse DiskSizeRequired = "Neither the Machine nor its template gives the size of a disk."
            because "A claim without a size is refused by Kubernetes."
            fix "Give a size such as `20Gi`."
            crd Nothing,
        Refuse DiskTooSmall = "A disk is smaller than any storage provides."
            because "Storage provides at least one MiB, and images need more."
            fix "Give a larger size."
            crd All,
        Refuse DiskTooLarge = "A disk is larger than the backends can attach."
            because "Image formats and file systems end there."
            fix "Give a smaller size, or several disks."
            crd All,
        Refuse UnsupportedAccessMode = "The access mode of a disk does not exist."
            because "Kubernetes would refuse the claim."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse UnsupportedVolumeMode = "The volume mode of a disk does not exist."
            because "Kubernetes would refuse the claim."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse UnsupportedBus = "The bus of a disk is not one that every backend has."
            because "The backends refuse it, or the guest does not find the disk."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse UnsupportedReclaimPolicy = "The reclaim policy of a disk does not exist."
            because "What happens to data must not be a guess."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse InvalidSerial = "The serial number of a disk has other characters or another length than guests are given."
            because "KubeVirt and libvirt refuse other characters, and a virtio disk cuts a serial number after 20 bytes."
            fix "Take the corrected serial number from the message, or drop the field: the default is the disk's name."
            crd All,
        Refuse ReadOnlyDisk = "A disk that must be written is read only."
            because "A new volume is empty, and one that cannot be written stays so."
            fix "Use `ReadWriteOnce` or `ReadWriteMany`, or bind an existing volume."
            crd Nothing,
        Warn SharedFilesystem = "A disk is shared between nodes through a file system."
            because "Live migration needs shared access, and through a file system it is slower and depends on its locking."
            fix "Use `volumeMode: Block` if the class offers it."
            crd Nothing,
        Refuse ImageOnBoundDisk = "A disk that binds an existing volume has an image to fill it with."
            because "An image would overwrite what the existing volume holds."
            fix "Remove the image, or the choice of the volume."
            crd Some,
        Refuse EmptySelector = "The selector of a disk has no labels, and so chooses no particular volume."
            because "An empty selector matches every volume of the cluster."
            fix "Give the labels of the volume."
            crd All,
        Refuse VolumeChosenTwice = "A disk chooses its volume both by name and by labels."
            because "Name and labels may choose different volumes."
            fix "Remove one of the two."
            crd Some,
    }
}

/// Virtio is the fastest bus.
const DEFAULT_BUS: DiskBus = if cfg!(feature = "next-version") {
    DiskBus::Scsi
} else {
    DiskBus::Virtio
};

/// The bus of a disk that names none.
fn default_bus(merged: &Merged<'_>) -> DiskBus {
    if guest_os::lacks_virtio(merged) {
        DiskBus::Sata
    } else {
        DEFAULT_BUS
    }
}

/// Capacity of a volume.
pub(crate) const CAPACITY: Range = Range {
    min: Bytes::new(bounds::CAPACITY_MIN),
    max: Bytes::new(bounds::CAPACITY_MAX),
    too_small: Code::DiskTooSmall,
    too_large: Code::DiskTooLarge,
    example: "20Gi",
    likely_max: Bytes::new(bounds::CAPACITY_MAX),
};

/// The disks of the machine, in the order the guest sees them, without boot order.
fn disks(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let Subject {
        merged,
        backend,
        pins,
        ..
    } = *subject;
    parts.disks = existing::own(merged, backend)
        .map(|item| disk(merged, item, backend, pins, findings))
        .collect::<Vec<_>>()
        .into_iter()
        .collect();
}

/// The reclaim policy of a disk: rule [`Code::UnsupportedReclaimPolicy`].
pub(crate) fn reclaim_policy(
    item: &Item<'_, Disk>,
    pins: &Pins,
    findings: &mut Findings,
) -> Option<ReclaimPolicy> {
    let name = item.name().value;
    let pinned = name.and_then(|name| pins.reclaim_policies.get(name));
    form::choice(
        written_policy(item),
        *pinned.unwrap_or(&pins.reclaim_policy),
        Code::UnsupportedReclaimPolicy,
        findings,
    )
}

/// The reclaim policy of a disk as its author wrote it.
pub(crate) fn written_policy<'a>(item: &Item<'a, Disk>) -> Leaf<&'a str> {
    item.pick("reclaimPolicy", |disk| disk.reclaim_policy.as_deref())
}

/// Reclaim policies by name of disk, from the stored block: of the disks whose policy was a default and is one still.
/// A setting that has changed since does not change what a Machine got.
pub(crate) fn kept_reclaim_policies(
    merged: &Merged<'_>,
    old: &Merged<'_>,
    old_block: &Normalized,
) -> BTreeMap<String, ReclaimPolicy> {
    let is_default = |merged: &Merged<'_>, name: &str| {
        let mut disks = merged.disks.iter();
        let disk = disks.find(|item| item.name().value == Some(name));
        disk.is_some_and(|item| written_policy(item).value.is_none())
    };
    let disks = old_block.disks.iter();
    disks
        .filter(|disk| is_default(old, &disk.name) && is_default(merged, &disk.name))
        .map(|disk| (disk.name.clone(), disk.reclaim_policy))
        .collect()
}

fn disk(
    merged: &Merged<'_>,
    item: &Item<'_, Disk>,
    backend: Backend,
    pins: &Pins,
    findings: &mut Findings,
) -> Option<NormalizedDisk> {
    let name = disk_name(merged, item.name(), findings);
    let size = size(merged, item, findings);
    let access_mode = access_mode(item, findings);
    let volume_mode = volume_mode(item, findings);
    let bus = form::choice(
        item.pick("bus", |disk| disk.bus.as_deref()),
        default_bus(merged),
        Code::UnsupportedBus,
        findings,
    );
    let reclaim_policy = reclaim_policy(item, pins, findings);
    let serial = serial::serial(item, pins, findings);
    let bound_by = bound_volume(item, findings);
    if let Some(image) = item.written_image().value {
        let at = |part| item.path(part, |disk| disk.image.is_some());
        // No Machine can use such an image of a template: libvirt hosts fetch no container images.
        let fetched_by_cdi =
            backend == Backend::Kubevirt || matches!(merged.base(), Base::IsTemplate);
        images::source(image, backend, fetched_by_cdi, &at, findings);
        images::resolved(item, backend, findings);
        if let Some(volume_field) = bound_by {
            let detail = "the volume that selector or volumeName chooses keeps its content; remove one of the two";
            findings.deny(Violation::new(
                at("image").or_user_path(volume_field),
                Code::ImageOnBoundDisk,
                Kind::Forbidden,
                detail,
            ));
        }
    }
    if let (Some(access_mode), Some(volume_mode)) = (access_mode, volume_mode) {
        let modes = (access_mode, volume_mode);
        shared_access(merged, item, modes, backend, bound_by, findings);
    }
    let storage_class = storage_class_request(merged, item, bound_by, findings);
    if images::is_unknown(merged, item) {
        return None;
    }
    let (name, bus) = (name?, bus?);
    Some(NormalizedDisk {
        storage_class: storage_class.resolved(name, pins)?,
        name: name.to_owned(),
        size: size?,
        access_mode: access_mode?,
        volume_mode: volume_mode?,
        bus,
        boot_order: None,
        hotpluggable: hotplug::applies(merged, name, bus, backend, &pins.hotpluggable),
        reclaim_policy: reclaim_policy?,
        serial,
        image: item.image().cloned(),
        image_pin: item.pinned_image().map(|pinned| pinned.pin.clone()),
        selector: item
            .pick("selector", |disk| {
                disk.selector.as_ref()?.match_labels.clone()
            })
            .value,
        volume_name: item
            .pick("volumeName", |disk| disk.volume_name.clone())
            .value,
    })
}

/// The access mode: rule [`Code::UnsupportedAccessMode`].
pub(crate) fn access_mode(item: &Item<'_, Disk>, findings: &mut Findings) -> Option<AccessMode> {
    form::choice(
        item.pick("accessMode", |disk| disk.access_mode.as_deref()),
        AccessMode::ReadWriteOnce,
        Code::UnsupportedAccessMode,
        findings,
    )
}

/// The volume mode: rule [`Code::UnsupportedVolumeMode`].
pub(crate) fn volume_mode(item: &Item<'_, Disk>, findings: &mut Findings) -> Option<VolumeMode> {
    form::choice(
        item.pick("volumeMode", |disk| disk.volume_mode.as_deref()),
        VolumeMode::Filesystem,
        Code::UnsupportedVolumeMode,
        findings,
    )
}

/// Rules [`Code::DiskNameRequired`], [`Code::InvalidDiskName`], [`Code::ReservedDiskName`], for
/// disks and CD-ROMs alike.
pub(crate) fn disk_name<'a>(
    merged: &Merged<'_>,
    leaf: Leaf<&'a str>,
    findings: &mut Findings,
) -> Option<&'a str> {
    let Some(name) = leaf.value else {
        let detail = "give a name such as 'data'; it names the volume";
        findings.deny(Violation::new(
            leaf.path,
            Code::DiskNameRequired,
            Kind::Required,
            detail,
        ));
        return None;
    };
    let reserved =
        |detail| Violation::new(leaf.path, Code::ReservedDiskName, Kind::Invalid, detail);
    let fault = if name == names::CLOUD_INIT_DISK {
        reserved("is the name of the disk that holds cloud-init's data; choose another")
    } else if names::POD_VOLUMES.contains(&name) {
        reserved("is the name of a volume that KubeVirt adds to every guest's pod; choose another")
    } else if form::is_label(name) {
        return Some(name);
    } else {
        Violation::new(
            leaf.path,
            Code::InvalidDiskName,
            Kind::Invalid,
            NameForm::LABEL.fix(name, |label| is_free(merged, label)),
        )
    };
    findings.deny(fault.text(name));
    None
}

/// Whether `label`, the corrected name of a disk or CD-ROM, is allowed and not the name of another one. The
/// other names are compared in their corrected form.
fn is_free(merged: &Merged<'_>, label: &str) -> bool {
    let removed = merged.user().disks.iter().flatten();
    let names = removed
        .filter(|disk| disk.removes())
        .map(Named::name)
        .chain(merged.disks.iter().map(|item| item.name().value))
        .chain(merged.cdroms.iter().map(|item| item.name().value));
    let corrected = names.flatten();
    let corrected = corrected.filter_map(|name| NameForm::LABEL.nearest(name));
    let is_reserved = label == names::CLOUD_INIT_DISK || names::POD_VOLUMES.contains(&label);
    !is_reserved && corrected.filter(|name| name == label).count() == 1
}

/// Rules [`Code::DiskSizeRequired`] and [`Code::DiskSmallerThanImage`], and the bounds. A disk with a MachineImage has at
/// least the size that the image needs, unless its author wrote a smaller one.
pub(crate) fn size(
    merged: &Merged<'_>,
    item: &Item<'_, Disk>,
    findings: &mut Findings,
) -> Option<Bytes> {
    let leaf = item.pick("size", |disk| disk.size.as_deref());
    let least = item.pinned_image().map(|pinned| pinned.pin.min_disk_size);
    if let (None, Some(_)) = (leaf.value, least) {
        return least;
    }
    if leaf.value.is_none() && merged.is_complete() && !images::is_unknown(merged, item) {
        let detail = "give a size such as '20Gi'";
        let fault = Violation::new(leaf.path, Code::DiskSizeRequired, Kind::Required, detail);
        let removed = item.pick("remove", |disk| disk.remove).path;
        findings.deny(
            fault
                .unless_faulty(removed)
                .unless_faulty(FieldPath::TEMPLATE_LABEL),
        );
    }
    let size = quantities::bytes(leaf, &CAPACITY, findings)?;
    let Some(least) = least.filter(|least| size < *least) else {
        return Some(size);
    };
    if leaf.path.is_from_user() {
        findings.deny(images::smaller(leaf, least, item.image_name()));
        return None;
    }
    Some(least)
}

/// Path of the field that chooses an existing volume to bind, if the disk has one: rules [`Code::VolumeChosenTwice`],
/// [`Code::EmptySelector`] and the forms.
fn bound_volume(item: &Item<'_, Disk>, findings: &mut Findings) -> Option<FieldPath> {
    let selector = item.pick("selector", |disk| disk.selector.as_ref());
    let volume = item.pick("volumeName", |disk| disk.volume_name.as_deref());
    if selector.value.is_some() && volume.value.is_some() {
        let detail = "selector and volumeName both choose a volume; remove one of the two";
        findings.deny(Violation::new(
            selector.path.or_user_path(volume.path),
            Code::VolumeChosenTwice,
            Kind::Forbidden,
            detail,
        ));
    }
    form::object_name(volume, findings);
    if let Some(selector) = selector.value {
        let path = item.path("selector.matchLabels", |disk| disk.selector.is_some());
        let labels = selector.match_labels.iter().flatten();
        if labels.clone().next().is_none() {
            let detail = "give the labels of the volume, all of which it must have";
            findings.deny(Violation::new(
                path,
                Code::EmptySelector,
                Kind::Required,
                detail,
            ));
        }
        form::labels(path, labels, findings);
    }
    let volume_field = selector.value.map(|_| selector.path);
    volume_field.or(volume.value.map(|_| volume.path))
}

/// Rule [`Code::EmptyStorageClass`].
fn storage_class_request<'a>(
    merged: &Merged<'_>,
    item: &Item<'a, Disk>,
    bound_by: Option<FieldPath>,
    findings: &mut Findings,
) -> ClassRequest<'a> {
    let leaf = item.pick("storageClass", |disk| disk.storage_class.as_deref());
    let request = ClassRequest::of(leaf.value);
    if request == ClassRequest::NoClass && bound_by.is_none() && merged.is_complete() {
        let detail = "without a class nothing provisions the disk: name a class, leave the field out for the default one, or bind a volume with volumeName or selector";
        findings.deny(
            Violation::new(leaf.path, Code::EmptyStorageClass, Kind::Invalid, detail).text(""),
        );
    }
    request
}

/// Rules [`Code::ReadOnlyDisk`] and [`Code::SharedFilesystem`].
fn shared_access(
    merged: &Merged<'_>,
    item: &Item<'_, Disk>,
    (access, mode): (AccessMode, VolumeMode),
    backend: Backend,
    bound_by: Option<FieldPath>,
    findings: &mut Findings,
) {
    let leaf = item.pick("accessMode", |disk| disk.access_mode.as_deref());
    match access {
        AccessMode::ReadOnlyMany if bound_by.is_none() && merged.is_complete() => {
            let detail = "a new disk must be written before it can be read; use ReadWriteOnce or ReadWriteMany, or bind an existing volume with volumeName or selector";
            findings.deny(
                Violation::new(leaf.path, Code::ReadOnlyDisk, Kind::Invalid, detail)
                    .text(AccessMode::ReadOnlyMany.as_str()),
            );
        }
        // A template has no backend, so the rules of KubeVirt apply, which supports more modes.
        AccessMode::ReadWriteMany
            if mode == VolumeMode::Filesystem
                && (backend == Backend::Kubevirt || !merged.is_complete()) =>
        {
            findings.warn(
                Code::SharedFilesystem,
                &format!(
                    "{}: ReadWriteMany is safest with volumeMode Block",
                    leaf.path
                ),
            );
        }
        AccessMode::ReadWriteOnce | AccessMode::ReadWriteMany | AccessMode::ReadOnlyMany => {}
    }
}
