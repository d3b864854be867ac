//! Kept volumes: they stay until the annotation `release-volume` names their disks.
//!
//! ```text
//! disk leaves the spec ─▶ in the domain's metadata, with the policy Retain ─┐
//! Machine deleted ──────▶ in the status of the host, with the Machine's name ─┴─ annotation ─▶ deleted ─▶ no record
//! ```

use common::api::normalized::Normalized;
use common::api::status::VolumeStatus;
use common::names;
use common::quantity::Bytes;
use common::render::libvirt::{DomainMetadata, VolumeRecord, is_disk_of};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::action::{Action, KeptOnHost};
use super::disks::{delete, has_disk, is_whole, unless_removed, uses};
use crate::images::names::disk_of;
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
        let is_released = is_named(machine, names::ANNOTATION_RELEASE_VOLUME, &old.disk);
        let has_another = desired.iter().any(|kept| kept.disk == old.disk);
        is_absent(view, old) && (is_released || has_another)
    };
    let former = former.filter(|old| !is_gone(old));
    let former = former.map(|old| unless_removed(machine, block, &view.spec, old));
    desired.iter().cloned().chain(former).collect()
}

/// Whether an annotation names a disk. It has names of disks, separated by commas.
pub(super) fn is_named(machine: &Machine, annotation: &str, disk: &str) -> bool {
    let named = machine.annotation(annotation).into_iter();
    let mut named = named.flat_map(|named| named.split(','));
    named.any(|name| name.trim() == disk)
}

/// Whether the pool of a recorded volume can be read and does not have it.
fn is_absent(view: &HostView, record: &VolumeRecord) -> bool {
    let key = (record.pool.clone(), record.volume.clone());
    !view.unreadable_pools.contains_key(&record.pool) && !view.volumes.contains_key(&key)
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
    let guest = view.guest.as_ref();
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let recorded = metadata.into_iter().flat_map(|metadata| &metadata.volumes);
    let released: Vec<_> = recorded
        .filter(|old| is_named(machine, annotation, &old.disk) && !has_disk(block, &old.disk))
        .collect();
    if released.is_empty() {
        let of_former = of_former.iter();
        let of_former = of_former.filter(|kept| is_named(machine, annotation, &kept.volume.disk));
        let deletions: Vec<_> = of_former.cloned().map(Action::ReleaseKept).collect();
        return Releases {
            answer: deletions.is_empty().then_some(answer),
            deletions,
        };
    }
    let is_answered = defines && released.iter().all(|old| is_absent(view, old));
    let deletions = released
        .iter()
        .filter(|old| guest.is_none_or(|guest| !is_used(guest, &old.volume)))
        .filter_map(|old| {
            let key = (old.pool.clone(), old.volume.clone());
            let volume = view.volumes.get(&key)?;
            Some(Action::DeleteVolume(delete(machine, &old.pool, volume)))
        });
    Releases {
        answer: is_answered.then_some(answer),
        deletions: deletions.collect(),
    }
}

/// The volumes that are kept of disks which left the spec, the largest first. The entries of pools
/// that cannot be read are those of the last status.
pub(super) fn kept_volumes(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
) -> Vec<VolumeStatus> {
    let is_of_disk =
        |pool: &str, name: &str| is_disk_of(name, machine.uid()) && is_whole(view, pool, name);
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
    if !view.unreadable_pools.is_empty() {
        let known = machine.status.kept_volumes.iter();
        let hidden = known.filter(|known| !has_disk(block, &known.name));
        let hidden: Vec<_> = hidden
            .filter(|known| kept.iter().all(|kept| kept.claim_name != known.claim_name))
            .cloned()
            .collect();
        kept.extend(hidden);
    }
    kept
}

/// Whether the guest is defined with a volume, or runs with it.
fn is_used(guest: &Guest, volume: &str) -> bool {
    let mut domains = [&guest.defined, &guest.running].into_iter().flatten();
    domains.any(|domain| uses(domain, volume))
}
