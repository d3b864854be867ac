//! Pools whose file system may not be mounted, while something is removed that a deleted Machine left.
//!
//! Such a pool is active and empty. What it does not show would count as removed, and the tombstone would go.

use common::render::libvirt::DomainMetadata;

use crate::access::{AccessError, Volume};
use crate::parts::shell_word;

/// Fails if a pool shows no volume at all that has one of these records. A removal deletes the domain first, so the volumes
/// were not deleted by an earlier one. `all`: every volume of the host, with its pool.
pub(super) fn check_mounted(
    metadata: &DomainMetadata,
    all: &[(String, Volume)],
) -> Result<(), AccessError> {
    let is_empty = |pool: &str| all.iter().all(|(of, _)| of != pool);
    let mut records = metadata.volumes.iter();
    match records.find(|record| is_empty(&record.pool)) {
        None => Ok(()),
        Some(record) => Err(AccessError::Refused(format!(
            "pool '{pool}' shows no volume, and had '{volume}': mount its file system on the host and run virsh pool-refresh {word}; if the volume is gone for good, undefine the domain that names it (virsh undefine)",
            pool = record.pool,
            word = shell_word(&record.pool),
            volume = record.volume,
        ))),
    }
}
