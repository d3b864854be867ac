//! What Machines left that were deleted while their host could not be asked.
//!
//! ```text
//! force-delete ─▶ tombstone in the host's status ─ the host answers again ─▶ domain and volumes gone ─▶ no tombstone
//! ```

use std::collections::BTreeSet;

use common::api::choice::ReclaimPolicy;
use common::api::libvirt_host::{LibvirtHostStatus, Tombstone};
use common::render::libvirt::{DomainMetadata, domain_uuid, is_seed, is_volume_of};

use super::Attended;
use super::attend::{Desk, LIMIT, put};
use crate::access::{AccessError, Connection};
use crate::apply::remove_volume;
use crate::object::LibvirtHost;
use controller_core::objects::Meta as _;
use controller_core::plan::Now;

/// Removes what Machines left that were deleted while the host could not be asked.
pub(super) async fn bury(desk: &Desk, attended: &Attended, host: &LibvirtHost) {
    let reachable = attended.seen().is_ok() && host.spec.maintenance != Some(true);
    if !reachable || !desk.api.may_write() || host.status.tombstones.is_empty() {
        return;
    }
    let lives = |uid: &str| {
        !desk
            .caches
            .machines
            .state_filter(|it| it.uid() == uid)
            .is_empty()
    };
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
        let cleared = if lives(&uid) {
            Ok(())
        } else {
            attended
                .host
                .slow
                .call(LIMIT * 3, move |host| clear(host, &uid, &pools))
                .await
        };
        match cleared {
            Ok(()) => tracing::info!(
                host = attended.name,
                machine = tombstone.machine,
                "nothing is left of the Machine"
            ),
            Err(error) => {
                tracing::warn!(host = attended.name, machine = tombstone.machine, %error, "what a Machine left cannot be removed yet");
                left.push(tombstone.clone());
            }
        }
    }
    if left != host.status.tombstones {
        put(
            desk,
            host,
            &LibvirtHostStatus {
                tombstones: left,
                ..host.status.clone()
            },
        )
        .await;
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
        .and_then(|found| DomainMetadata::parse(found.state.mark.as_deref()?));
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

/// A tombstone for a Machine.
pub(crate) fn tombstone(machine: &str, uid: &str, now: Now) -> Tombstone {
    Tombstone {
        machine: machine.to_owned(),
        uid: uid.to_owned(),
        since: now.text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::State;
    use crate::world::{POOL, World, block};

    #[test]
    fn what_a_buried_machine_left_is_removed_and_nothing_else() {
        let mut world = World::new(block());
        world.machine_mut().cloud_init =
            common::render::CloudInitPlan::from(&common::api::machine::CloudInit {
                user_data: Some("#cloud-config\n".into()),
                ..Default::default()
            });
        world.settle();
        let mut host = world.connection().unwrap();
        let foreign =
            "<volume><name>default-web-00000000.root.qcow2</name><capacity>1</capacity></volume>";
        host.create_volume(POOL, foreign).unwrap();
        let pools = BTreeSet::from([POOL.to_owned()]);
        // Another Machine's tombstone touches nothing of this one.
        clear(&mut *host, "uid-of-another", &pools).unwrap();
        let uuid = domain_uuid("uid-of-web");
        assert_eq!(world.host.world().domains[&uuid].state, State::Running);
        clear(&mut *host, "uid-of-web", &pools).unwrap();
        assert!(world.host.world().domains.is_empty());
        let left: Vec<_> = world.host.world().pools[POOL]
            .volumes
            .keys()
            .cloned()
            .collect();
        assert_eq!(left, ["default-web-00000000.root.qcow2"]);
        clear(&mut *host, "uid-of-web", &pools).unwrap();
    }
}
