//! What a poll shows that the one before did not.

use std::collections::{BTreeMap, BTreeSet};

use controller_core::machine::CachedMachine;
use kube::runtime::reflector::ObjectRef;

use crate::snapshot::Snapshot;

/// Whether a host offers the same as before. Free space of pools does not count: it changes with every write.
pub(super) fn same_offer(a: &Snapshot, b: &Snapshot) -> bool {
    let pools = |snapshot: &Snapshot| -> Vec<_> {
        snapshot
            .pools
            .iter()
            .map(|pool| (pool.name.clone(), pool.active))
            .collect()
    };
    a.info == b.info
        && pools(a) == pools(b)
        && a.networks == b.networks
        && a.bridges == b.bridges
        && a.existing_volumes == b.existing_volumes
        && a.hardware == b.hardware
}

/// The Machines of domains whose state is another one now.
pub(super) fn changed_domains(
    before: &Snapshot,
    after: &Snapshot,
) -> Vec<ObjectRef<CachedMachine>> {
    let states = |snapshot: &Snapshot| -> BTreeMap<_, _> {
        let all = snapshot.domains.iter().filter_map(|it| {
            let metadata = it.metadata.as_ref()?;
            Some((
                it.domain.uuid,
                (
                    it.domain.state,
                    metadata.namespace.clone(),
                    metadata.name.clone(),
                ),
            ))
        });
        all.collect()
    };
    let (before, after) = (states(before), states(after));
    let uuids: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changed = uuids
        .into_iter()
        .filter(|uuid| before.get(uuid) != after.get(uuid));
    let owner = changed.filter_map(|uuid| after.get(uuid).or(before.get(uuid)));
    owner
        .map(|(_, namespace, name)| ObjectRef::new(name).within(namespace))
        .collect()
}
