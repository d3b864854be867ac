//! Disks as a list: names, volumes, and disks of the template that are removed.

use std::collections::BTreeMap;

use crate::api::choice::Backend;
use crate::api::machine::Disk;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Base, Item, Leaf, Merged, Named};
use crate::rules::disks::{disk_name, existing, serial};
use crate::rules::form;
use crate::rules::rule::{Check, Parts, Subject, rules};
use crate::violation::{Findings, Kind, Violation};
use crate::words::{did_you_mean, nearest_first, titled};

rules! {
    "disks" Check::Part(removed), on MACHINES_AND_TEMPLATES, Always {
        Refuse RemovedDiskNotFound = "A disk to remove is not in the template."
            because "A removal that removes nothing is a misspelled name, and the disk would stay."
            fix "Take the name from the list in the message."
            crd Nothing,
        Refuse RemovedDiskHasFields = "A disk to remove has other fields."
            because "A disk that is removed has no size or class; one of the two is a mistake."
            fix "Drop the fields, or `remove`."
            crd All,
    }
    "disks" Check::Part(unique_names), on MACHINES_AND_TEMPLATES, Always {
        Refuse DuplicateDiskName = "Two disks or CD-ROMs have the same name."
            because "Both would have the same claim."
            fix "Rename one of them."
            crd All,
    }
    "disks" Check::Part(unique_volumes), on MACHINES_AND_TEMPLATES, Always {
        Refuse DuplicateVolume = "Two disks of the Machine are on the same claim or PersistentVolume."
            because "A PersistentVolume binds one claim; that of the other disk would stay Pending for ever, and with it the machine. One claim as two disks of a guest would have its content destroyed by the first write."
            fix "Name another one at one of the disks, or leave the field out for a new volume."
            crd Nothing,
    }
    "disks" Check::Part(unique_serials), on MACHINES_AND_TEMPLATES, Always {
        Refuse DuplicateSerial = "Two disks of the Machine have the same serial number."
            because "The guest names a disk by its serial number; of two with the same one it would name either."
            fix "Give one of the disks another serial number, or drop the field: the default is the disk's name."
            crd Nothing,
    }
}

/// Rule [`Code::DuplicateSerial`], reported at a serial number that an author wrote: the default ones follow the names.
fn unique_serials(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let mut seen = BTreeMap::new();
    for item in &subject.merged.disks {
        let written = serial::written(item);
        let Some(serial) = serial::serial(item, subject.pins, &mut Findings::default()) else {
            continue;
        };
        let name = item.name().value;
        let Some((other_name, other)) = seen.insert(serial.clone(), (name, written)) else {
            continue;
        };
        // Two disks of one name are a fault of their own.
        if name == other_name {
            continue;
        }
        let (at, sibling) = match written.value {
            Some(_) => (written.path, other_name),
            None => (other.path, name),
        };
        let detail = format!(
            "{} has the same serial number, and the guest finds a disk by it; give another",
            titled("disk", sibling)
        );
        findings
            .deny(Violation::new(at, Code::DuplicateSerial, Kind::Duplicate, detail).text(&serial));
    }
}

/// Rule [`Code::DuplicateDiskName`]: disks and CD-ROMs share one set of names, as their volumes do.
/// Items with `remove` count too, because the name is the key of the
/// list in the CRD. A violation that both loops find is reported once: [`Findings::dedupe`].
fn unique_names(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let users = merged.user().disks.iter().flatten().enumerate();
    let users = users.map(|(index, disk)| Leaf {
        value: disk.name(),
        path: FieldPath::item("disks", index, "name"),
    });
    form::unique_names(users, Code::DuplicateDiskName, findings);
    let disks = merged.disks.iter().map(Item::name);
    let cdroms = merged.cdroms.iter().map(Item::name);
    form::unique_names(disks.chain(cdroms), Code::DuplicateDiskName, findings);
}

/// Rule [`Code::DuplicateVolume`]. An invalid name has a code of its own. For a template, which has no backend, the rule
/// of KubeVirt applies.
fn unique_volumes(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let backend = existing::assumed(merged, subject.backend);
    let mut seen = BTreeMap::new();
    for item in &merged.disks {
        let existing = existing::source(item, backend);
        let is_existing = existing.value.is_some();
        let bound = item.pick("volumeName", |disk| disk.volume_name.as_deref());
        let leaf = if is_existing { existing } else { bound };
        if let Some(volume) = leaf.value
            && form::is_object_name(volume)
            && let Some((name, other)) =
                seen.insert((is_existing, volume), (item.name().value, leaf.path))
        {
            let other_disk = titled("disk", name);
            let detail = if is_existing {
                let what = match backend {
                    Backend::Kubevirt => "claim",
                    Backend::Libvirt => "volume",
                };
                format!("{other_disk} is on this {what}; name another")
            } else {
                format!(
                    "{other_disk} binds this PersistentVolume, and one binds one claim; name another, or remove volumeName"
                )
            };
            let code = Code::DuplicateVolume;
            let fault =
                Violation::new(leaf.path.or_user_path(other), code, Kind::Duplicate, detail)
                    .text(volume);
            findings.deny(fault.unless_faulty(FieldPath::field("backend")));
        }
    }
}

/// Rules [`Code::RemovedDiskNotFound`] and [`Code::RemovedDiskHasFields`].
fn removed(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let user = merged.user().disks.as_deref().unwrap_or_default();
    for (index, disk) in user.iter().enumerate().filter(|(_, disk)| disk.removes()) {
        let at = |field| FieldPath::item("disks", index, field);
        if let Some(name) = disk.name.as_deref() {
            removed_is_there(merged, name, at("name"), findings);
        } else {
            let leaf = Leaf {
                value: None,
                path: at("name"),
            };
            disk_name(merged, leaf, findings);
        }
        if let Some(field) = first_field_beside_remove(disk) {
            let detail =
                "a disk with 'remove: true' takes no other field; drop this one, or 'remove'";
            findings.deny(Violation::new(
                at(field),
                Code::RemovedDiskHasFields,
                Kind::Forbidden,
                detail,
            ));
        }
    }
}

/// Rule [`Code::RemovedDiskNotFound`].
fn removed_is_there(merged: &Merged<'_>, name: &str, path: FieldPath, findings: &mut Findings) {
    let detail = match merged.base() {
        // The template was not found, so its disks are unknown.
        Base::Unknown => return,
        Base::Nothing | Base::IsTemplate => {
            "there is no template whose disk could be removed".to_owned()
        }
        Base::Template(content, _) => {
            let disks = content.disks.iter().flatten();
            let names: Vec<&str> = disks.filter_map(Named::name).collect();
            if names.contains(&name) {
                return;
            }
            let nearest = did_you_mean(name, names.iter().copied());
            let names = names.into_iter().map(str::to_owned).collect();
            let names = nearest_first(name, names);
            format!("{nearest}disks of the template: {names}")
        }
    };
    let fault = Violation::new(path, Code::RemovedDiskNotFound, Kind::NotFound, detail);
    findings.deny(fault.text(name).unless_faulty(FieldPath::TEMPLATE_LABEL));
}

fn first_field_beside_remove(disk: &Disk) -> Option<&'static str> {
    let Disk {
        name: _,
        remove: _,
        claim_name,
        shareable,
        size,
        storage_class,
        access_mode,
        volume_mode,
        bus,
        image,
        reclaim_policy,
        selector,
        serial,
        volume_name,
    } = disk;
    [
        (claim_name.is_some(), "claimName"),
        (shareable.is_some(), "shareable"),
        (size.is_some(), "size"),
        (storage_class.is_some(), "storageClass"),
        (access_mode.is_some(), "accessMode"),
        (volume_mode.is_some(), "volumeMode"),
        (bus.is_some(), "bus"),
        (image.is_some(), "image"),
        (reclaim_policy.is_some(), "reclaimPolicy"),
        (selector.is_some(), "selector"),
        (serial.is_some(), "serial"),
        (volume_name.is_some(), "volumeName"),
    ]
    .into_iter()
    .find_map(|(there, field)| there.then_some(field))
}
