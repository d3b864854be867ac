//! Existing claims and volumes that disks are on, compared with the claims and Machines of the namespace.
//!
//! Only claims that the stored Machine is not on are checked. The catalog may lag behind, so the controller compares
//! Machines as well, and looks for pods and VirtualMachines that use a claim before it starts a guest.

use std::collections::BTreeMap;

use crate::api::choice::Backend;
use crate::api::machine::Disk;
use crate::catalog::{ClaimUser, volume_key};
use crate::code::Code;
use crate::names;
use crate::normalize::{Item, Leaf};
use crate::violation::{Findings, Kind, Violation};

use super::disks::existing;
use super::form;
use super::rule::{Check, Lookup, rules};

rules! {
    "references" Check::Lookup(existing_claims), on MACHINES, Always {
        Refuse ClaimInUse = "The claim that a disk is to be on is another Machine's, or another Machine has a disk on it."
            because "Two guests that write to one volume destroy its file system."
            fix "Name another claim, or remove the disk from the other Machine first. A ReadWriteMany claim can be shared: set `shareable: true` at the disk in every Machine."
            crd Nothing scope Taken,
        Warn ClaimNotFound = "The claim that a disk is to be on does not exist in the Machine's namespace."
            because "The Machine waits until the claim exists; the controller never creates it."
            fix "Correct the name, or create or restore the claim."
            crd Nothing,
        Refuse VolumeInUse = "Another Machine of the namespace has a disk on the volume of a libvirt host that this disk is to be on."
            because "Two guests that write to one volume destroy its file system."
            fix "Name another volume, or remove the disk from the other Machine first."
            crd Nothing scope Taken,
    }
}

/// Rules [`Code::ClaimInUse`] and [`Code::ClaimNotFound`] for every disk.
fn existing_claims(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    if lookup.is_on_libvirt() {
        return existing_volumes(lookup, findings);
    }
    for item in &lookup.merged.disks {
        let leaf = item.pick("claimName", |disk| disk.claim_name.as_deref());
        if let Some(claim) = leaf.value.filter(|claim| form::is_object_name(claim)) {
            existing_claim(item, leaf, claim, lookup, findings);
        }
    }
}

/// Rule [`Code::VolumeInUse`] for every disk. Whether the host has the volume, and whether a domain of others uses it, the
/// controller sees there.
fn existing_volumes(lookup: &Lookup<'_>, findings: &mut Findings) {
    for item in &lookup.merged.disks {
        let leaf = existing::source(item, Backend::Libvirt);
        let Some(volume) = leaf.value.filter(|volume| form::is_object_name(volume)) else {
            continue;
        };
        let stored = lookup.stored.into_iter();
        let mut stored = stored.flat_map(|block| &block.existing_disks);
        if stored.any(|disk| disk.source() == volume) {
            continue;
        }
        let users = lookup
            .catalog
            .claim_users(lookup.machine, &volume_key(volume));
        if let Some(ClaimUser { machine, .. }) = users.first() {
            let detail = format!(
                "Machine '{machine}' has a disk on a volume of this name; name another, or remove the disk there first"
            );
            let fault = Violation::new(leaf.path, Code::VolumeInUse, Kind::Duplicate, detail);
            findings.deny(fault.text(volume));
        }
    }
}

fn existing_claim(
    item: &Item<'_, Disk>,
    leaf: Leaf<&str>,
    claim: &str,
    lookup: &Lookup<'_>,
    findings: &mut Findings,
) {
    let (machine, catalog) = (lookup.machine, lookup.catalog);
    let mut deny = |detail: String| {
        let fault = Violation::new(leaf.path, Code::ClaimInUse, Kind::Duplicate, detail);
        findings.deny(fault.text(claim));
    };
    if let Some(disk) = own_disk(lookup, claim) {
        return deny(format!(
            "is the claim of disk '{disk}' of this Machine; name another claim, or remove that disk first"
        ));
    }
    let stored = lookup
        .stored
        .into_iter()
        .flat_map(|block| &block.existing_disks);
    let mut same = stored.filter(|disk| disk.source() == claim);
    let is_shareable = existing::shareable(item).value == Some(true);
    // One that is no longer shareable is compared with the others again.
    if same.any(|disk| disk.shareable == is_shareable) {
        return;
    }
    let shared = catalog.is_shared_claim(machine.namespace, claim);
    if is_shareable && shared == Some(false) {
        return deny(
            "is not ReadWriteMany, so Machines cannot share it; drop shareable, or name a ReadWriteMany claim"
                .to_owned(),
        );
    }
    let may_be_shared = shared.unwrap_or(true);
    let users = catalog.claim_users(machine, claim);
    let mut others = users.iter();
    if let Some(user) = others.find(|user| !user.may_share(is_shareable, may_be_shared)) {
        return deny(in_use(user, is_shareable, shared));
    }
    if shared.is_none() && users.is_empty() {
        let text = format!(
            "{}: PersistentVolumeClaim '{claim}' does not exist yet",
            leaf.path
        );
        findings.warn(Code::ClaimNotFound, &text);
    }
}

/// The disk of the Machine itself whose own volume the claim is, or was until this update.
fn own_disk<'l>(lookup: &'l Lookup<'_>, claim: &str) -> Option<&'l str> {
    let machine = lookup.machine.name;
    let own = existing::own(lookup.merged, lookup.backend);
    let own = own.filter_map(|item| item.name().value);
    let stored = lookup.stored.into_iter().flat_map(|block| &block.disks);
    let stored = stored.map(|disk| disk.name.as_str());
    let mut disks = own.chain(stored);
    let disk = disks.find(|disk| !machine.is_empty() && names::claim(machine, disk) == claim);
    disk.or_else(|| own_medium(lookup, claim))
}

/// The CD-ROM drive of the Machine itself whose image the claim has: its name ends with a digest of the image.
fn own_medium<'l>(lookup: &'l Lookup<'_>, claim: &str) -> Option<&'l str> {
    let machine = lookup.machine.name;
    let own = lookup.merged.cdroms.iter();
    let own = own.filter_map(|item| item.name().value);
    let stored = lookup.stored.into_iter().flat_map(|block| &block.cdroms);
    let mut drives = own.chain(stored.map(|cdrom| cdrom.name.as_str()));
    drives.find(|drive| {
        let digest = claim.strip_prefix(&format!("{}-", names::claim(machine, drive)));
        !machine.is_empty() && digest.is_some_and(|it| it.bytes().all(|b| b.is_ascii_hexdigit()))
    })
}

/// Who has the claim, and what to do.
fn in_use(user: &ClaimUser, is_shareable: bool, shared: Option<bool>) -> String {
    let machine = &user.machine;
    if let Some(disk) = &user.own_disk {
        return format!(
            "is the claim of disk '{disk}' of Machine '{machine}'; name another, or remove the disk there first: its volume is kept"
        );
    }
    let why = match (shared, is_shareable && user.is_shareable) {
        (Some(false), true) => ", and it is not ReadWriteMany, so they cannot share it",
        (Some(false), false) => "",
        _ => {
            ", and a ReadWriteMany claim is shared only if every Machine sets 'shareable: true' at the disk"
        }
    };
    format!(
        "Machine '{machine}' has a disk on it{why}; name another claim, or remove the disk there first"
    )
}
