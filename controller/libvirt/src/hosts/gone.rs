//! Records of kept volumes whose volume was deleted on the host, for example with `virsh vol-delete`. They would count in
//! the quota of their namespace for ever.

use std::collections::BTreeSet;

use common::api::left_volumes::KeptVolume;

use crate::access::{AccessError, Connection, VolumeKey};

/// The recorded volumes that are no longer in their pool. A pool that cannot be read, or that has no volume at all, may
/// have all of them: the file system below it may not be mounted.
pub(super) fn gone_volumes(
    host: &mut dyn Connection,
    recorded: &[KeptVolume],
) -> Result<BTreeSet<VolumeKey>, AccessError> {
    let mut gone = BTreeSet::new();
    let pools: BTreeSet<&str> = recorded.iter().map(|kept| kept.pool.as_str()).collect();
    for pool in pools {
        let of_pool = recorded.iter().filter(|kept| kept.pool == pool);
        let names: BTreeSet<&str> = of_pool.map(|kept| kept.volume.as_str()).collect();
        match missing(host, pool, &names) {
            Ok(missing) => gone.extend(missing.into_iter().map(|name| (pool.to_owned(), name))),
            Err(error) if error.is_of_host() => return Err(error),
            Err(error) => {
                tracing::debug!(pool, %error, "the kept volumes of a pool cannot be looked for");
            }
        }
    }
    Ok(gone)
}

fn missing(
    host: &mut dyn Connection,
    pool: &str,
    names: &BTreeSet<&str>,
) -> Result<Vec<String>, AccessError> {
    let absent = |host: &mut dyn Connection| -> Result<Vec<String>, AccessError> {
        let volumes = host.volumes(pool)?;
        let found: BTreeSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        if found.is_empty() {
            return Ok(vec![]);
        }
        Ok(names
            .difference(&found)
            .map(|&name| name.to_owned())
            .collect())
    };
    if absent(host)?.is_empty() {
        return Ok(vec![]);
    }
    // libvirt lists what it read last, and a file may have been put back since.
    host.refresh(pool)?;
    absent(host)
}
