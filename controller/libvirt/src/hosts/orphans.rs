//! Removes what is left of Machines that were deleted while their host, or a pool of it, could not be read.
//!
//! ```text
//! tombstone in the host's status ─ the host answers ─▶ guest off, definition and volumes gone ─▶ no tombstone
//! ```
//! The tombstone lists the volumes to delete, so that a removal which is interrupted after the definition is gone can
//! be continued. A tombstone without the list gets it first, from the metadata of the domain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::api::left_volumes::{KeptVolume, Tombstone, TombstoneVolume};
use common::api::libvirt_host::LibvirtHostStatus;
use common::bounds::KEPT_VOLUMES_MAX;
use common::render::libvirt::{DomainMetadata, domain_uuid, is_seed, is_volume_of};
use controller_core::client::GuardedClient;
use controller_core::machine::CachedMachine;
use controller_core::objects::Meta as _;
use controller_core::preconditions::Effect;
use kube::runtime::reflector::Store;

use super::guards::of_host;
use super::registry::ConnectedHost;
use super::tombstones::{is_listed, put_status};
use crate::access::{AccessError, Connection, DomainDetail};
use crate::guard::Guard;
use crate::images::names::{is_attempt_of, is_marker};
use crate::libvirt_host::LibvirtHost;
use crate::plan::disks::deletable;
use crate::volume_effects::{Removal, read_all_pools, remove_volume};

/// Limit of one removal: a frozen QEMU took 11.7 s to be ended, and every pool is refreshed for each volume.
const REMOVAL_LIMIT: Duration = Duration::from_mins(5);

/// Removes what is left of each Machine that has a tombstone on this host, as far as the host permits. A tombstone
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
    let (mut left, mut kept_volumes) = (Vec::new(), host.status.kept_volumes.clone());
    for tombstone in &host.status.tombstones {
        let uid = tombstone.uid.clone();
        if !machines.state_filter(|it| it.uid() == uid).is_empty() {
            // The Machine exists, or the cache lags behind: only an answer of the host removes a tombstone.
            left.push(tombstone.clone());
            continue;
        }
        let Some(volumes) = tombstone.volumes.clone() else {
            left.push(with_volumes(connected, tombstone).await);
            continue;
        };
        let guard = of_host(api, connected);
        let pools = pools.clone();
        let slow = &connected.host.slow;
        let removed = slow.call(REMOVAL_LIMIT, move |host| {
            remove_all(host, &guard, &uid, &pools, &volumes)
        });
        match removed.await {
            Ok(stay) => {
                tracing::info!(
                    host = connected.name,
                    machine = tombstone.machine,
                    ?stay,
                    "removed what was left of the Machine"
                );
                for kept in stay.iter().filter_map(|volume| kept(tombstone, volume)) {
                    // Its deletion may have recorded it before it was forced.
                    if !is_listed(&kept_volumes, &kept) {
                        kept_volumes.push(kept);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(host = connected.name, machine = tombstone.machine, %error, "what is left of a Machine cannot be removed yet");
                left.push(tombstone.clone());
            }
        }
    }
    if left == host.status.tombstones {
        return;
    }
    kept_volumes.truncate(KEPT_VOLUMES_MAX);
    let status = LibvirtHostStatus {
        tombstones: left,
        kept_volumes,
        ..host.status.clone()
    };
    if let Err(error) = put_status(api, host, &status).await {
        tracing::warn!(
            host = host.name(),
            error = error.message(),
            "the tombstones of a host were not written"
        );
    }
}

/// The record of a volume that stays. The name of a volume has the disk's name between the first two dots.
fn kept(tombstone: &Tombstone, volume: &TombstoneVolume) -> Option<KeptVolume> {
    Some(KeptVolume {
        machine: tombstone.machine.clone(),
        uid: tombstone.uid.clone(),
        disk: volume.volume.split('.').nth(1)?.to_owned(),
        pool: volume.pool.clone(),
        volume: volume.volume.clone(),
    })
}

/// The tombstone with the list of volumes, if the host could be asked.
async fn with_volumes(connected: &ConnectedHost, tombstone: &Tombstone) -> Tombstone {
    let owner = tombstone.uid.clone();
    let slow = &connected.host.slow;
    let read = slow.call(REMOVAL_LIMIT, move |host| volumes_of_domain(host, &owner));
    let volumes = match read.await {
        Ok(volumes) => Some(volumes),
        Err(error) => {
            tracing::warn!(host = connected.name, machine = tombstone.machine, %error, "the volumes of a Machine that is gone cannot be read yet");
            None
        }
    };
    Tombstone {
        volumes,
        ..tombstone.clone()
    }
}

/// The volumes to delete by the metadata of the Machine's domain; none without a domain.
fn volumes_of_domain(
    host: &mut dyn Connection,
    owner: &str,
) -> Result<Vec<TombstoneVolume>, AccessError> {
    let metadata = host.domain(domain_uuid(owner))?;
    let metadata = metadata.and_then(|found| metadata_of(&found, owner));
    Ok(metadata.map_or_else(Vec::new, |metadata| deletable(&metadata.volumes)))
}

/// Our metadata of a domain, if the domain was made for this Machine.
fn metadata_of(found: &DomainDetail, owner: &str) -> Option<DomainMetadata> {
    let metadata = DomainMetadata::parse(found.state.metadata.as_deref()?)?;
    (metadata.uid == owner).then_some(metadata)
}

/// Ends the guest of a Machine that is gone, and removes its definition, these volumes and its seeds. Every pool has to
/// be readable before. Returns the volumes that stay.
fn remove_all(
    host: &mut dyn Connection,
    guard: &Guard,
    owner: &str,
    pools: &BTreeSet<String>,
    listed_volumes: &[TombstoneVolume],
) -> Result<Vec<TombstoneVolume>, AccessError> {
    let uuid = domain_uuid(owner);
    let found = host.domain(uuid)?;
    let metadata = found.as_ref().and_then(|found| metadata_of(found, owner));
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
    let is_deletable = |pool: &str, name: &str| {
        let mut records = listed_volumes.iter().filter(|record| record.pool == pool);
        records.any(|record| is_attempt_of(name, &record.volume))
    };
    let ours = all
        .iter()
        .filter(|(_, volume)| is_volume_of(&volume.name, owner) && !is_marker(&volume.name));
    let mut stay = Vec::new();
    for (pool, volume) in ours {
        let deletes = is_deletable(pool, &volume.name);
        let is_seed = is_seed(&volume.name) && pools.contains(&pool);
        if !deletes && !is_seed {
            stay.push(TombstoneVolume {
                pool: pool.clone(),
                volume: volume.name.clone(),
            });
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
mod tests {
    use super::*;
    use crate::access::State;
    use crate::access::fake::FakePool;
    use crate::environment::{self, Environment, POOL, block};
    use crate::plan::action::Action;
    use common::api::choice::ReclaimPolicy;
    use controller_core::fixtures::disk;

    const OWNER: &str = "uid-of-web";

    fn pools() -> BTreeSet<String> {
        BTreeSet::from([POOL.to_owned()])
    }

    /// What a poll does about the tombstone of the Machine `web` that lists no volumes.
    fn remove_by_metadata(
        host: &mut dyn Connection,
        pools: &BTreeSet<String>,
    ) -> Result<Vec<TombstoneVolume>, AccessError> {
        let volumes = volumes_of_domain(host, OWNER)?;
        remove_all(host, &environment::guard(), OWNER, pools, &volumes)
    }

    fn volumes(env: &Environment) -> Vec<String> {
        let state = env.host.state();
        state.pools[POOL].volumes.keys().cloned().collect()
    }

    /// The volumes that the tombstone of a Machine lists which is deleted now.
    fn listed(env: &mut Environment) -> Vec<TombstoneVolume> {
        env.delete();
        for _ in 0..10 {
            let plan = env.plan().unwrap();
            let mut actions = plan.actions.iter();
            let recorded = actions.find_map(|action| match action {
                Action::RecordOrphan { volumes, .. } => volumes.clone(),
                _ => None,
            });
            if let Some(recorded) = recorded {
                return recorded;
            }
            env.pass();
        }
        panic!("no tombstone")
    }

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
        // A tombstone of another Machine removes nothing of this one, even if it lists its volumes.
        let listed_volumes = volumes_of_domain(&mut *host, OWNER).unwrap();
        let guard = environment::guard();
        remove_all(
            &mut *host,
            &guard,
            "uid-of-another",
            &pools(),
            &listed_volumes,
        )
        .unwrap();
        let uuid = domain_uuid(OWNER);
        assert_eq!(env.host.state().domains[&uuid].state, State::Running);
        remove_by_metadata(&mut *host, &pools()).unwrap();
        assert!(env.host.state().domains.is_empty());
        assert_eq!(volumes(&env), ["default-web-00000000.root.qcow2"]);
        remove_by_metadata(&mut *host, &pools()).unwrap();
    }

    #[test]
    fn while_a_pool_is_undefined_the_definition_and_every_volume_stay() {
        let mut env = Environment::new(block());
        env.settle();
        let uuid = domain_uuid(OWNER);
        let mut host = env.connection().unwrap();
        let pool = env.host.state().pools.remove(POOL).unwrap();
        remove_by_metadata(&mut *host, &pools()).unwrap_err();
        assert!(env.host.state().domains.contains_key(&uuid));
        env.host.state().pools.insert(POOL.into(), pool);
        let stay = remove_by_metadata(&mut *host, &pools()).unwrap();
        assert_eq!(stay, []);
        assert!(env.host.state().domains.is_empty());
        assert_eq!(volumes(&env), [""; 0]);
    }

    #[test]
    fn volumes_of_a_pool_that_has_left_the_spec_are_removed_too() {
        let mut env = Environment::new(block());
        env.settle();
        let mut host = env.connection().unwrap();
        let stay = remove_by_metadata(&mut *host, &BTreeSet::new());
        assert_eq!(stay.unwrap(), []);
        assert_eq!(volumes(&env), [""; 0]);
    }

    #[test]
    fn a_removal_that_was_interrupted_after_the_definition_was_gone_is_continued() {
        let mut env = Environment::new(block());
        env.settle();
        let mut host = env.connection().unwrap();
        let listed_volumes = volumes_of_domain(&mut *host, OWNER).unwrap();
        host.destroy(domain_uuid(OWNER)).unwrap();
        host.undefine(domain_uuid(OWNER)).unwrap();
        assert_eq!(volumes(&env).len(), 1);
        let guard = environment::guard();
        remove_all(&mut *host, &guard, OWNER, &pools(), &listed_volumes).unwrap();
        assert_eq!(volumes(&env), [""; 0]);
    }

    #[test]
    fn a_machine_without_a_domain_that_goes_while_a_pool_cannot_be_read_leaves_no_volume_for_ever()
    {
        let mut block = block();
        block.disks.push(disk("data", ReclaimPolicy::Retain));
        block.disks[1].storage_class = "local".into();
        let mut env = Environment::new(block);
        env.settle();
        let mut host = env.connection().unwrap();
        host.destroy(domain_uuid(OWNER)).unwrap();
        host.undefine(domain_uuid(OWNER)).unwrap();
        let other = FakePool {
            active: false,
            ..FakePool::of(1 << 30)
        };
        env.host.state().pools.insert("other".into(), other);
        let listed_volumes = listed(&mut env);
        assert_eq!(listed_volumes.len(), 1, "{listed_volumes:?}");
        env.host.state().pools.remove("other");
        let guard = environment::guard();
        let stay = remove_all(&mut *host, &guard, OWNER, &pools(), &listed_volumes).unwrap();
        let tombstone = Tombstone {
            machine: "default/web".into(),
            uid: OWNER.into(),
            since: String::new(),
            volumes: None,
        };
        let kept: Vec<_> = stay.iter().filter_map(|it| kept(&tombstone, it)).collect();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].disk, "data");
        assert_eq!(volumes(&env), [kept[0].volume.as_str()]);
    }

    #[test]
    fn a_disk_that_left_the_spec_before_its_machine_is_in_no_tombstone() {
        let mut block = block();
        block.disks.push(disk("data", ReclaimPolicy::Delete));
        block.disks[1].storage_class = "local".into();
        let mut env = Environment::new(block);
        env.settle();
        env.edit(|block| block.disks.truncate(1));
        let pool = env.host.state().pools.remove(POOL).unwrap();
        let listed_volumes = listed(&mut env);
        let names: Vec<_> = listed_volumes.iter().map(|it| it.volume.as_str()).collect();
        assert!(names.len() == 1 && names[0].contains(".root."), "{names:?}");
        env.host.state().pools.insert(POOL.into(), pool);
        let mut host = env.connection().unwrap();
        let guard = environment::guard();
        remove_all(&mut *host, &guard, OWNER, &pools(), &listed_volumes).unwrap();
        assert!(volumes(&env)[0].contains(".data."));
    }
}
