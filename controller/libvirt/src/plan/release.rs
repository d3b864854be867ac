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
    let former = former.filter(|old| {
        // A volume in a pool that cannot be read may be there.
        let key = (old.pool.clone(), old.volume.clone());
        view.unreadable_pools.contains_key(&old.pool) || view.volumes.contains_key(&key)
    });
    let former = former.map(|old| unless_removed(machine, block, &view.spec, old));
    desired.iter().cloned().chain(former).collect()
}

/// Deletes the kept volumes of the disks that the annotation names: those of the Machine once neither the definition nor
/// the running guest has them; if it has none, those of former Machines of the name. The annotation is removed with the
/// last one: it must not act on a disk that leaves the spec later.
pub(super) fn releases(
    machine: &Machine,
    block: &Normalized,
    view: &HostView,
    of_former: &[KeptOnHost],
) -> Vec<Action> {
    let Some(named) = machine.annotation(names::ANNOTATION_RELEASE_VOLUME) else {
        return vec![];
    };
    let is_named = |disk: &str| named.split(',').any(|name| name.trim() == disk);
    let guest = view.guest.as_ref();
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let recorded = metadata.into_iter().flat_map(|metadata| &metadata.volumes);
    let released: Vec<_> = recorded
        .filter(|old| is_named(&old.disk) && !has_disk(block, &old.disk))
        .collect();
    if released.is_empty() {
        let of_former = of_former.iter().filter(|kept| is_named(&kept.volume.disk));
        let of_former: Vec<_> = of_former.cloned().map(Action::ReleaseKept).collect();
        return if of_former.is_empty() {
            vec![Action::RemoveReleaseRequest]
        } else {
            of_former
        };
    }
    let mut deletions: Vec<_> = released
        .iter()
        .filter(|old| guest.is_none_or(|guest| !is_used(guest, &old.volume)))
        .filter_map(|old| {
            let key = (old.pool.clone(), old.volume.clone());
            let volume = view.volumes.get(&key)?;
            Some(Action::DeleteVolume(delete(machine, &old.pool, volume)))
        })
        .collect();
    if deletions.len() == released.len() {
        deletions.push(Action::RemoveReleaseRequest);
    }
    deletions
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
