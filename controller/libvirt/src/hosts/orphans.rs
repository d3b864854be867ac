//! Removes what Machines left that were deleted while their host, or a pool of it, could not be read.
//!
//! ```text
//! tombstone in the host's status ─ the host answers ─▶ guest off, definition and volumes gone ─▶ no tombstone
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::api::choice::ReclaimPolicy;
use common::api::libvirt_host::LibvirtHostStatus;
use common::render::libvirt::{DomainMetadata, domain_uuid, is_seed, is_volume_of};
use controller_core::client::GuardedClient;
use controller_core::machine::CachedMachine;
use controller_core::objects::Meta as _;
use controller_core::preconditions::Effect;
use kube::runtime::reflector::Store;

use super::guards::of_host;
use super::registry::ConnectedHost;
use super::tombstones::put_status;
use crate::access::{AccessError, Connection};
use crate::guard::Guard;
use crate::images::names::is_marker;
use crate::libvirt_host::LibvirtHost;
use crate::volume_effects::{Doomed, read_all_pools, remove_volume};

/// Limit of one removal: a frozen QEMU took 11.7 s to be ended, and every pool is refreshed for each volume.
const REMOVAL_LIMIT: Duration = Duration::from_mins(5);

/// Removes what is left of each Machine that has a tombstone on this host, as far as the host lets it. A tombstone
/// stays until the host was read and nothing is left to remove.
pub(super) async fn remove(
    api: &GuardedClient,
    machines: &Store<CachedMachine>,
    connected: &Arc<ConnectedHost>,
    host: &LibvirtHost,
) {
    let reachable = connected.snapshot().is_ok() && host.spec.maintenance != Some(true);
    if !reachable || !api.may_write() || host.status.tombstones.is_empty() {
        return;
    }
    let offers = host.spec.storage.iter().flatten();
    let pools = offers.map(|offer| offer.pool.clone());
    let pools: BTreeSet<_> = pools.chain(host.spec.image_pool.clone()).collect();
    let mut left = Vec::new();
    for tombstone in &host.status.tombstones {
        let uid = tombstone.uid.clone();
        if !machines.state_filter(|it| it.uid() == uid).is_empty() {
            // The Machine is there, or the cache lags behind: only what the host says removes a tombstone.
            left.push(tombstone.clone());
            continue;
        }
        let guard = of_host(api, connected);
        let pools = pools.clone();
        let slow = &connected.host.slow;
        let removed = slow.call(REMOVAL_LIMIT, move |host| {
            remove_all(host, &guard, &uid, &pools)
        });
        match removed.await {
            Ok(kept) => tracing::info!(
                host = connected.name,
                machine = tombstone.machine,
                ?kept,
                "removed what was left of the Machine"
            ),
            Err(error) => {
                tracing::warn!(host = connected.name, machine = tombstone.machine, %error, "what is left of a Machine cannot be removed yet");
                left.push(tombstone.clone());
            }
        }
    }
    if left == host.status.tombstones {
        return;
    }
    let status = LibvirtHostStatus {
        tombstones: left,
        ..host.status.clone()
    };
    if let Err(error) = put_status(api, host, &status).await {
        tracing::debug!(
            host = host.name(),
            error = error.message(),
            "the tombstones of a host were not written"
        );
    }
}

/// Ends the guest of a Machine that is gone, and removes its definition and the volumes that go with it. Before the
/// definition is removed every pool has to be readable: its metadata is the only list of those volumes. Returns the
/// names of the volumes that stay.
fn remove_all(
    host: &mut dyn Connection,
    guard: &Guard,
    owner: &str,
    pools: &BTreeSet<String>,
) -> Result<Vec<String>, AccessError> {
    let uuid = domain_uuid(owner);
    let found = host.domain(uuid)?;
    let metadata = found
        .as_ref()
        .and_then(|found| DomainMetadata::parse(found.state.metadata.as_deref()?))
        .filter(|metadata| metadata.uid == owner);
    let all = read_all_pools(host)?;
    // A volume may be in a pool that has left the spec since.
    let disks = metadata.iter().flat_map(|metadata| &metadata.volumes);
    let seeds = metadata
        .iter()
        .filter_map(|metadata| metadata.seed.as_ref());
    let recorded = disks
        .map(|kept| &kept.pool)
        .chain(seeds.map(|seed| &seed.pool));
    let pools: BTreeSet<&String> = pools.iter().chain(recorded).collect();
    for pool in &pools {
        // A pool of the spec that is not defined is in no list.
        host.volumes(pool)?;
    }
    if let (Some(found), Some(_)) = (found, &metadata) {
        guard.check()?;
        if found.state.state.active() {
            host.destroy(uuid)?;
            guard.check()?;
        }
        host.undefine(uuid)?;
    }
    let doomed: BTreeSet<_> = metadata
        .iter()
        .flat_map(|metadata| &metadata.volumes)
        .filter(|kept| kept.reclaim_policy == ReclaimPolicy::Delete)
        .map(|kept| (kept.pool.as_str(), kept.volume.as_str()))
        .collect();
    let ours = all.iter().filter(|(pool, volume)| {
        is_volume_of(&volume.name, owner) && !is_marker(&volume.name) && pools.contains(&pool)
    });
    let mut stay = Vec::new();
    for (pool, volume) in ours {
        let goes = doomed.contains(&(pool.as_str(), volume.name.as_str()));
        if !goes && !is_seed(&volume.name) {
            stay.push(format!("{pool}/{}", volume.name));
            continue;
        }
        let volume = Doomed {
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
mod tests {
    use super::*;
    use crate::access::State;
    use crate::environment::{self, Environment, POOL, block};

    #[test]
    fn removing_what_a_machine_left_touches_no_volume_of_another_one() {
        let mut env = Environment::new(block());
        env.machine_mut().cloud_init =
            common::render::CloudInitPlan::from(&common::api::machine::CloudInit {
                user_data: Some("#cloud-config\n".into()),
                ..Default::default()
            });
        env.settle();
        let mut host = env.connection().unwrap();
        let foreign =
            "<volume><name>default-web-00000000.root.qcow2</name><capacity>1</capacity></volume>";
        host.create_volume(POOL, foreign).unwrap();
        let pools = BTreeSet::from([POOL.to_owned()]);
        let guard = environment::guard();
        // A tombstone of another Machine removes nothing of this one.
        remove_all(&mut *host, &guard, "uid-of-another", &pools).unwrap();
        let uuid = domain_uuid("uid-of-web");
        assert_eq!(env.host.state().domains[&uuid].state, State::Running);
        remove_all(&mut *host, &guard, "uid-of-web", &pools).unwrap();
        assert!(env.host.state().domains.is_empty());
        let left: Vec<_> = env.host.state().pools[POOL]
            .volumes
            .keys()
            .cloned()
            .collect();
        assert_eq!(left, ["default-web-00000000.root.qcow2"]);
        remove_all(&mut *host, &guard, "uid-of-web", &pools).unwrap();
    }

    #[test]
    fn while_a_pool_is_undefined_the_definition_and_every_volume_stay() {
        let mut env = Environment::new(block());
        env.settle();
        let guard = environment::guard();
        let pools = BTreeSet::from([POOL.to_owned()]);
        let uuid = domain_uuid("uid-of-web");
        let mut host = env.connection().unwrap();
        let pool = env.host.state().pools.remove(POOL).unwrap();
        remove_all(&mut *host, &guard, "uid-of-web", &pools).unwrap_err();
        assert!(env.host.state().domains.contains_key(&uuid));
        env.host.state().pools.insert(POOL.into(), pool);
        let stay = remove_all(&mut *host, &guard, "uid-of-web", &pools).unwrap();
        assert_eq!(stay, [""; 0]);
        assert!(env.host.state().domains.is_empty());
        assert!(env.host.state().pools[POOL].volumes.is_empty());
    }

    #[test]
    fn volumes_of_a_pool_that_has_left_the_spec_are_removed_too() {
        let mut env = Environment::new(block());
        env.settle();
        let mut host = env.connection().unwrap();
        let stay = remove_all(
            &mut *host,
            &environment::guard(),
            "uid-of-web",
            &BTreeSet::new(),
        );
        assert_eq!(stay.unwrap(), [""; 0]);
        assert!(env.host.state().pools[POOL].volumes.is_empty());
    }
}
