//! Volumes that existed before the Machine and that it uses as disks as they are: one guest has each of them at a time.

use common::render::libvirt::{Disk, Domain, is_volume_of};
use uuid::Uuid;

use crate::access::{AccessError, Connection, Result};

/// Which domain other than this one has a volume, running or defined: each could be started at any time.
pub(crate) fn other_user(
    host: &mut dyn Connection,
    own: Uuid,
    path: &str,
) -> Result<Option<String>> {
    let all = host.disks_of_all()?;
    let mut others = all.iter().filter(|domain| domain.uuid != own);
    let Some(user) = others.find(|domain| domain.paths.contains(path)) else {
        return Ok(None);
    };
    let found = host.domain(user.uuid)?;
    Ok(Some(found.map_or_else(
        || user.uuid.to_string(),
        |found| found.state.name,
    )))
}

/// Fails if another domain has one of these disks. `owner`: uid of the Machine, whose own volumes are not looked for.
pub(crate) fn check_free<'d>(
    host: &mut dyn Connection,
    own: Uuid,
    owner: &str,
    disks: impl IntoIterator<Item = &'d Disk>,
) -> Result<()> {
    for disk in disks {
        let Some(volume) = disk.volume.as_ref().filter(|_| is_existing(disk, owner)) else {
            continue;
        };
        let found = host.volume(&volume.pool, &volume.volume)?;
        let Some(found) = found else {
            return Err(AccessError::Absent(format!(
                "volume {}/{} is gone",
                volume.pool, volume.volume
            )));
        };
        if let Some(user) = other_user(host, own, &found.path)? {
            return Err(AccessError::Changed(format!(
                "volume {}/{} is used by domain '{user}'",
                volume.pool, volume.volume
            )));
        }
    }
    Ok(())
}

/// The disks that the domain is defined with.
pub(crate) fn defined_disks(host: &mut dyn Connection, uuid: Uuid) -> Result<Vec<Disk>> {
    let found = host.domain(uuid)?;
    let defined = found.and_then(|found| Domain::parse(&found.inactive).ok());
    Ok(defined.map(|domain| domain.disks).unwrap_or_default())
}

/// Whether a disk is on a volume that the controller did not make and that no other guest may have. Media are only read.
fn is_existing(disk: &Disk, owner: &str) -> bool {
    let volume = disk.volume.as_ref();
    let is_own = volume.is_some_and(|volume| is_volume_of(&volume.volume, owner));
    disk.is_ours() && !disk.cdrom && !disk.shareable && !is_own
}
