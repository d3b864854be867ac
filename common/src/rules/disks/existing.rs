//! Disks on claims, or on volumes of a libvirt host, that exist and are used as they are: a Machine chooses nothing about
//! them but how the guest sees them.

use crate::api::choice::Backend;
use crate::api::machine::Disk;
use crate::api::normalized::ExistingDisk;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Base, Item, Leaf, Merged, Pins};
use crate::render::libvirt::is_reserved_volume;
use crate::rules::form;
use crate::rules::rule::{Check, Parts, Subject, rules};
use crate::violation::{Findings, Kind, Violation};
use crate::words::quoted;

use super::{default_bus, disk_name, serial};

rules! {
    "disks" Check::Part(existing_disks), on MACHINES_AND_TEMPLATES, Always, and [InvalidObjectName] {
        Refuse ExistingDiskHasFields = "A disk on an existing claim or volume has a field that only a new volume has."
            because "The claim or volume is used as it is. A size, a class or a reclaim policy beside it would have no effect: the controller neither changes nor deletes it."
            fix "Drop the field. If a template gives it, remove the template's disk with `remove: true` and give this disk another name."
            crd Some,
        Refuse ClaimNameInTemplate = "A MachineTemplate names an existing claim."
            because "A claim is an object of one namespace and the disk of one machine, and Machines of every namespace use the template."
            fix "Set `claimName` in the Machine."
            crd All,
        Refuse ShareableNeedsExistingDisk = "A disk that has a volume of its own is shareable."
            because "The volume of a disk is one Machine's. What several Machines use together belongs to none of them, so that no deletion of one takes it."
            fix "Create a ReadWriteMany claim and name it in `claimName`."
            crd All,
        Refuse VolumeReserved = "A disk names a volume that the controller made."
            because "It is the disk of a Machine, which may be another one, or an image."
            fix "Rename the file on the host, let libvirt read the pool again (`virsh pool-refresh`), and give the new name. Do not use `virsh vol-clone`: it would read a header that a guest may have written."
            crd Nothing scope Taken,
    }
}

/// The existing claim, or volume of a libvirt host, that a disk is on. Without a value the disk gets a volume of its own.
/// On KubeVirt, and in a template, `volumeName` is that of a PersistentVolume, which such a volume is made from.
pub(crate) fn source<'a>(item: &Item<'a, Disk>, backend: Backend) -> Leaf<&'a str> {
    if backend == Backend::Libvirt {
        let volume = item.pick("volumeName", |disk| disk.volume_name.as_deref());
        if volume.value.is_some() && volume.path.is_from_user() {
            return volume;
        }
    }
    item.pick("claimName", |disk| disk.claim_name.as_deref())
}

/// The disks that get volumes of their own.
pub(crate) fn own<'m, 'a>(
    merged: &'m Merged<'a>,
    backend: Backend,
) -> impl Iterator<Item = &'m Item<'a, Disk>> {
    let backend = assumed(merged, backend);
    let disks = merged.disks.iter();
    disks.filter(move |item| source(item, backend).value.is_none())
}

/// The backend whose volumes a spec names. A template has no backend. Its volumes are those of KubeVirt: a volume of a
/// host is no template's.
pub(super) fn assumed(merged: &Merged<'_>, backend: Backend) -> Backend {
    match merged.base() {
        Base::IsTemplate => Backend::Kubevirt,
        _ => backend,
    }
}

/// Whether several Machines may have a disk at the same time.
pub(crate) fn shareable(item: &Item<'_, Disk>) -> Leaf<bool> {
    item.pick("shareable", |disk| disk.shareable)
}

/// The disks on existing claims, without boot order.
fn existing_disks(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let Subject { merged, pins, .. } = *subject;
    let backend = assumed(merged, subject.backend);
    let mut disks = Some(vec![]);
    for item in &merged.disks {
        let leaf = source(item, backend);
        if leaf.value.is_none() {
            check_not_shareable(item, findings);
            continue;
        }
        let disk = existing_disk(merged, (item, leaf), backend, pins, findings);
        disks = disks.zip(disk).map(|(mut disks, disk)| {
            disks.push(disk);
            disks
        });
    }
    parts.existing_disks = disks;
}

/// Rule [`Code::ShareableNeedsExistingDisk`].
fn check_not_shareable(item: &Item<'_, Disk>, findings: &mut Findings) {
    let leaf = shareable(item);
    if leaf.value == Some(true) {
        let detail = "the volume of this disk is the Machine's own; drop it, or name a ReadWriteMany claim in claimName";
        let code = Code::ShareableNeedsExistingDisk;
        findings.deny(Violation::new(leaf.path, code, Kind::Forbidden, detail));
    }
}

fn existing_disk(
    merged: &Merged<'_>,
    (item, leaf): (&Item<'_, Disk>, Leaf<&str>),
    backend: Backend,
    pins: &Pins,
    findings: &mut Findings,
) -> Option<ExistingDisk> {
    let before = findings.count();
    let name = disk_name(merged, item.name(), findings);
    let bus = form::choice(
        item.pick("bus", |disk| disk.bus.as_deref()),
        default_bus(merged),
        Code::UnsupportedBus,
        findings,
    );
    let serial = serial::serial(item, pins, findings);
    if matches!(merged.base(), Base::IsTemplate) {
        let detail = "a claim is an object of one namespace; set claimName in the Machine";
        let code = Code::ClaimNameInTemplate;
        findings.deny(Violation::new(leaf.path, code, Kind::Forbidden, detail));
    }
    form::object_name(leaf, findings);
    if backend == Backend::Libvirt {
        of_host(item, leaf, findings);
    }
    for field in other_fields(item, backend) {
        findings.deny(beside(leaf, field));
    }
    if findings.count() > before {
        return None;
    }
    let named = |on: Backend| leaf.value.filter(|_| backend == on).map(str::to_owned);
    Some(ExistingDisk {
        boot_order: None,
        bus: bus?,
        claim_name: named(Backend::Kubevirt),
        name: name?.to_owned(),
        serial,
        shareable: shareable(item).value.unwrap_or(false),
        volume_name: named(Backend::Libvirt),
    })
}

/// Rules [`Code::VolumeReserved`] and [`Code::ShareableNeedsExistingDisk`] for a volume of a libvirt host.
fn of_host(item: &Item<'_, Disk>, leaf: Leaf<&str>, findings: &mut Findings) {
    if let Some(name) = leaf.value.filter(|name| is_reserved_volume(name)) {
        let detail = "has the form of the names that the controller gives to disks and images; give its file another name, and let libvirt read the pool again (virsh pool-refresh)";
        let fault = Violation::new(leaf.path, Code::VolumeReserved, Kind::Invalid, detail);
        findings.deny(fault.text(name));
    }
    let shared = shareable(item);
    if shared.value == Some(true) {
        let detail = "a libvirt host gives a volume to one guest at a time; drop it";
        let code = Code::ShareableNeedsExistingDisk;
        findings.deny(Violation::new(shared.path, code, Kind::Forbidden, detail));
    }
}

/// The fields of new volumes that the disk has.
fn other_fields(item: &Item<'_, Disk>, backend: Backend) -> Vec<FieldPath> {
    let field = |name: &'static str, is_set: fn(&Disk) -> bool| {
        let leaf = item.pick(name, |disk| is_set(disk).then_some(()));
        leaf.value.map(|()| leaf.path)
    };
    let fields = [
        field("size", |disk| disk.size.is_some()),
        field("storageClass", |disk| disk.storage_class.is_some()),
        field("accessMode", |disk| disk.access_mode.is_some()),
        field("volumeMode", |disk| disk.volume_mode.is_some()),
        field("image", |disk| disk.image.is_some()),
        field("reclaimPolicy", |disk| disk.reclaim_policy.is_some()),
    ];
    // A libvirt host has neither.
    let of_cluster = [
        field("selector", |disk| disk.selector.is_some()),
        field("volumeName", |disk| disk.volume_name.is_some()),
    ];
    let of_cluster = of_cluster
        .into_iter()
        .filter(|_| backend == Backend::Kubevirt);
    fields.into_iter().chain(of_cluster).flatten().collect()
}

/// Rule [`Code::ExistingDiskHasFields`].
fn beside(source: Leaf<&str>, field: FieldPath) -> Violation {
    let named = quoted(source.value.unwrap_or_default());
    let detail = if field.is_from_user() {
        format!("{named} is used as it is, whatever it was made from; drop this field")
    } else {
        format!(
            "{named} is used as it is, and the template's disk of this name has this field; remove that disk with 'remove: true', and give the one on {named} another name"
        )
    };
    let code = Code::ExistingDiskHasFields;
    let fault = Violation::new(field, code, Kind::Forbidden, detail);
    fault
        .unless_faulty(source.path)
        .unless_faulty(FieldPath::field("backend"))
}
