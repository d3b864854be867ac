//! Records of kept volumes whose volume was deleted on the host, for example with `virsh vol-delete`. They would count in
//! the quota of their namespace for ever.

use std::collections::BTreeSet;

use common::api::left_volumes::KeptVolume;

use crate::access::{AccessError, Connection, VolumeKey};
use crate::snapshot::Companions;

/// Returns the recorded volumes that are gone. Assumes that all volumes of a pool still exist if the pool cannot be read,
/// or shows no other known volume: its file system may be unmounted, or the host may be another one. Known are the recorded
/// volumes, and those that were in the pool beside them at an earlier call, which `seen` keeps.
pub(super) fn gone_volumes(
    host: &mut dyn Connection,
    recorded: &[KeptVolume],
    seen: &mut Companions,
) -> Result<BTreeSet<VolumeKey>, AccessError> {
    let mut gone = BTreeSet::new();
    let pools: BTreeSet<&str> = recorded.iter().map(|kept| kept.pool.as_str()).collect();
    seen.retain(|pool, _| pools.contains(pool.as_str()));
    for pool in pools {
        let of_pool = recorded.iter().filter(|kept| kept.pool == pool);
        let names: BTreeSet<&str> = of_pool.map(|kept| kept.volume.as_str()).collect();
        match missing(host, pool, &names, seen) {
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
    seen: &mut Companions,
) -> Result<Vec<String>, AccessError> {
    let mut absent = |host: &mut dyn Connection| -> Result<Vec<String>, AccessError> {
        let volumes = host.volumes(pool)?;
        let found: BTreeSet<String> = volumes.into_iter().map(|volume| volume.name).collect();
        let is_absent = |name: &&&str| !found.contains(**name);
        let absent: Vec<String> = names
            .iter()
            .filter(is_absent)
            .map(|&name| name.to_owned())
            .collect();
        let shows_one = absent.len() < names.len();
        let is_known = shows_one || seen.get(pool).is_some_and(|seen| !seen.is_disjoint(&found));
        if shows_one {
            seen.insert(pool.to_owned(), found);
        }
        Ok(if is_known { absent } else { vec![] })
    };
    if absent(host)?.is_empty() {
        return Ok(vec![]);
    }
    // libvirt lists what it read last, and a file may have been put back since.
    host.refresh(pool)?;
    absent(host)
}
