//! Removes what Machines left that were deleted while their host, or a pool of it, could not be read.
//!
//! ```text
//! tombstone in the host's status ─ the host answers ─▶ guest off, definition and volumes gone ─▶ no tombstone
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use common::api::choice::ReclaimPolicy;
use common::api::libvirt_host::LibvirtHostStatus;
use common::render::libvirt::{Mark, domain_uuid, is_seed, is_volume_of};
use controller_core::client::GuardedClient;
use controller_core::machine::CachedMachine;
use controller_core::objects::Meta as _;

use super::registry::ConnectedHost;
use super::tombstones::put_status;
use crate::access::{AccessError, Connection};
use crate::libvirt_host::LibvirtHost;
use crate::removal::remove_volume;

/// Limit of one removal: a frozen QEMU took 11.7 s to be ended.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30);

/// Removes what Machines left that were deleted while the host could not be asked.
pub(super) async fn remove(
    api: &GuardedClient,
    machines: &kube::runtime::reflector::Store<CachedMachine>,
    connected: &ConnectedHost,
    host: &LibvirtHost,
) {
    let reachable = connected.snapshot().is_ok() && host.spec.maintenance != Some(true);
    if !reachable || !api.may_write() || host.status.tombstones.is_empty() {
        return;
    }
    let lives = |uid: &str| !machines.state_filter(|it| it.uid() == uid).is_empty();
    let mut left = Vec::new();
    for tombstone in &host.status.tombstones {
        let uid = tombstone.uid.clone();
        let pools = host
            .spec
            .storage
            .iter()
            .flatten()
            .map(|offer| offer.pool.clone());
        let pools: BTreeSet<_> = pools.collect();
        // The cache may lag behind: a tombstone is removed only after the host was read.
        let cleared = if lives(&uid) {
            left.push(tombstone.clone());
            continue;
        } else {
            connected
                .host
                .slow
                .call(REMOVAL_LIMIT, move |host| clear(host, &uid, &pools))
                .await
        };
        match cleared {
            Ok(()) => tracing::info!(
                host = connected.name,
                machine = tombstone.machine,
                "nothing is left of the Machine"
            ),
            Err(error) => {
                tracing::warn!(host = connected.name, machine = tombstone.machine, %error, "what a Machine left cannot be removed yet");
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

/// Ends a guest whose Machine is gone, and removes what goes with it.
fn clear(
    host: &mut dyn Connection,
    owner: &str,
    pools: &BTreeSet<String>,
) -> Result<(), AccessError> {
    let uuid = domain_uuid(owner);
    let found = host.domain(uuid)?;
    let mark = found
        .as_ref()
        .and_then(|found| Mark::parse(found.state.mark.as_deref()?));
    let (Some(found), Some(mark)) = (found, mark.filter(|mark| mark.uid == owner)) else {
        return seeds(host, owner, pools);
    };
    if found.state.state.active() {
        host.destroy(uuid)?;
    }
    host.undefine(uuid)?;
    for kept in mark
        .volumes
        .iter()
        .filter(|kept| kept.reclaim_policy == ReclaimPolicy::Delete)
    {
        remove_volume(host, &kept.pool, &kept.volume)?;
    }
    seeds(host, owner, pools)
}

fn seeds(
    host: &mut dyn Connection,
    uid: &str,
    pools: &BTreeSet<String>,
) -> Result<(), AccessError> {
    for pool in pools {
        for volume in host.volumes(pool)? {
            if is_volume_of(&volume.name, uid) && is_seed(&volume.name) {
                remove_volume(host, pool, &volume.name)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::State;
    use crate::environment::{Environment, POOL, block};

    #[test]
    fn what_a_buried_machine_left_is_removed_and_nothing_else() {
        let mut env = Environment::new(block());
        env.machine_mut().cloud_init =
            common::render::kubevirt::CloudInitPlan::from(&common::api::machine::CloudInit {
                user_data: Some("#cloud-config\n".into()),
                ..Default::default()
            });
        env.settle();
        let mut host = env.connection().unwrap();
        let foreign =
            "<volume><name>default-web-00000000.root.qcow2</name><capacity>1</capacity></volume>";
        host.create_volume(POOL, foreign).unwrap();
        let pools = BTreeSet::from([POOL.to_owned()]);
        // Another Machine's tombstone touches nothing of this one.
        clear(&mut *host, "uid-of-another", &pools).unwrap();
        let uuid = domain_uuid("uid-of-web");
        assert_eq!(env.host.state().domains[&uuid].state, State::Running);
        clear(&mut *host, "uid-of-web", &pools).unwrap();
        assert!(env.host.state().domains.is_empty());
        let left: Vec<_> = env.host.state().pools[POOL]
            .volumes
            .keys()
            .cloned()
            .collect();
        assert_eq!(left, ["default-web-00000000.root.qcow2"]);
        clear(&mut *host, "uid-of-web", &pools).unwrap();
    }
}
