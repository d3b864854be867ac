//! Deletion of a volume, under its preconditions.

use std::collections::BTreeSet;

use crate::access::{AccessError, Connection};

/// Deletes a volume once it is certain that no domain and no other volume refers to it: libvirt itself deletes
/// the disk of a running guest, and an image under its overlays.
pub(crate) fn remove_volume(
    host: &mut dyn Connection,
    pool: &str,
    name: &str,
) -> Result<(), AccessError> {
    let Some(volume) = host.volume(pool, name)? else {
        return Ok(());
    };
    let used: BTreeSet<_> = host
        .disks_of_all()?
        .into_iter()
        .flat_map(|(_, paths)| paths)
        .collect();
    let beneath = host
        .volumes(pool)?
        .into_iter()
        .filter_map(|other| other.backing);
    if used.contains(&volume.path) || beneath.into_iter().any(|path| path == volume.path) {
        return Err(AccessError::Refused(format!(
            "volume {pool}/{name} is not deleted, because a domain or another volume refers to it: remove that first"
        )));
    }
    host.delete_volume(pool, name)
}
