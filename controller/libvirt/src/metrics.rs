//! Metrics of LibvirtHosts. The label `host` has names of LibvirtHosts, which only administrators create.

mod pools;

use std::collections::BTreeMap;
use std::convert::Infallible;

use common::api::libvirt_host::HostResources;
use controller_core::machine::NO_RESOURCES;
use controller_core::metrics::COUNT_INTERVAL;
use controller_core::objects::Meta as _;
use metrics::gauge;

use self::pools::{PublishedPools, approximate};
use crate::Fleet;
use crate::libvirt_host::LibvirtHost;

const UP: &str = "kubevirt_operator_libvirt_host_up";
const MACHINES: &str = "kubevirt_operator_libvirt_host_machines";
const ALLOCATABLE: &str = "kubevirt_operator_libvirt_host_allocatable";
const ALLOCATED: &str = "kubevirt_operator_libvirt_host_allocated";
const UNLISTED: &str = "kubevirt_operator_libvirt_host_unlisted_volumes";

/// Registers the help text of each metric.
pub fn describe() {
    metrics::describe_gauge!(UP, "Whether the host answers: 1, or 0");
    metrics::describe_gauge!(MACHINES, "Machines whose domains are on the host");
    metrics::describe_gauge!(
        ALLOCATABLE,
        "vCPUs and bytes of memory that Machines may have"
    );
    metrics::describe_gauge!(
        ALLOCATED,
        "vCPUs and bytes of memory of Machines and foreign domains"
    );
    metrics::describe_gauge!(
        UNLISTED,
        "Disks of deleted Machines that the status of the host does not list"
    );
    pools::describe();
}

/// The values of one host.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HostValues {
    up: f64,
    machines: f64,
    allocatable: [(&'static str, f64); 2],
    allocated: [(&'static str, f64); 2],
    unlisted: f64,
}

impl HostValues {
    /// The values of a host that was deleted. A series cannot be removed, and no alert compares true with NaN.
    const GONE: Self = Self {
        up: f64::NAN,
        machines: f64::NAN,
        allocatable: [("cpu", f64::NAN), ("memory", f64::NAN)],
        allocated: [("cpu", f64::NAN), ("memory", f64::NAN)],
        unlisted: f64::NAN,
    };

    /// The values of a LibvirtHost, as its status has them; zero before its first status.
    fn of(host: &LibvirtHost, is_up: bool) -> Self {
        let machines = host.status.domains.unwrap_or_default().ours;
        Self {
            up: f64::from(u8::from(is_up)),
            machines: f64::from(machines),
            allocatable: amounts(host.status.allocatable),
            allocated: amounts(host.status.allocated),
            unlisted: f64::from(host.status.unlisted_volumes.unwrap_or_default()),
        }
    }

    fn publish(&self, host: &str) {
        gauge!(UP, "host" => host.to_owned()).set(self.up);
        gauge!(MACHINES, "host" => host.to_owned()).set(self.machines);
        gauge!(UNLISTED, "host" => host.to_owned()).set(self.unlisted);
        for (metric, amounts) in [(ALLOCATABLE, self.allocatable), (ALLOCATED, self.allocated)] {
            for (resource, amount) in amounts {
                gauge!(metric, "host" => host.to_owned(), "resource" => resource).set(amount);
            }
        }
    }
}

fn amounts(resources: Option<HostResources>) -> [(&'static str, f64); 2] {
    let HostResources { cpu, memory } = resources.unwrap_or(NO_RESOURCES);
    [
        ("cpu", f64::from(cpu)),
        ("memory", approximate(memory.get())),
    ]
}

/// Sets the gauges every 5 s, for as long as the process runs.
pub async fn count(fleet: Fleet) -> Result<(), Infallible> {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    // Every host that was ever published.
    let mut published: BTreeMap<String, HostValues> = BTreeMap::new();
    let mut pools = PublishedPools::default();
    loop {
        ticks.tick().await;
        for values in published.values_mut() {
            *values = HostValues::GONE;
        }
        let is_up = |name: &str| {
            let host = fleet.hosts.get(name);
            host.is_some_and(|host| host.snapshot().is_ok())
        };
        published.extend(fleet.objects.all().iter().map(|host| {
            let values = HostValues::of(host, is_up(host.name()));
            (host.name().to_owned(), values)
        }));
        for (host, values) in &published {
            values.publish(host);
        }
        pools.publish(&fleet);
    }
}

#[cfg(test)]
mod tests {
    use common::api::libvirt_host::HostDomains;
    use common::quantity::Bytes;

    use super::*;
    use crate::environment;

    #[test]
    fn the_values_are_those_of_the_status_and_zero_without_one() {
        let mut host = environment::host_object("alpha");
        let values = HostValues::of(&host, false);
        assert_eq!(
            (values.up, values.machines, values.unlisted),
            (0.0, 0.0, 0.0)
        );
        assert_eq!(values.allocatable, [("cpu", 0.0), ("memory", 0.0)]);
        host.status.domains = Some(HostDomains {
            ours: 3,
            foreign: 5,
            orphaned: 7,
        });
        host.status.allocated = Some(HostResources {
            cpu: 4,
            memory: Bytes::mib(1),
        });
        host.status.unlisted_volumes = Some(9);
        let values = HostValues::of(&host, true);
        assert_eq!(
            (values.up, values.machines, values.unlisted),
            (1.0, 3.0, 9.0)
        );
        assert_eq!(values.allocated, [("cpu", 4.0), ("memory", 1_048_576.0)]);
    }
}
