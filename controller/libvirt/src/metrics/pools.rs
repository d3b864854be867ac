//! Metrics of the storage pools of LibvirtHosts. The label `pool` has names of the spec, which only administrators write.

use std::collections::{BTreeMap, BTreeSet};

use controller_core::objects::Meta as _;
use metrics::gauge;

use crate::Fleet;
use crate::snapshot::Snapshot;

const CAPACITY: &str = "kubevirt_operator_libvirt_pool_capacity_bytes";
const AVAILABLE: &str = "kubevirt_operator_libvirt_pool_available_bytes";
const UNALLOCATED: &str = "kubevirt_operator_libvirt_pool_unallocated_bytes";
const DISKS: &str = "kubevirt_operator_libvirt_pool_disks";
const DISK_BYTES: &str = "kubevirt_operator_libvirt_pool_disk_bytes";

/// Registers the help text of each metric.
pub(super) fn describe() {
    metrics::describe_gauge!(CAPACITY, "Bytes of the pool");
    metrics::describe_gauge!(
        AVAILABLE,
        "Bytes of the pool that nothing occupies, as the host reports them"
    );
    metrics::describe_gauge!(
        UNALLOCATED,
        "Bytes of the pool that no volume may come to occupy, with the overcommitment of the host"
    );
    metrics::describe_gauge!(DISKS, "Disks of Machines in the pool");
    metrics::describe_gauge!(
        DISK_BYTES,
        "Bytes of these disks that guests see, whatever they occupy"
    );
}

/// An amount as the value of a gauge.
#[expect(
    clippy::cast_precision_loss,
    reason = "a graph of 2^53 bytes and more needs no single bytes"
)]
pub(super) fn approximate(amount: u128) -> f64 {
    amount as f64
}

/// The values of one pool, by metric.
type PoolValues = [(&'static str, f64); 5];

/// The values of a pool that the host does not offer any more, or of a deleted host. A series cannot be removed, and no
/// alert compares true with NaN.
const GONE: PoolValues = [
    (CAPACITY, f64::NAN),
    (AVAILABLE, f64::NAN),
    (UNALLOCATED, f64::NAN),
    (DISKS, f64::NAN),
    (DISK_BYTES, f64::NAN),
];

/// The values of a pool by the last poll that its host answered. What cannot be read is not a number: neither empty nor
/// full. `None`: the host has no active pool of this name.
fn values(pool: &str, snapshot: &Snapshot) -> Option<PoolValues> {
    let mut pools = snapshot.pools.iter();
    let found = pools.find(|found| found.name == pool && found.active)?;
    let unallocated = snapshot.space_left.get(pool);
    let disks = snapshot.machine_disks.get(pool);
    Some([
        (CAPACITY, approximate(found.capacity.into())),
        (AVAILABLE, approximate(found.available.into())),
        (
            UNALLOCATED,
            unallocated.map_or(f64::NAN, |bytes| approximate(*bytes)),
        ),
        (
            DISKS,
            disks.map_or(f64::NAN, |disks| approximate(disks.count.into())),
        ),
        (
            DISK_BYTES,
            disks.map_or(f64::NAN, |disks| approximate(disks.size)),
        ),
    ])
}

/// Every pool that was ever published, by host and name.
#[derive(Default)]
pub(super) struct PublishedPools(BTreeMap<(String, String), PoolValues>);

impl PublishedPools {
    /// Sets the gauges of every pool that the spec of a host names.
    pub(super) fn publish(&mut self, fleet: &Fleet) {
        let hosts = fleet.objects.all();
        let current = hosts.iter().filter_map(|object| {
            let snapshot = fleet.hosts.get(object.name())?.last_snapshot()?;
            Some((object.name(), object.spec.pools(), snapshot))
        });
        self.update(current);
        for ((host, pool), values) in &self.0 {
            for (metric, value) in values {
                gauge!(*metric, "host" => host.clone(), "pool" => pool.clone()).set(*value);
            }
        }
    }

    /// Takes over the values of these hosts; whatever else was published is gone.
    fn update<'h>(
        &mut self,
        hosts: impl IntoIterator<Item = (&'h str, BTreeSet<String>, impl AsRef<Snapshot>)>,
    ) {
        for values in self.0.values_mut() {
            *values = GONE;
        }
        for (host, pools, snapshot) in hosts {
            let known = pools.into_iter().filter_map(|pool| {
                let values = values(&pool, snapshot.as_ref())?;
                Some(((host.to_owned(), pool), values))
            });
            self.0.extend(known);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::access::Pool;
    use crate::snapshot::DiskTotals;

    fn pool(name: &str, active: bool) -> Pool {
        Pool {
            name: name.into(),
            active,
            path: None,
            kind: "dir".into(),
            capacity: 100,
            available: 30,
        }
    }

    fn snapshot() -> Snapshot {
        let totals = DiskTotals { count: 2, size: 60 };
        Snapshot {
            pools: vec![pool("vms", true), pool("images", true), pool("off", false)],
            space_left: [("vms".to_owned(), 40)].into(),
            machine_disks: [("vms".to_owned(), totals)].into(),
            ..Snapshot::default()
        }
    }

    /// The published values of a pool, in the order of the constants.
    fn published(pools: &PublishedPools, name: &str) -> Option<[f64; 5]> {
        let values = pools.0.get(&("alpha".to_owned(), name.to_owned()))?;
        Some(values.map(|(_, value)| value))
    }

    #[test]
    fn pools_of_the_spec_have_the_values_of_the_last_poll() {
        let mut pools = PublishedPools::default();
        let named = ["vms", "images", "off", "none"].map(str::to_owned);
        pools.update([("alpha", named.into(), Arc::new(snapshot()))]);
        assert_eq!(
            published(&pools, "vms"),
            Some([100.0, 30.0, 40.0, 2.0, 60.0])
        );
        // No disks are listed there, which is not the same as none.
        let images = published(&pools, "images").unwrap();
        assert_eq!(images[..2], [100.0, 30.0]);
        assert!(images[2..].iter().all(|value| value.is_nan()));
        // An inactive pool reports a capacity of zero: it is not full.
        assert_eq!(published(&pools, "off"), None);
        assert_eq!(published(&pools, "none"), None);
    }

    #[test]
    fn a_pool_that_is_not_offered_any_more_is_no_number() {
        let mut pools = PublishedPools::default();
        let named = BTreeSet::from(["vms".to_owned()]);
        pools.update([("alpha", named, Arc::new(snapshot()))]);
        pools.update([("alpha", BTreeSet::new(), Arc::new(snapshot()))]);
        let values = published(&pools, "vms").unwrap();
        assert!(values.iter().all(|value| value.is_nan()), "{values:?}");
    }
}
