//! Deleting and filling volumes, under the preconditions of these effects.
//!
//! libvirt deletes the disk of a running guest, and a base image under its overlays, without a check. It sees an
//! overlay that was created with qemu-img only after a refresh of that pool. So every pool is refreshed right
//! before a deletion, and one that cannot be read keeps the volume: it may hold an overlay of it. libvirt lists no pool
//! that was undefined, so the pools that the spec of the host and the domains name are looked for.

use common::api::left_volumes::KeptVolume;
use common::render::libvirt::is_volume_of;
use controller_core::preconditions::{Effect, Precondition};
use uuid::Uuid;

use crate::access::{AccessError, Connection, Pool, Result, Volume};
use crate::guard::Guard;
use crate::images::names::marker;
use crate::names::domain_of_record;
use crate::parts::{pool_fault, unreadable_pool};

/// A volume that is to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Removal {
    /// Pool of the volume.
    pub(crate) pool: String,
    /// Name of the volume.
    pub(crate) name: String,
    /// Key that libvirt reported when it was observed; `None`: it was not observed before the job.
    pub(crate) key: Option<String>,
    /// Whether it was made for the Machine of the job: its name begins with that of the Machine's domain, or it is an image.
    pub(crate) is_owned: bool,
    /// Whether it is deleted with its Machine: by its reclaim policy, or because it holds no data of a guest.
    pub(crate) is_deletable: bool,
}

impl Removal {
    /// A kept volume of a Machine that was deleted, which somebody with the right to do so releases.
    pub(crate) fn of_kept(kept: &KeptVolume) -> Self {
        Self {
            pool: kept.pool.clone(),
            name: kept.volume.clone(),
            key: None,
            is_owned: is_volume_of(&kept.volume, &domain_of_record(&kept.machine, &kept.uid)),
            is_deletable: true,
        }
    }

    /// A volume that holds nothing a guest needs: an attempt that was interrupted, an earlier seed.
    fn unneeded(pool: &str, volume: &Volume) -> Self {
        Self {
            pool: pool.to_owned(),
            name: volume.name.clone(),
            key: Some(volume.key.clone()),
            is_owned: true,
            is_deletable: true,
        }
    }
}

/// Removes volumes of a pool that hold nothing a guest needs. One that a precondition protects stays; returns the
/// reasons.
pub(crate) fn remove_unneeded<'v>(
    host: &mut dyn Connection,
    guard: &Guard,
    effect: Effect,
    pool: &str,
    volumes: impl IntoIterator<Item = &'v Volume>,
) -> Result<Vec<String>> {
    let mut kept = Vec::new();
    for volume in volumes {
        match remove_volume(host, guard, effect, &Removal::unneeded(pool, volume)) {
            Ok(()) => {}
            Err(AccessError::Refused(why)) => kept.push(why),
            Err(error) => return Err(error),
        }
    }
    Ok(kept)
}

/// Checks that a volume may be created under this name and filled: the name was never used.
pub(crate) fn check_new(
    host: &mut dyn Connection,
    guard: &Guard,
    pool: &str,
    name: &str,
) -> Result<()> {
    Effect::FillVolume.check(|precondition| match precondition {
        Precondition::LeaseHeld => guard.check(),
        Precondition::Incomplete => absent(host, pool, &marker(name)),
        // A volume that does not exist has no users.
        Precondition::Unused => absent(host, pool, name),
        // Filling a volume has none of them.
        Precondition::Owned
        | Precondition::Unchanged
        | Precondition::Deletable
        | Precondition::NeverRan
        | Precondition::NotABackingFile
        | Precondition::NotBoundElsewhere
        | Precondition::OnlyDefinition
        | Precondition::ExistingDisksFree
        | Precondition::HardwareFree
        | Precondition::StateKept
        | Precondition::Movable => Err(AccessError::Refused(format!(
            "{precondition:?} is no precondition of filling a volume"
        ))),
    })
}

fn absent(host: &mut dyn Connection, pool: &str, name: &str) -> Result<()> {
    match host.volume(pool, name)? {
        None => Ok(()),
        Some(_) => Err(AccessError::Changed(format!(
            "volume {pool}/{name} exists already; it is not written over"
        ))),
    }
}

/// Deletes a volume and then its completion marker, if every precondition of the effect holds. A volume that is gone
/// already is fine.
pub(crate) fn remove_volume(
    host: &mut dyn Connection,
    guard: &Guard,
    effect: Effect,
    removal: &Removal,
) -> Result<()> {
    guard.check()?;
    let (pool, name) = (removal.pool.as_str(), removal.name.as_str());
    if let Some(volume) = host.volume(pool, name)? {
        effect.check(|precondition| holds(host, guard, removal, &volume, precondition))?;
        // Reading every pool may have taken minutes: what can change meanwhile is checked again.
        guard.check()?;
        let now = host.volume(pool, name)?;
        if now.is_none_or(|now| now.key != volume.key) {
            return Err(AccessError::Changed(format!(
                "volume {pool}/{name} was replaced while the pools were read"
            )));
        }
        holds(host, guard, removal, &volume, Precondition::Unused)?;
        host.delete_volume(pool, name)?;
    }
    guard.check()?;
    if host.volume(pool, &marker(name))?.is_some() {
        host.delete_volume(pool, &marker(name))?;
    }
    Ok(())
}

fn holds(
    host: &mut dyn Connection,
    guard: &Guard,
    removal: &Removal,
    volume: &Volume,
    precondition: Precondition,
) -> Result<()> {
    let (pool, name) = (&removal.pool, &removal.name);
    let keeps = |why: &str| {
        Err(AccessError::Refused(format!(
            "volume {pool}/{name} is not deleted, because {why}"
        )))
    };
    match precondition {
        Precondition::LeaseHeld => guard.check(),
        Precondition::Owned if !removal.is_owned => keeps("it was not made for this Machine"),
        Precondition::Deletable if !removal.is_deletable => keeps("its reclaim policy is Retain"),
        // No effect on a volume has the last five: only an instance of KubeVirt has run, no effect is about a volume that
        // existed before its Machine or starts a guest, and no volume holds the state of a firmware.
        Precondition::Owned
        | Precondition::Deletable
        | Precondition::NeverRan
        | Precondition::ExistingDisksFree
        | Precondition::HardwareFree
        | Precondition::StateKept
        | Precondition::Movable => Ok(()),
        Precondition::Unchanged => match &removal.key {
            Some(key) if *key != volume.key => Err(AccessError::Changed(format!(
                "volume {pool}/{name} is another one than was observed"
            ))),
            _ => Ok(()),
        },
        Precondition::Unused => match user_of(host, &volume.path)? {
            None => Ok(()),
            Some(uuid) => keeps(&format!(
                "a domain refers to it: remove the disk from domain {uuid}, or undefine that"
            )),
        },
        Precondition::NotABackingFile => {
            let mut all = read_all_pools(host, guard)
                .map_err(|error| match error {
                    AccessError::Refused(why) => AccessError::Refused(format!(
                        "volume {pool}/{name} is not deleted, because an overlay of it may be in another pool: {why}"
                    )),
                    other => other,
                })?
                .into_iter();
            match all.find(|(_, other)| other.backing.as_ref() == Some(&volume.path)) {
                None => Ok(()),
                Some((of, other)) => keeps(&format!(
                    "volume {of}/{} is an overlay of it: remove that first",
                    other.name
                )),
            }
        }
        Precondition::Incomplete => match host.volume(pool, &marker(name))? {
            None => Ok(()),
            Some(_) => keeps("it is complete"),
        },
        Precondition::NotBoundElsewhere => guard.check_binding(),
        Precondition::OnlyDefinition => guard.check_only_definition(),
    }
}

/// A domain that refers to this path, in its definition or as it runs.
pub(crate) fn user_of(host: &mut dyn Connection, path: &str) -> Result<Option<Uuid>> {
    let domains = host.disks_of_all()?.into_iter();
    let mut users = domains.filter(|domain| domain.paths.contains(path));
    Ok(users.next().map(|domain| domain.uuid))
}

/// Every volume of every pool of the host, with its pool, read after a refresh. Refused if a pool cannot be read: one
/// that libvirt has, that the spec of the host names, or that a domain has volumes in. A refresh may take minutes, and
/// libvirt knows what is created through it without one: all pools are listed after the last refresh, so that the list
/// is as new as it can be.
pub(crate) fn read_all_pools(
    host: &mut dyn Connection,
    guard: &Guard,
) -> Result<Vec<(String, Volume)>> {
    let mut needed = guard.pools()?;
    for domain in host.disks_of_all()? {
        needed.extend(domain.missing_pools);
    }
    let pools = host.pools()?;
    needed.extend(pools.iter().map(|pool| pool.name.clone()));
    // Before the first refresh: a pool that cannot be read makes all others futile.
    if let Some(why) = needed.iter().find_map(|name| pool_fault(&pools, name)) {
        return Err(AccessError::Refused(why));
    }
    let refused = |name: &str, error: AccessError| match error {
        AccessError::Busy(_) => AccessError::Busy(format!(
            "libvirt copies an image in pool '{name}', and reads the pool only once that has ended"
        )),
        error if error.is_of_host() => error,
        error => AccessError::Refused(unreadable_pool(&pools, name, &error)),
    };
    for Pool { name, .. } in &pools {
        host.refresh(name).map_err(|error| refused(name, error))?;
    }
    let mut all = Vec::new();
    for Pool { name, .. } in &pools {
        let volumes = host.volumes(name).map_err(|error| refused(name, error))?;
        all.extend(volumes.into_iter().map(|volume| (name.clone(), volume)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
