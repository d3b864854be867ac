//! Which volumes a Machine has, and which are deleted with it.

use std::collections::BTreeMap;

use common::api::choice::{Choice as _, ReclaimPolicy};
use common::api::left_volumes::{KeptVolume, TombstoneVolume};
use common::api::libvirt_host::{HostStorage, LibvirtHostSpec};
use common::api::machine::Image;
use common::api::normalized::{Normalized, NormalizedDisk};
use common::quantity::Bytes;
use common::render::libvirt::{
    Disk, Domain, DomainMetadata, VolumeFormat, VolumeRecord, is_disk_of, is_seed, is_volume_of,
    volume_name,
};
use controller_core::deletion::deletes;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::unseen::unseen;
use crate::access::{Volume, VolumeKey};
use crate::images::names::{
    base_of, disk_of, image_volume, is_attempt, is_attempt_of, is_marker, marked, marker,
};
use crate::names::domain_of;
use crate::observed::{Guest, HostView};
use crate::offers::{existing_volumes, images, is_copy, storage};
use crate::volume_effects::Removal;

/// The volumes that a block's disks would have, and what becomes of each. A copied one has an attempt beside its name.
fn disks(machine: &Machine, block: &Normalized, spec: &LibvirtHostSpec) -> Vec<VolumeRecord> {
    let kept = |disk: &NormalizedDisk| {
        let offer = storage(spec, &disk.storage_class)?;
        Some(VolumeRecord {
            disk: disk.name.clone(),
            pool: offer.pool.clone(),
            volume: name_of(machine, disk, offer),
            reclaim_policy: disk.reclaim_policy,
        })
    };
    block.disks.iter().filter_map(kept).collect()
}

/// The volumes of a Machine's disks: those that the domain's metadata records, without a domain those of the block.
/// `None`: neither is known.
fn records(
    machine: &Machine,
    spec: &LibvirtHostSpec,
    metadata: Option<&DomainMetadata>,
) -> Option<Vec<VolumeRecord>> {
    match metadata {
        Some(metadata) => Some(recorded(machine, metadata, spec)),
        None => Some(disks(machine, machine.desired()?, spec)),
    }
}

/// The disks of a Machine: pool, volume without the attempt, size in bytes.
pub(crate) fn sizes(machine: &Machine, spec: &LibvirtHostSpec) -> Vec<(String, String, u128)> {
    let block = machine.desired().into_iter();
    let size = |disk: &NormalizedDisk| {
        let offer = storage(spec, &disk.storage_class)?;
        let name = name_of(machine, disk, offer);
        Some((offer.pool.clone(), name, disk.size.get()))
    };
    block
        .flat_map(|block| &block.disks)
        .filter_map(size)
        .collect()
}

/// The volumes that are deleted with a Machine: disks of the spec by the reclaim policy that the domain's metadata
/// records, without a domain by that of the block; copies that were never used; seeds. Without domain and block no disk is
/// deleted.
pub(super) fn removals(machine: &Machine, view: &HostView, guest: Option<&Guest>) -> Vec<Removal> {
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let kept = records(machine, &view.spec, metadata).unwrap_or_default();
    let is_unused_copy = |pool: &str, name: &str| {
        let marker = (pool.to_owned(), marker(name));
        is_attempt(name) && !view.volumes.contains_key(&marker) && !is_reported(machine, name)
    };
    let is_to_remove = |pool: &str, name: &str| {
        let mut of_disk = kept.iter().filter(|kept| kept.pool == pool);
        match of_disk.find(|kept| is_attempt_of(name, base_of(&kept.volume))) {
            Some(kept) if is_to_go(kept) => true,
            // Another attempt at a disk that is kept may have been interrupted.
            Some(kept) => name != kept.volume && is_unused_copy(pool, name),
            None => is_seed(name) || is_unused_copy(pool, name),
        }
    };
    // A marker is deleted with its volume, or alone if only the volume was deleted before.
    let is_stale_marker = |pool: &str, name: &str| {
        marked(name).is_some_and(|volume| {
            let volume = (pool.to_owned(), volume.to_owned());
            !view.volumes.contains_key(&volume)
        })
    };
    let domain = domain_of(machine);
    let ours = view
        .volumes
        .iter()
        .filter(|((_, name), _)| is_volume_of(name, &domain));
    ours.filter(|((pool, name), _)| {
        if is_marker(name) {
            is_stale_marker(pool, name)
        } else {
            is_to_remove(pool, name)
        }
    })
    .map(|((pool, _), volume)| delete(machine, pool, volume))
    .collect()
}

/// The volumes that a domain's metadata records. One whose disk has left the spec, or has the policy Retain there, is
/// kept, whatever is recorded; without a block that matches the spec the records decide.
pub(super) fn recorded(
    machine: &Machine,
    metadata: &DomainMetadata,
    spec: &LibvirtHostSpec,
) -> Vec<VolumeRecord> {
    let all = metadata.volumes.iter();
    match machine.desired() {
        Some(block) => {
            let record = |record| unless_removed(machine, block, spec, record);
            all.map(record).collect()
        }
        None => all.cloned().collect(),
    }
}

/// Volumes to keep when a Machine is deleted: those recorded in the domain's metadata (without a domain: those of the
/// block) without the reclaim policy `Delete`, and unrecorded ones of the Machine, which were made before a domain was
/// defined with them. Unused copies are left out.
pub(super) fn kept(
    machine: &Machine,
    view: &HostView,
    metadata: Option<&DomainMetadata>,
) -> Vec<KeptVolume> {
    let records = records(machine, &view.spec, metadata).unwrap_or_default();
    let unseen = unseen(machine, view, metadata);
    let volume = |(pool, name): &VolumeKey, disk: &str| KeptVolume {
        machine: format!("{}/{}", machine.namespace(), machine.name()),
        uid: machine.uid().to_owned(),
        disk: disk.to_owned(),
        pool: pool.clone(),
        volume: name.clone(),
        size: capacity(view, pool, name),
    };
    let of_record = |record: &VolumeRecord| {
        if view.unreadable_pools.contains_key(&record.pool) || unseen.contains(record) {
            // It cannot be seen, and after the deletion no other record of it exists.
            let key = (record.pool.clone(), record.volume.clone());
            return vec![volume(&key, &record.disk)];
        }
        let all = view.volumes.keys().filter(|(pool, _)| *pool == record.pool);
        let base = base_of(&record.volume);
        let names = all.filter(|(pool, name)| {
            is_attempt_of(name, base) && is_whole(machine, view, pool, name)
        });
        let of_record = names.map(|key| volume(key, &record.disk));
        of_record.collect::<Vec<_>>()
    };
    let domain = domain_of(machine);
    let is_in_no_record = |(pool, name): &&VolumeKey| {
        let mut of_pool = records.iter().filter(|record| record.pool == *pool);
        is_disk_of(name, &domain)
            && is_whole(machine, view, pool, name)
            && !of_pool.any(|record| is_attempt_of(name, base_of(&record.volume)))
    };
    let others = view.volumes.keys().filter(is_in_no_record);
    let others = others.filter_map(|key| Some(volume(key, disk_of(&key.1)?)));
    let kept = records.iter().filter(|record| !is_to_go(record));
    kept.flat_map(of_record).chain(others).collect()
}

/// Whether a volume is one of a disk, and no marker and no copy that was never used.
pub(super) fn is_whole(machine: &Machine, view: &HostView, pool: &str, name: &str) -> bool {
    let marker = (pool.to_owned(), marker(name));
    let is_used = || {
        view.volumes.contains_key(&marker)
            || is_defined(view, name)
            || is_recorded(view, pool, name)
            || is_reported(machine, name)
    };
    !is_marker(name) && (!is_attempt(name) || is_used())
}

/// Whether the status has this volume as that of a disk, or as one that is kept: then it was complete once. It is known from there
/// alone when the marker of a copy is lost and its domain is undefined.
fn is_reported(machine: &Machine, name: &str) -> bool {
    let mut kept = machine.status.kept_volumes.iter();
    is_made(machine, name) || kept.any(|it| it.claim_name == name)
}

/// Whether the status has this volume as that of a disk, with its size.
fn is_made(machine: &Machine, name: &str) -> bool {
    let mut made = machine.status.volumes.iter();
    made.any(|it| it.claim_name == name && it.capacity.is_some())
}

/// Whether the domain's metadata records this volume: then it was defined once.
fn is_recorded(view: &HostView, pool: &str, name: &str) -> bool {
    let guest = view.guest.as_ref();
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let mut records = metadata.iter().flat_map(|metadata| &metadata.volumes);
    records.any(|record| record.pool == pool && record.volume == name)
}

fn capacity(view: &HostView, pool: &str, name: &str) -> Option<Bytes> {
    let key = (pool.to_owned(), name.to_owned());
    let volume = view.volumes.get(&key)?;
    Some(Bytes::new(u128::from(volume.capacity)))
}

/// The volumes to delete of a Machine that is deleted before its host can be read: those that the domain's metadata records,
/// without a domain those of the block. `None`: neither is known.
pub(crate) fn to_delete(
    machine: &Machine,
    spec: &LibvirtHostSpec,
    metadata: Option<&DomainMetadata>,
) -> Option<Vec<TombstoneVolume>> {
    Some(deletable(&records(machine, spec, metadata)?))
}

/// The volumes of these records that are deleted with their Machine.
pub(crate) fn deletable(records: &[VolumeRecord]) -> Vec<TombstoneVolume> {
    let volume = |record: &VolumeRecord| TombstoneVolume {
        pool: record.pool.clone(),
        volume: base_of(&record.volume).to_owned(),
        size: None,
    };
    let deletable = records.iter().filter(|record| is_to_go(record));
    deletable.map(volume).collect()
}

/// The record of a volume. If its disk has left the spec, or has the policy Retain there, the policy is Retain: the pass
/// that would have recorded it may not have run.
pub(super) fn unless_removed(
    machine: &Machine,
    block: &Normalized,
    spec: &LibvirtHostSpec,
    record: &VolumeRecord,
) -> VolumeRecord {
    let mut record = record.clone();
    let mut disks = block.disks.iter();
    let disk =
        disks.find(|disk| disk.name == record.disk && has_volume(machine, disk, spec, &record));
    if disk.is_none_or(|disk| disk.reclaim_policy == ReclaimPolicy::Retain) {
        record.reclaim_policy = ReclaimPolicy::Retain;
    }
    record
}

/// Whether a recorded volume is that of a disk of its name. It is another disk's if only other storage classes make such
/// a volume: the disk has left the spec then, and came back in another class. If no class of the host makes it, the
/// host was changed, and the name decides.
fn has_volume(
    machine: &Machine,
    disk: &NormalizedDisk,
    spec: &LibvirtHostSpec,
    record: &VolumeRecord,
) -> bool {
    let makes = |offer: &&HostStorage| {
        let base = name_of(machine, disk, offer);
        offer.pool == record.pool && is_attempt_of(&record.volume, &base)
    };
    let mut classes = spec.storage.iter().flatten().filter(makes).peekable();
    classes.peek().is_none() || classes.any(|offer| offer.storage_class == disk.storage_class)
}

/// Whether the spec has a disk of this name.
pub(super) fn has_disk(block: &Normalized, name: &str) -> bool {
    block.disks.iter().any(|disk| disk.name == name)
}

/// The deletion of a volume of the Machine, as it was observed.
pub(super) fn delete(machine: &Machine, pool: &str, volume: &Volume) -> Removal {
    Removal {
        pool: pool.to_owned(),
        name: volume.name.clone(),
        key: Some(volume.key.clone()),
        is_owned: is_volume_of(&volume.name, &domain_of(machine)),
        is_deletable: true,
    }
}

/// Whether a volume is deleted with its Machine.
pub(crate) fn is_to_go(kept: &VolumeRecord) -> bool {
    deletes(Some(kept.reclaim_policy.as_str()))
}

/// The disks that are copied from an image, by name: pool and volume without the attempt.
pub(crate) fn copies(machine: &Machine, spec: &LibvirtHostSpec) -> BTreeMap<String, VolumeKey> {
    let block = machine.desired().into_iter();
    let copied = block.flat_map(|block| &block.disks).filter_map(|disk| {
        let offer = storage(spec, &disk.storage_class)?;
        let is_copied = disk.image.is_some() && is_copy(offer);
        let key = (offer.pool.clone(), name_of(machine, disk, offer));
        is_copied.then(|| (disk.name.clone(), key))
    });
    copied.collect()
}

/// An image that is fetched, and what needs it.
pub(crate) struct NeededImage {
    /// Pool and volume without the attempt.
    pub(crate) key: VolumeKey,
    /// The disk that is made of the image, with its volume without the attempt; `None`: a drive has the image itself.
    pub(crate) disk: Option<(String, VolumeKey)>,
}

/// The fetched images that disks and drives need.
pub(crate) fn fetched_images(machine: &Machine, spec: &LibvirtHostSpec) -> Vec<NeededImage> {
    let (Some(block), Some(pool)) = (machine.desired(), &spec.image_pool) else {
        return vec![];
    };
    let key = |image: &Image| (pool.clone(), image_volume(image, &machine.namespace_uid));
    let disks = block.disks.iter().filter_map(|disk| {
        let image = disk.image.as_ref().filter(|image| image.volume.is_none())?;
        let offer = storage(spec, &disk.storage_class)?;
        let volume = (offer.pool.clone(), name_of(machine, disk, offer));
        Some(NeededImage {
            key: key(image),
            disk: Some((disk.name.clone(), volume)),
        })
    });
    let drives = block.cdroms.iter().filter_map(|cdrom| {
        let image = cdrom
            .image
            .as_ref()
            .filter(|image| image.volume.is_none())?;
        Some(NeededImage {
            key: key(image),
            disk: None,
        })
    });
    disks.chain(drives).collect()
}

/// Pool and name of every volume that has to be looked up.
pub(crate) fn volumes_to_look_up(
    machine: &Machine,
    block: &Normalized,
    spec: &LibvirtHostSpec,
) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for disk in &block.disks {
        if let Some(offer) = storage(spec, &disk.storage_class) {
            let name = name_of(machine, disk, offer);
            if disk.image.is_some() && is_copy(offer) {
                all.push((offer.pool.clone(), marker(&name)));
            }
            all.push((offer.pool.clone(), name));
        }
    }
    all.extend(existing_volumes(machine, spec).map(|(_, key)| key));
    if let Some(pool) = &spec.image_pool {
        let names = images(block).map(|image| image_volume(image, &machine.namespace_uid));
        let names = names.flat_map(|name| [marker(&name), name]);
        all.extend(names.map(|name| (pool.clone(), name)));
    }
    all
}

/// Name of a disk's volume, without an attempt.
pub(super) fn name_of(machine: &Machine, disk: &NormalizedDisk, offer: &HostStorage) -> String {
    volume_name(
        machine.namespace(),
        machine.name(),
        machine.uid(),
        &disk.name,
        format(offer),
    )
}

/// Format of the volumes of a storage class.
pub(super) fn format(offer: &HostStorage) -> VolumeFormat {
    offer.format.unwrap_or(VolumeFormat::Qcow2)
}

/// The volume of a disk, in order of preference: the recorded one, one with the plain name, a complete attempt. `None`: it
/// has none. An attempt is complete if it has its marker, or if the domain or the status has it.
pub(super) fn existing<'a>(
    machine: &Machine,
    disk: &NormalizedDisk,
    offer: &HostStorage,
    view: &'a HostView,
) -> Option<&'a Volume> {
    let base = name_of(machine, disk, offer);
    let in_pool = |name: &str| view.volumes.get(&(offer.pool.clone(), name.to_owned()));
    let guest = view.guest.as_ref();
    let metadata = guest.and_then(|guest| guest.metadata.as_ref());
    let recorded = metadata
        .into_iter()
        .flat_map(|metadata| &metadata.volumes)
        .filter(|kept| kept.disk == disk.name && kept.pool == offer.pool)
        .filter(|kept| is_attempt_of(&kept.volume, &base));
    let mut recorded = recorded.filter_map(|kept| in_pool(&kept.volume));
    if disk.image.is_none() || !is_copy(offer) {
        return recorded.next().or_else(|| in_pool(&base));
    }
    recorded.next().or_else(|| {
        let all = view.volumes.iter();
        let mut attempts = all.filter(|((pool, name), _)| {
            *pool == offer.pool
                && is_attempt_of(name, &base)
                && (in_pool(&marker(name)).is_some()
                    || is_defined(view, name)
                    || is_made(machine, name))
        });
        attempts.next().map(|(_, volume)| volume)
    })
}

/// A volume that the domain's metadata records for a disk, and that its storage class would not make: it is in another
/// pool or has another format. Only its name tells the format, because a guest can write any header into a raw volume.
pub(super) fn of_another_class<'a>(
    disk: &NormalizedDisk,
    offer: &HostStorage,
    base: &str,
    view: &'a HostView,
) -> Option<&'a VolumeRecord> {
    let guest = view.guest.as_ref();
    let metadata = guest.and_then(|guest| guest.metadata.as_ref())?;
    let mut recorded = metadata.volumes.iter();
    recorded.find(|kept| {
        let key = (kept.pool.clone(), kept.volume.clone());
        kept.disk == disk.name
            && (kept.pool != offer.pool || !is_attempt_of(&kept.volume, base))
            && (view.volumes.contains_key(&key) || view.unreadable_pools.contains_key(&kept.pool))
    })
}

/// Whether the domain is defined with this volume: then it was complete once.
pub(crate) fn is_defined(view: &HostView, volume: &str) -> bool {
    let defined = view.guest.as_ref().and_then(|guest| guest.defined.as_ref());
    defined.is_some_and(|domain| uses(domain, volume))
}

/// Whether a domain refers to this volume.
pub(crate) fn uses(domain: &Domain, volume: &str) -> bool {
    domain.disks.iter().any(|disk| is_on(disk, volume))
}

/// Whether a disk of a domain is this volume.
pub(super) fn is_on(disk: &Disk, volume: &str) -> bool {
    disk.volume
        .as_ref()
        .is_some_and(|placed| placed.volume == volume)
}
