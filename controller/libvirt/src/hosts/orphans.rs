//! Removes what is left of Machines that were deleted while their host, or a pool of it, could not be read.
//!
//! ```text
//! tombstone in the host's status ─ the host answers ─▶ guest off, definition and volumes gone ─▶ no tombstone
//! ```
//! The tombstone lists the volumes to delete, so that a removal which is interrupted after the definition is gone can
//! be continued. Before that the list is compared with the metadata of the domain, which may keep more: it was made
//! while the host could not be read, maybe from a Machine that was restored from a backup.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::api::left_volumes::{KeptVolume, Tombstone, TombstoneVolume};
use common::api::libvirt_host::LibvirtHostStatus;
use common::quantity::Bytes;
use common::render::libvirt::{
    Domain, DomainMetadata, VolumeRecord, domain_uuid, is_console_log, is_seed, is_volume_of,
};
use controller_core::objects::Meta as _;
use controller_core::preconditions::Effect;
use tokio::task::JoinHandle;

use super::connected::ConnectedHost;
use super::guards::{may_begin, of_remains};
use super::poller::PollerContext;
use super::tombstones::{add_kept, put_status};
use super::unmounted::check_mounted;
use crate::access::{AccessError, Connection, DomainDetail, FirmwareState};
use crate::dhcp::undefine;
use crate::domain_effects::check_domain;
use crate::existing_disks::has_existing;
use crate::firmware_state::firmware_state;
use crate::guard::Guard;
use crate::images::names::{base_of, disk_of, is_attempt_of, is_marker};
use crate::libvirt_host::LibvirtHost;
use crate::names::domain_of_record;
use crate::plan::disks::{deletable, is_to_go};
use crate::volume_effects::{Removal, read_all_pools, remove_volume};

/// Limit of one removal: a frozen QEMU took 11.7 s to be ended, and every pool is refreshed for each volume.
const REMOVAL_LIMIT: Duration = Duration::from_mins(5);

/// Begins to remove what is left of each Machine that has a tombstone on this host, as far as the host permits. `None`:
/// there is nothing to remove, or it may not be removed now. The Machines have to be listed before.
pub(super) fn begin(
    context: &PollerContext,
    connected: &Arc<ConnectedHost>,
    host: &LibvirtHost,
) -> Option<JoinHandle<()>> {
    if host.status.tombstones.is_empty() || !may_begin(&context.api, connected, host) {
        return None;
    }
    let (context, connected, host) = (context.clone(), connected.clone(), host.clone());
    let removal = async move {
        let removed = remove(&context, &connected, &host).await;
        if removed.is_empty() {
            return;
        }
        // Others have written the status since the removal began.
        let Some(host) = context.objects.get("", &connected.name) else {
            return;
        };
        let status = without_removed(&host, removed);
        if status == host.status {
            return;
        }
        if let Err(error) = put_status(&context.api, &host, &status).await {
            tracing::warn!(
                host = host.name(),
                error = error.message(),
                "the tombstones of a host were not written"
            );
        }
    };
    Some(tokio::spawn(removal))
}

/// What became of a tombstone.
enum Removed {
    /// Nothing is left to remove; these volumes stay.
    All(Vec<KeptVolume>),
    /// Nothing was removed yet: the host agrees to these volumes only.
    Agreed(Vec<TombstoneVolume>),
}

/// Removes what is left of each Machine that has a tombstone. Returns what became of tombstones that do not stay as they
/// are, by uid of the Machine: one stays until the host was read and nothing is left to remove.
async fn remove(
    context: &PollerContext,
    connected: &Arc<ConnectedHost>,
    host: &LibvirtHost,
) -> BTreeMap<String, Removed> {
    let machines = &context.caches.machine_index;
    let mut removed = BTreeMap::new();
    for tombstone in &host.status.tombstones {
        let uid = tombstone.uid.clone();
        if machines.contains(&uid) {
            // The Machine exists, or the cache lags behind: only an answer of the host removes a tombstone.
            continue;
        }
        let Some(volumes) = agreed(connected, tombstone).await else {
            continue;
        };
        if tombstone.volumes.as_ref() != Some(&volumes) {
            removed.insert(uid, Removed::Agreed(volumes));
            continue;
        }
        let (api, objects, hosts) = (&context.api, &context.objects, &context.hosts);
        let guard = of_remains(api, objects, hosts, connected, &uid);
        let machine = tombstone.machine.clone();
        let worker = &connected.background;
        let answer = worker.call(REMOVAL_LIMIT, move |host| {
            remove_all(host, &guard, (&uid, &machine), &volumes)
        });
        match answer.await {
            Ok(stay) => {
                tracing::info!(
                    host = connected.name,
                    machine = tombstone.machine,
                    ?stay,
                    "removed what was left of the Machine"
                );
                let kept = stay.iter().filter_map(|stay| kept(tombstone, stay));
                removed.insert(tombstone.uid.clone(), Removed::All(kept.collect()));
            }
            Err(error) => {
                tracing::warn!(host = connected.name, machine = tombstone.machine, %error, "what is left of a Machine cannot be removed yet");
            }
        }
    }
    removed
}

/// The status of a host after these removals. A tombstone stays while the list has no room for all that is kept of its
/// Machine: without a record nobody can release a volume, and no quota counts it.
fn without_removed(
    host: &LibvirtHost,
    mut removed: BTreeMap<String, Removed>,
) -> LibvirtHostStatus {
    let old = &host.status;
    let mut status = LibvirtHostStatus {
        tombstones: vec![],
        ..old.clone()
    };
    for tombstone in &old.tombstones {
        match removed.remove(&tombstone.uid) {
            None => status.tombstones.push(tombstone.clone()),
            Some(Removed::Agreed(volumes)) => status.tombstones.push(Tombstone {
                volumes: Some(volumes),
                ..tombstone.clone()
            }),
            // A deletion that was forced later may have recorded some of them.
            Some(Removed::All(kept)) => match add_all(&status.kept_volumes, &kept) {
                Ok(listed) => status.kept_volumes = listed,
                Err(why) => {
                    tracing::warn!(
                        host = host.name(),
                        machine = tombstone.machine,
                        why,
                        "the tombstone of a Machine stays until the host can list what is kept of it"
                    );
                    // What was to be deleted is gone, and counts no more.
                    status.tombstones.push(Tombstone {
                        volumes: Some(vec![]),
                        ..tombstone.clone()
                    });
                }
            },
        }
    }
    status
}

/// The kept volumes of a host with all of these; otherwise why it does not list them.
fn add_all(listed: &[KeptVolume], kept: &[KeptVolume]) -> Result<Vec<KeptVolume>, String> {
    let added = add_kept(listed, kept)?;
    match added.left_out.len() {
        0 => Ok(added.listed),
        count => Err(format!(
            "lists {} kept volumes and has no room for {count} more: delete some of them",
            added.listed.len()
        )),
    }
}

/// The record of a volume that stays.
fn kept(tombstone: &Tombstone, (volume, size): &(TombstoneVolume, Bytes)) -> Option<KeptVolume> {
    Some(KeptVolume {
        machine: tombstone.machine.clone(),
        uid: tombstone.uid.clone(),
        disk: disk_of(&volume.volume)?.to_owned(),
        pool: volume.pool.clone(),
        volume: volume.volume.clone(),
        size: Some(*size),
    })
}

/// The volumes to delete that the host agrees to; `None`: it could not be asked, and nothing is removed.
async fn agreed(connected: &ConnectedHost, tombstone: &Tombstone) -> Option<Vec<TombstoneVolume>> {
    let (owner, listed) = (tombstone.uid.clone(), tombstone.volumes.clone());
    let worker = &connected.background;
    let read = worker.call(REMOVAL_LIMIT, move |host| {
        agreed_volumes(host, &owner, listed)
    });
    match read.await {
        Ok(volumes) => Some(volumes),
        Err(error) => {
            tracing::warn!(host = connected.name, machine = tombstone.machine, %error, "the volumes of a Machine that is gone cannot be read yet");
            None
        }
    }
}

/// The volumes to delete: those that are listed and that the metadata of the Machine's domain does not keep. Without a
/// list those that the metadata does not keep, and without both none.
fn agreed_volumes(
    host: &mut dyn Connection,
    owner: &str,
    listed: Option<Vec<TombstoneVolume>>,
) -> Result<Vec<TombstoneVolume>, AccessError> {
    let found = host.domain(domain_uuid(owner))?;
    let Some(metadata) = found.and_then(|found| metadata_of(&found, owner)) else {
        return Ok(listed.unwrap_or_default());
    };
    let Some(mut listed) = listed else {
        return Ok(deletable(&metadata.volumes));
    };
    let is_kept = |volume: &TombstoneVolume| {
        let mut records = metadata.volumes.iter();
        records.any(|record| {
            let is_same = record.pool == volume.pool && base_of(&record.volume) == volume.volume;
            is_same && !is_to_go(record)
        })
    };
    listed.retain(|volume| !is_kept(volume));
    Ok(listed)
}

/// Our metadata of a domain, if the domain was made for this Machine.
fn metadata_of(found: &DomainDetail, owner: &str) -> Option<DomainMetadata> {
    let metadata = DomainMetadata::parse(found.state.metadata.as_deref()?)?;
    (metadata.uid == owner).then_some(metadata)
}

/// Ends the guest of a Machine that is gone, and removes its definition, these volumes and its seeds. Every pool has to
/// be readable before. `owner`: uid of the Machine; `machine`: its namespace and name. Returns the volumes that stay, with their capacity.
fn remove_all(
    host: &mut dyn Connection,
    guard: &Guard,
    (owner, machine): (&str, &str),
    listed_volumes: &[TombstoneVolume],
) -> Result<Vec<(TombstoneVolume, Bytes)>, AccessError> {
    let uuid = domain_uuid(owner);
    let found = host.domain(uuid)?;
    let metadata = found.as_ref().and_then(|found| metadata_of(found, owner));
    let all = read_all_pools(host, guard)?;
    if let Some(metadata) = &metadata {
        check_mounted(metadata, &all)?;
    }
    // A volume may be in a pool that has left the spec since.
    let disks = metadata.iter().flat_map(|metadata| &metadata.volumes);
    let seeds = metadata
        .iter()
        .filter_map(|metadata| metadata.seed.as_ref());
    let recorded: BTreeSet<&String> = disks
        .map(|kept| &kept.pool)
        .chain(seeds.map(|seed| &seed.pool))
        .collect();
    for pool in &recorded {
        host.volumes(pool)?;
    }
    let offered = guard.pools()?;
    if let (Some(found), Some(metadata)) = (found, &metadata) {
        // Reading every pool may have taken minutes.
        if found.state.state.active() {
            check_domain(host, guard, Effect::Stop, owner, false)?;
            host.destroy(uuid)?;
        }
        check_domain(host, guard, Effect::Undefine, owner, false)?;
        // What is not listed is kept.
        let is_listed = |disk: &VolumeRecord| {
            let mut listed = listed_volumes.iter();
            listed.any(|it| it.pool == disk.pool && it.volume == disk.volume)
        };
        // A disk that no record names existed before the Machine, and stays.
        let domain = Domain::parse(&found.inactive).ok();
        let keeps = domain.is_none_or(|domain| has_existing(&domain, metadata));
        let state = if metadata.volumes.iter().all(is_listed) && !keeps {
            firmware_state(&metadata.volumes)
        } else {
            FirmwareState::Keep
        };
        undefine(host, guard, uuid, state)?;
    }
    let is_deletable = |pool: &str, name: &str| {
        let mut records = listed_volumes.iter().filter(|record| record.pool == pool);
        records.any(|record| is_attempt_of(name, &record.volume))
    };
    let domain = domain_of_record(machine, owner);
    let ours = all
        .iter()
        .filter(|(_, volume)| is_volume_of(&volume.name, &domain) && !is_marker(&volume.name));
    let mut stay = Vec::new();
    for (pool, volume) in ours {
        let deletes = is_deletable(pool, &volume.name);
        let is_log = is_console_log(&volume.name);
        let is_seed = is_seed(&volume.name) && (offered.contains(pool) || recorded.contains(pool));
        if !deletes && !is_seed && !is_log {
            let record = TombstoneVolume {
                pool: pool.clone(),
                volume: volume.name.clone(),
                size: None,
            };
            stay.push((record, Bytes::new(u128::from(volume.capacity))));
            continue;
        }
        let volume = Removal {
            pool: pool.clone(),
            name: volume.name.clone(),
            key: Some(volume.key.clone()),
            is_owned: true,
            is_deletable: true,
        };
        remove_volume(host, guard, Effect::DeleteVolume, &volume)?;
    }
    Ok(stay)
}

#[cfg(test)]
mod tests;
