//! Kept volumes: they stay until the annotation `release-volume` names their disks.
//!
//! ```text
//! disk leaves the spec ─▶ in the domain's metadata, with the policy Retain ─┐
//! Machine deleted ──────▶ in the status of the host, with the Machine's name ─┴─ annotation ─▶ deleted ─▶ no record
//! ```

use std::collections::BTreeSet;

use common::api::normalized::Normalized;
use common::api::status::VolumeStatus;
use common::names;
use common::quantity::Bytes;
use common::render::libvirt::{DomainMetadata, VolumeRecord, is_disk_of};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::action::{Action, KeptOnHost};
use super::disks::{delete, has_disk, is_whole, unless_removed, uses};
use crate::access::VolumeKey;
use crate::images::names::{disk_of, is_attempt};
use crate::names::domain_of;
use crate::observed::{Guest, HostView};

/// The volumes that the domain's metadata records: those of the disks, then those that were kept and still exist. A
/// volume whose disk has left the spec is no longer deleted with the Machine.
pub(super) fn kept_records(
    machine: &Machine,
    block: &Normalized,
    old: Option<&DomainMetadata>,
    desired: &[VolumeRecord],
    view: &HostView,
) -> Vec<VolumeRecord> {
    let former = old.into_iter().flat_map(|metadata| &metadata.volumes);
    let is_desired = |old: &VolumeRecord| {
        let mut desired = desired.iter();
        desired.any(|kept| (&kept.pool, &kept.volume) == (&old.pool, &old.volume))
    };
    let former = former.filter(|old| !is_desired(old));
    // A volume that cannot be seen may be there: its pool cannot be read, or the file system of the pool is not mounted.
    let is_gone = |old: &VolumeRecord| {
        let has_another = desired.iter().any(|kept| kept.disk == old.disk);
        is_absent(view, &old.pool, &old.volume) && (is_released(machine, &old.disk) || has_another)
    };
    let former = former.filter(|old| !is_gone(old));
    let former = former.map(|old| unless_removed(machine, block, &view.spec, old));
    desired.iter().cloned().chain(former).collect()
}

/// Whether the annotation `release-volume` names a disk.
fn is_released(machine: &Machine, disk: &str) -> bool {
    let mut named = machine.named_in(names::ANNOTATION_RELEASE_VOLUME);
    named.any(|name| name == disk)
}

/// Whether the pool of a volume can be read and does not have it.
fn is_absent(view: &HostView, pool: &str, name: &str) -> bool {
    let key = (pool.to_owned(), name.to_owned());
    !view.unreadable_pools.contains_key(pool) && !view.volumes.contains_key(&key)
}

/// What the annotation `release-volume` asks for.
#[derive(Debug, Default)]
pub(super) struct Releases {
    /// The removal of the annotation, before the definition is written that no longer records the volumes: without a
    /// record of them, the annotation would act on those of former Machines.
    pub(super) answer: Option<Action>,
    /// Deletions of volumes.
    pub(super) deletions: Vec<Action>,
}

impl Releases {
    /// All of it, where no definition is written.
    pub(super) fn into_actions(self) -> Vec<Action> {
        self.deletions.into_iter().chain(self.answer).collect()
    }
}

/// Deletes the kept volumes of the disks that the annotation names: those of the Machine once neither the definition nor
/// the running guest has them; if it has none, those of former Machines of the name. The annotation is removed after the
/// last one: it must not act on a disk that leaves the spec later. `defines`: whether the domain's metadata is written.
pub(super) fn releases(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
    of_former: &[KeptOnHost],
    defines: bool,
) -> Releases {
    let annotation = names::ANNOTATION_RELEASE_VOLUME;
    if machine.annotation(annotation).is_none() {
        return Releases::default();
    }
    let answer = Action::RemoveAnnotation(annotation);
    let own = OwnVolumes::of(machine, block, view);
    if own.is_empty() {
        let of_former = of_former.iter();
        let of_former = of_former.filter(|kept| is_released(machine, &kept.volume.disk));
        let of_former: Vec<_> = of_former.cloned().map(Action::ReleaseKept).collect();
        // The Machine's own volume may be in a pool that cannot be read.
        let may_hide = !view.unreadable_pools.is_empty();
        return Releases {
            answer: of_former.is_empty().then_some(answer),
            deletions: if may_hide { vec![] } else { of_former },
        };
    }
    let is_gone = own.are_gone(view) && (defines || own.recorded.is_empty());
    Releases {
        answer: is_gone.then_some(answer),
        deletions: own.deletions(machine, view),
    }
}

/// The Machine's own volumes of the disks that the annotation `release-volume` names and the spec does not have. While one
/// of the three has any, the annotation does not act on volumes of former Machines.
struct OwnVolumes<'a> {
    /// Those that the domain's metadata records.
    recorded: BTreeSet<VolumeKey>,
    /// Those that the host shows, by their names: some were made before a domain was defined with them.
    shown: BTreeSet<VolumeKey>,
    /// Names of those that the status lists.
    listed: BTreeSet<&'a str>,
}

impl<'a> OwnVolumes<'a> {
    fn of(machine: &'a Machine, block: &Normalized, view: &HostView) -> Self {
        let is_left = |disk: &str| is_released(machine, disk) && !has_disk(block, disk);
        let domain = domain_of(machine);
        let is_own = |name: &str| is_disk_of(name, &domain) && disk_of(name).is_some_and(is_left);
        let guest = view.guest.as_ref();
        let metadata = guest.and_then(|guest| guest.metadata.as_ref());
        let recorded = metadata.into_iter().flat_map(|metadata| &metadata.volumes);
        let recorded = recorded.filter(|old| is_left(&old.disk));
        let shown = view.volumes.keys().filter(|(_, name)| is_own(name));
        let listed = machine.status.kept_volumes.iter();
        let listed = listed.map(|known| known.claim_name.as_str());
        Self {
            recorded: recorded
                .map(|old| (old.pool.clone(), old.volume.clone()))
                .collect(),
            shown: shown.cloned().collect(),
            listed: listed.filter(|name| is_own(name)).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.recorded.is_empty() && self.shown.is_empty() && self.listed.is_empty()
    }

    /// A volume that only the status lists may be in any pool that cannot be read.
    fn are_gone(&self, view: &HostView) -> bool {
        let is_recorded = |name: &str| self.recorded.iter().any(|(_, it)| it == name);
        let mut recorded = self.recorded.iter();
        let mut listed = self.listed.iter();
        self.shown.is_empty()
            && recorded.all(|(pool, name)| is_absent(view, pool, name))
            && (view.unreadable_pools.is_empty() || listed.all(|name| is_recorded(name)))
    }

    /// A volume in no record is deleted once the status lists it: without a trace of it, the next pass would take the
    /// annotation for one about former Machines.
    fn deletions(&self, machine: &Machine, view: &HostView) -> Vec<Action> {
        let guest = view.guest.as_ref();
        // A copy that is under way ends by itself, because its disk is no longer needed.
        let is_copied = |name: &str| view.is_copying && is_attempt(name);
        let is_free = |name: &str| guest.is_none_or(|guest| !is_used(guest, name));
        let is_known =
            |key: &&VolumeKey| self.recorded.contains(*key) || self.listed.contains(&*key.1);
        let known = self.shown.iter().filter(is_known);
        let free = known.filter(|(_, name)| is_free(name) && !is_copied(name));
        let deletions = free.filter_map(|key| {
            let volume = view.volumes.get(key)?;
            Some(Action::DeleteVolume(delete(machine, &key.0, volume)))
        });
        deletions.collect()
    }
}

/// The volumes that are kept of disks which left the spec, the largest first. Of pools that cannot be read, and of disks
/// that the annotation `release-volume` names, the entries of the last status stay.
pub(super) fn kept_volumes(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
) -> Vec<VolumeStatus> {
    let domain = domain_of(machine);
    let is_of_disk = |pool: &str, name: &str| {
        is_disk_of(name, &domain)
            && (is_whole(machine, view, pool, name)
                || disk_of(name).is_some_and(|disk| is_released(machine, disk)))
    };
    let ours = view.volumes.iter();
    let ours = ours.filter(|((pool, name), _)| is_of_disk(pool, name));
    let left = ours.filter_map(|((_, name), volume)| {
        let disk = disk_of(name).filter(|disk| !has_disk(block, disk))?;
        Some((volume.capacity, disk, name))
    });
    let mut left: Vec<_> = left.collect();
    left.sort_by(|a, b| b.cmp(a));
    let status = |(capacity, disk, name): (u64, &str, &String)| VolumeStatus {
        name: disk.to_owned(),
        claim_name: name.clone(),
        phase: None,
        capacity: Some(Bytes::new(u128::from(capacity)).to_string()),
        progress: None,
    };
    let mut kept: Vec<_> = left.into_iter().map(status).collect();
    let is_hidden = !view.unreadable_pools.is_empty();
    let known = machine.status.kept_volumes.iter();
    let known = known.filter(|known| !has_disk(block, &known.name));
    let known: Vec<_> = known
        .filter(|known| is_hidden || is_released(machine, &known.name))
        .filter(|known| kept.iter().all(|kept| kept.claim_name != known.claim_name))
        .cloned()
        .collect();
    kept.extend(known);
    kept
}

/// Whether the guest is defined with a volume, or runs with it.
fn is_used(guest: &Guest, volume: &str) -> bool {
    let mut domains = [&guest.defined, &guest.running].into_iter().flatten();
    domains.any(|domain| uses(domain, volume))
}
