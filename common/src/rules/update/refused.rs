//! Changes that are refused: the rows `Refused`, `RefusedWhileRunning` and `Grow` of the table.
//!
//! One file, because it is read beside the table: a row that has no comparison here is seen.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::api::choice::{
    Backend, Choice as _, FirmwareType, MachineType, MachineTypeName, OsFamily,
};
use crate::api::machine::{Disk, Image};
use crate::api::normalized::NormalizedDisk;
use crate::catalog::Catalog;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::image_source::redacted;
use crate::normalize::{ClassRequest, Item, Leaf, Merged};
use crate::rules::disks::existing;
use crate::rules::rule::{Check, Lookup, Update, rules};
use crate::rules::{disks, firmware, guest_os};
use crate::violation::{Findings, Kind, Reference, Violation};
use crate::words::{quoted, shortened};

use super::effects::{Effect, Field};

rules! {
    "update" Check::Lookup(backend), on MACHINES, Update {
        Refuse BackendChanged = "The backend of an existing Machine changes."
            because "Disks do not move between backends."
            fix "Create another Machine on the other backend."
            crd All scope Change,
    }
    "update" Check::Update(stop_first), on MACHINES, Update {
        Refuse StopFirst = "The firmware or the machine type changes while the machine runs."
            because "A guest that was installed for one firmware may not start with another; such a change is made with the machine off."
            fix "Set `powerState: Stopped`, before or in the same update."
            crd Nothing scope Change,
    }
    "update" Check::Update(disks), on MACHINES, Update {
        Refuse DiskChanged = "A field of an existing disk changes that its volume was made from."
            because "The claim was made from this field and cannot be made again without losing its content. The image may be corrected until its import is complete, on KubeVirt."
            fix "Set the field back, or take another disk."
            crd Nothing scope Change,
    }
    "update" Check::Update(super::existing::sources), on MACHINES, Update, and [DiskChanged] {}
    "update" Check::Update(capacity), on MACHINES, Update {
        Refuse DiskShrunk = "A disk of an existing Machine becomes smaller."
            because "Neither claims nor file systems give space back."
            fix "Keep the size; after a switch of templates, override it at the disk."
            crd Nothing scope Change,
        Refuse DiskCannotGrow = "A disk grows, and its storage class does not allow it."
            because "The API server would refuse the larger claim, for ever."
            fix "Keep the size and add another disk, or have an administrator allow expansion in the class."
            crd Nothing scope Change,
    }
}

/// The disks that both the stored block and the new spec have, with volumes of their own.
fn stored_disks<'u>(
    update: &'u Update<'_>,
) -> impl Iterator<Item = (&'u NormalizedDisk, &'u Item<'u, Disk>)> {
    existing::own(update.merged, update.backend).filter_map(|item| {
        let same = |disk: &&NormalizedDisk| item.name().value == Some(disk.name.as_str());
        Some((update.old.disks.iter().find(same)?, item))
    })
}

/// Rule [`Code::BackendChanged`]: compares the backend in the spec with the one of the stored block.
fn backend(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let Some(old) = lookup.stored_backend else {
        return;
    };
    let leaf = lookup
        .merged
        .own("backend", |spec| Backend::parse(spec.backend.as_deref()?));
    if let Some(new) = leaf.value.filter(|new| *new != old) {
        let detail = format!(
            "cannot change from {old} to {new}: a machine cannot move between backends; create another Machine"
        );
        let fault = Violation::new(leaf.path, Code::BackendChanged, Kind::Invalid, detail);
        findings.deny(fault.text(new.as_str()));
    }
}

/// A value that changes, shown as its user would write it.
pub(super) struct Change {
    field: Field,
    path: FieldPath,
    from: String,
    to: String,
}

impl Change {
    /// The change of a field; `None` if the value is the same or the new one is unknown.
    pub(super) fn of<V>(
        field: Field,
        path: FieldPath,
        from: &V,
        to: Option<&V>,
        show: impl Fn(&V) -> String,
    ) -> Option<Self>
    where
        V: PartialEq + ?Sized,
    {
        let to = to.filter(|to| *to != from)?;
        Some(Self {
            field,
            path,
            from: show(from),
            to: show(to),
        })
    }

    /// The last part of the field's path.
    fn name(&self) -> &'static str {
        let path = self.field.path();
        path.rsplit_once('.').map_or(path, |(_, name)| name)
    }

    /// Whether the template brings a value where there was none: a Machine cannot override it with none.
    fn is_new_in_template(&self) -> bool {
        self.from == none() && !self.path.is_from_user()
    }

    /// How to keep the stored value: in the field that the user wrote, or by overriding the template.
    fn how_to_keep(&self, disk: &str) -> String {
        let (name, from) = (self.name(), &self.from);
        if self.is_new_in_template() {
            format!("take a template whose disk '{disk}' has no {name}")
        } else if *from == none() {
            "leave it out".to_owned()
        } else if self.path.is_from_user() {
            format!("set it to {from}")
        } else {
            format!("keep it with '{name}: {from}' for '{disk}' in spec.disks")
        }
    }

    /// Refuses it.
    fn deny(&self, code: Code, detail: String, findings: &mut Findings) {
        findings.deny(Violation::new(self.path, code, Kind::Forbidden, detail));
    }

    /// Refuses it because the volume of a disk was made from the field.
    pub(super) fn deny_for_volume(&self, disk: &str, findings: &mut Findings) {
        let (name, from, to, keep) = (self.name(), &self.from, &self.to, self.how_to_keep(disk));
        let other = if self.is_new_in_template() {
            "remove the template's disk with 'remove: true' and add one of another name"
        } else {
            "take another disk"
        };
        let detail = format!(
            "the {name} of disk '{disk}' cannot change from {from} to {to}, because its volume exists; {keep}, or {other}"
        );
        self.deny(Code::DiskChanged, detail, findings);
    }
}

/// Whether the value of a leaf is known. A template that was not found may set another value than the
/// default.
pub(super) fn is_known<V>(leaf: &Leaf<V>, merged: &Merged<'_>) -> bool {
    leaf.value.is_some() || merged.is_complete()
}

fn show<T: Display>(value: &T) -> String {
    value.to_string()
}

/// A family of operating systems that neither the spec nor the template names. It cannot be written.
const UNKNOWN: &str = "unknown";

/// Rule [`Code::StopFirst`].
fn stop_first(update: &Update<'_>, _: &dyn Catalog, findings: &mut Findings) {
    if !update.runs {
        return;
    }
    let (old, merged) = (update.old, update.merged);
    let machine_type = firmware::machine_type_name(merged);
    let new_type = match machine_type.value {
        Some(name) => MachineTypeName::parse(name).map(MachineType::from),
        None => Some(MachineType::from(MachineTypeName::PcQ35)),
    };
    let flag = |field, leaf: Leaf<bool>, old: bool| {
        let new = is_known(&leaf, merged).then_some(leaf.value.unwrap_or(false));
        Change::of(field, leaf.path, &old, new.as_ref(), show)
    };
    let (efi, secure_boot) = (firmware::efi(merged), firmware::secure_boot(merged));
    let family = guest_os::family(merged);
    let shown = |os: Option<OsFamily>| os.map_or(UNKNOWN, OsFamily::as_str);
    let (was, is) = (shown(old.os), shown(family.value.and_then(OsFamily::parse)));
    let changes = [
        Change::of(
            Field::Os,
            family.path,
            &was,
            Some(&is).filter(|_| is_known(&family, merged)),
            show,
        ),
        Change::of(
            Field::MachineType,
            machine_type.path,
            &old.machine_type,
            new_type
                .filter(|_| is_known(&machine_type, merged))
                .as_ref(),
            show,
        ),
        flag(Field::Efi, efi, old.firmware.kind == FirmwareType::Efi),
        flag(
            Field::SecureBoot,
            secure_boot,
            old.firmware.secure_boot == Some(true),
        ),
    ];
    let is_refused =
        |change: &Change| change.field.effect(update.backend) == Effect::RefusedWhileRunning;
    // What follows from another family is refused with it.
    let follows = |change: &Change| change.path == family.path && change.field != Field::Os;
    let changes = changes.into_iter().flatten();
    for change in changes
        .filter(is_refused)
        .filter(|it| was == is || !follows(it))
    {
        let Change {
            field, from, to, ..
        } = &change;
        let name = field.path();
        let keep = match (change.path.is_from_user(), from == UNKNOWN) {
            (true, true) => format!("leave {name} out"),
            (false, true) => format!("take a template without {name}"),
            (true, false) => format!("leave it at {from}"),
            (false, false) => format!("set spec.{name} to {from}"),
        };
        let detail = format!(
            "cannot change from {from} to {to} while the machine runs; set 'powerState: Stopped' before or in the same update, or {keep}"
        );
        change.deny(Code::StopFirst, detail, findings);
    }
}

/// Rule [`Code::DiskChanged`].
fn disks(update: &Update<'_>, _: &dyn Catalog, findings: &mut Findings) {
    for (old, item) in stored_disks(update) {
        disk(update, old, item, findings);
    }
}

fn disk(update: &Update<'_>, old: &NormalizedDisk, item: &Item<'_, Disk>, findings: &mut Findings) {
    // The pattern lists every field, so a new field does not compile until it is compared or ignored here.
    let NormalizedDisk {
        name,
        size: _,
        storage_class,
        access_mode,
        volume_mode,
        bus: _,
        boot_order: _,
        // It is not written in a spec.
        hotpluggable: _,
        reclaim_policy: _,
        image,
        // It changes with the name in the image only.
        image_pin: _,
        selector,
        serial: _,
        volume_name,
    } = old;
    let merged = update.merged;
    let discarded = &mut Findings::default();
    let class = item.pick("storageClass", |disk| disk.storage_class.as_deref());
    let new_class = ClassRequest::of(class.value).resolved(name, update.pins);
    let access = item.pick("accessMode", |disk| disk.access_mode.as_deref());
    let new_access = disks::access_mode(item, discarded).filter(|_| is_known(&access, merged));
    let mode = item.pick("volumeMode", |disk| disk.volume_mode.as_deref());
    let new_mode = disks::volume_mode(item, discarded).filter(|_| is_known(&mode, merged));
    let new_image = Leaf {
        value: item.image().cloned(),
        path: item.written_image().path,
    };
    let new_selector = item.pick("selector", |disk| {
        disk.selector.as_ref()?.match_labels.clone()
    });
    let new_volume = item.pick("volumeName", |disk| disk.volume_name.clone());
    let new_class = new_class.filter(|_| is_known(&class, merged));
    let changes = [
        Change::of(
            Field::DiskStorageClass,
            class.path,
            storage_class,
            new_class.as_ref(),
            |class| quoted(class),
        ),
        Change::of(
            Field::DiskAccessMode,
            access.path,
            access_mode,
            new_access.as_ref(),
            show,
        ),
        Change::of(
            Field::DiskVolumeMode,
            mode.path,
            volume_mode,
            new_mode.as_ref(),
            show,
        ),
        Change::of(
            Field::DiskImage,
            new_image.path,
            image,
            is_known(&new_image, merged).then_some(&new_image.value),
            |image| image.as_ref().map_or_else(none, show_image),
        ),
        Change::of(
            Field::DiskSelector,
            new_selector.path,
            selector,
            is_known(&new_selector, merged).then_some(&new_selector.value),
            |labels| labels.as_ref().map_or_else(none, show_labels),
        ),
        Change::of(
            Field::DiskVolumeName,
            new_volume.path,
            volume_name,
            is_known(&new_volume, merged).then_some(&new_volume.value),
            |volume| volume.as_deref().map_or_else(none, quoted),
        ),
    ];
    let corrects_image =
        is_correctable(update, name) && matches!((image, &new_image.value), (Some(_), Some(_)));
    let is_refused = |change: &Change| {
        change.field.effect(update.backend) == Effect::Refused
            && !(change.field == Field::DiskImage && corrects_image)
    };
    for change in changes.into_iter().flatten().filter(is_refused) {
        change.deny_for_volume(name, findings);
    }
}

/// Whether a disk can get another image: CDI has not filled its volume, so the controller starts the import again. A
/// libvirt host may already be copying the image into the volume.
fn is_correctable(update: &Update<'_>, disk: &str) -> bool {
    update.backend == Backend::Kubevirt && update.incomplete_imports.iter().any(|name| name == disk)
}

/// Rules [`Code::DiskShrunk`] and [`Code::DiskCannotGrow`].
fn capacity(update: &Update<'_>, catalog: &dyn Catalog, findings: &mut Findings) {
    for (old, item) in stored_disks(update) {
        disk_capacity(update, old, item, catalog, findings);
    }
}

fn disk_capacity(
    update: &Update<'_>,
    old: &NormalizedDisk,
    item: &Item<'_, Disk>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) {
    let leaf = item.pick("size", |disk| disk.size.as_deref());
    let new = disks::size(update.merged, item, &mut Findings::default());
    let Some(new) = new else { return };
    let Some(change) = Change::of(Field::DiskSize, leaf.path, &old.size, Some(&new), show) else {
        return;
    };
    let (name, keep) = (&old.name, change.how_to_keep(&old.name));
    let Change { from, to, .. } = &change;
    if new < old.size {
        let detail = format!(
            "disk '{name}' cannot shrink from {from} to {to}, because a volume never gives space back; {keep}"
        );
        change.deny(Code::DiskShrunk, detail, findings);
        return;
    }
    // The pools of a libvirt host grow any volume.
    let Some(reason) = (update.backend == Backend::Kubevirt)
        .then(|| expansion_blocker(&old.storage_class, catalog, findings))
        .flatten()
    else {
        return;
    };
    let detail = format!(
        "disk '{name}' cannot grow from {from} to {to}: {reason}; {keep}, and add another disk for more space"
    );
    change.deny(Code::DiskCannotGrow, detail, findings);
}

fn expansion_blocker(
    class: &str,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> Option<String> {
    if class.is_empty() {
        return Some("it has no storage class that could grow it".to_owned());
    }
    match catalog.storage_class(class) {
        Some(row) if row.allows_expansion => None,
        Some(_) => Some(format!(
            "storage class {} does not allow volume expansion",
            quoted(class)
        )),
        None => {
            findings.miss(Reference::StorageClass(class.to_owned()));
            Some(format!(
                "storage class {} does not exist any more, so its volumes cannot be expanded",
                quoted(class)
            ))
        }
    }
}

pub(super) fn none() -> String {
    "none".to_owned()
}

fn show_image(image: &Image) -> String {
    let Image {
        url,
        checksum,
        name,
        persistent_volume_claim,
        secret_ref,
        volume,
    } = image;
    // The source of a MachineImage is not the user's.
    if let Some(name) = name {
        return format!("{{name: {}}}", shortened(name));
    }
    let secret = secret_ref.as_ref().and_then(|secret| secret.name.clone());
    // A URL may have a password or a token.
    let url = url.as_deref().map(redacted);
    let parts = [
        ("url", &url),
        ("checksum", checksum),
        ("persistentVolumeClaim", persistent_volume_claim),
        ("secretRef", &secret),
        ("volume", volume),
    ];
    let parts = parts
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}: {}", shortened(value.as_deref()?))));
    format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
}

fn show_labels(labels: &BTreeMap<String, String>) -> String {
    let labels = labels.iter().map(|(key, value)| format!("{key}: {value}"));
    let labels = labels.collect::<Vec<_>>().join(", ");
    format!("{{matchLabels: {{{}}}}}", shortened(&labels))
}
