//! Disks on claims that exist and are used as they are: nothing about them but how the guest sees them is
//! the Machine's to choose.

use crate::api::machine::Disk;
use crate::api::normalized::ExistingDisk;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Base, Item, Leaf, Merged, Pins};
use crate::rules::form;
use crate::rules::rule::{Check, Parts, Subject, rules};
use crate::violation::{Findings, Kind, Violation};
use crate::words::quoted;

use super::{default_bus, disk_name, serial};

rules! {
    "disks" Check::Part(existing_disks), on MACHINES_AND_TEMPLATES, Always, and [InvalidObjectName] {
        Refuse ExistingDiskHasFields = "A disk on an existing claim has a field that only a new volume has."
            because "The claim is used as it is. A size, a class or a policy beside it would be ignored, and a policy would promise what never happens: the controller neither changes nor deletes it."
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
    }
}

/// The existing claim that a disk is on. Without a value the disk gets a volume of its own.
pub(crate) fn claim<'a>(item: &Item<'a, Disk>) -> Leaf<&'a str> {
    item.pick("claimName", |disk| disk.claim_name.as_deref())
}

/// The disks that get volumes of their own.
pub(crate) fn own<'m, 'a>(merged: &'m Merged<'a>) -> impl Iterator<Item = &'m Item<'a, Disk>> {
    let disks = merged.disks.iter();
    disks.filter(|item| claim(item).value.is_none())
}

/// Whether several Machines may have a disk at the same time.
pub(crate) fn shareable(item: &Item<'_, Disk>) -> Leaf<bool> {
    item.pick("shareable", |disk| disk.shareable)
}

/// The disks on existing claims, without boot order.
fn existing_disks(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let Subject { merged, pins, .. } = *subject;
    let mut disks = Some(vec![]);
    for item in &merged.disks {
        let leaf = claim(item);
        if leaf.value.is_none() {
            own_disk(item, findings);
            continue;
        }
        let disk = existing_disk(merged, item, leaf, pins, findings);
        disks = disks.zip(disk).map(|(mut disks, disk)| {
            disks.push(disk);
            disks
        });
    }
    parts.existing_disks = disks;
}

/// Rule [`Code::ShareableNeedsExistingDisk`].
fn own_disk(item: &Item<'_, Disk>, findings: &mut Findings) {
    let leaf = shareable(item);
    if leaf.value == Some(true) {
        let detail = "the volume of this disk is the Machine's own; drop it, or name a ReadWriteMany claim in claimName";
        let code = Code::ShareableNeedsExistingDisk;
        findings.deny(Violation::new(leaf.path, code, Kind::Forbidden, detail));
    }
}

fn existing_disk(
    merged: &Merged<'_>,
    item: &Item<'_, Disk>,
    leaf: Leaf<&str>,
    pins: &Pins,
    findings: &mut Findings,
) -> Option<ExistingDisk> {
    let before = findings.violations.len();
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
    for field in other_fields(item) {
        findings.deny(beside(leaf, field));
    }
    if findings.violations.len() > before {
        return None;
    }
    Some(ExistingDisk {
        boot_order: None,
        bus: bus?,
        claim_name: leaf.value?.to_owned(),
        name: name?.to_owned(),
        serial,
        shareable: shareable(item).value.unwrap_or(false),
    })
}

/// The fields of new volumes that the disk has.
fn other_fields(item: &Item<'_, Disk>) -> Vec<FieldPath> {
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
        field("selector", |disk| disk.selector.is_some()),
        field("volumeName", |disk| disk.volume_name.is_some()),
    ];
    fields.into_iter().flatten().collect()
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
    fault.given(source.path)
}
