//! CPU and memory of a host: what Machines may be given, and what is allocated already.
//!
//! What a Machine is allocated is what its domain has on the host, not what its spec asks for: no other
//! Machine loses room to a request that cannot be met.

use std::collections::{BTreeSet, HashMap};

use common::api::libvirt_host::{HostResources, LibvirtHostSpec};
use common::quantity::{Bytes, Milli};
use common::render::libvirt::Domain;
use controller_core::machine::NO_RESOURCES;

use crate::access::HostInfo;
use crate::hardware::Cpus;
use crate::snapshot::DomainSummary;

/// More than any Machine can ask for.
pub(crate) const UNLIMITED: HostResources = HostResources {
    cpu: u32::MAX,
    memory: Bytes::new(u128::MAX),
};

/// Both together.
pub(crate) fn sum(a: HostResources, b: HostResources) -> HostResources {
    HostResources {
        cpu: a.cpu.saturating_add(b.cpu),
        memory: Bytes::new(a.memory.get().saturating_add(b.memory.get())),
    }
}

/// The larger of both, each for itself.
pub(crate) fn larger(a: HostResources, b: HostResources) -> HostResources {
    HostResources {
        cpu: a.cpu.max(b.cpu),
        memory: a.memory.max(b.memory),
    }
}

/// The smaller of both, each for itself.
pub(crate) fn smaller(a: HostResources, b: HostResources) -> HostResources {
    HostResources {
        cpu: a.cpu.min(b.cpu),
        memory: a.memory.min(b.memory),
    }
}

/// What a Machine gets that asks for this, has that, and may have `most`: of each what it asks for, or what it has.
pub(crate) fn granted(
    asks: HostResources,
    has: HostResources,
    most: HostResources,
) -> HostResources {
    HostResources {
        cpu: if asks.cpu <= most.cpu {
            asks.cpu
        } else {
            has.cpu.min(asks.cpu)
        },
        memory: if asks.memory <= most.memory {
            asks.memory
        } else {
            has.memory.min(asks.memory)
        },
    }
}

/// Whether `needs` is no more than `most`.
pub(crate) fn fits(needs: HostResources, most: HostResources) -> bool {
    needs.cpu <= most.cpu && needs.memory <= most.memory
}

/// What a domain is given. Of dedicated vCPUs those that are plugged in later count as well: each has its CPU already.
pub(crate) fn size_of(domain: &Domain) -> HostResources {
    let pinned = u32::try_from(domain.pinning.dedicated.len()).unwrap_or(u32::MAX);
    HostResources {
        cpu: domain.cpu.vcpus().max(pinned),
        memory: domain.memory.max_size,
    }
}

/// What a domain of a snapshot is given now, or will be at its next start. `pinned`: how many of the dedicated CPUs it has.
pub(crate) fn size_in(summary: &DomainSummary, pinned: u32) -> HostResources {
    let now = HostResources {
        cpu: summary.domain.vcpus.max(pinned),
        memory: Bytes::new(u128::from(summary.domain.memory)),
    };
    let grown = summary
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.grown);
    grown.map_or(now, |grown| larger(now, grown))
}

/// A Machine that is bound to a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundMachine<'a> {
    /// Uid of the Machine.
    pub(crate) uid: &'a str,
    /// What its block asks for.
    pub(crate) requested: HostResources,
    /// What is reserved for it and the last poll of the host may not show yet.
    pub(crate) reserved: Option<HostResources>,
}

/// What is allocated on a host that may allocate `most`: to all domains, of any owner, each with its size, and to Machines
/// that have no domain yet. Domains that are shut off count: they are started again. A Machine without a domain and without a
/// reservation counts as far as there is room for it.
pub(crate) fn allocated<'a>(
    domains: impl Iterator<Item = (&'a DomainSummary, HostResources)> + Clone,
    machines: &[BoundMachine<'_>],
    most: HostResources,
) -> HostResources {
    let sizes = domains.clone().map(|(_, size)| size);
    let sizes = sizes.fold(NO_RESOURCES, sum);
    let ours = domains.filter_map(|(it, size)| {
        let metadata = it.metadata.as_ref()?;
        Some((metadata.uid.as_str(), size))
    });
    let ours: HashMap<&str, HostResources> = ours.collect();
    let reserved = machines.iter().filter_map(|machine| {
        let has = ours.get(machine.uid).copied().unwrap_or(NO_RESOURCES);
        Some(machine.reserved?.less(has))
    });
    let known = reserved.fold(sizes, sum);
    let waiting = machines
        .iter()
        .filter(|machine| machine.reserved.is_none() && !ours.contains_key(machine.uid));
    // In an order that is the same each time.
    let waiting: BTreeSet<_> = waiting
        .map(|machine| (machine.uid, machine.requested.cpu, machine.requested.memory))
        .collect();
    waiting.into_iter().fold(known, |all, (_, cpu, memory)| {
        let with = sum(all, HostResources { cpu, memory });
        if fits(with, most) { with } else { all }
    })
}

/// Allocatable to Machines: a host's capacity without its reservations, times the overcommitment; each dedicated
/// CPU is one vCPU.
pub(crate) fn allocatable(spec: &LibvirtHostSpec, info: &HostInfo) -> HostResources {
    let reserved = spec.reserved.clone().unwrap_or_default();
    let factor = spec.overcommit.clone().unwrap_or_default();
    // Admission refuses what cannot be parsed; what was stored before counts as absent.
    let milli = |text: &str| text.parse().ok().map(Milli::get);
    let times = |all: u128, reserved: u128, factor: Option<&str>| {
        let factor = factor.and_then(milli).unwrap_or(1000);
        all.saturating_sub(reserved).saturating_mul(factor) / 1000
    };
    let cores = reserved.cpu.as_deref().and_then(milli).unwrap_or_default();
    let dedicated = Cpus::of(spec, info.cpus).dedicated.len() as u128;
    let shared = u128::from(info.cpus).saturating_sub(dedicated);
    let cpu = times(shared * 1000, cores, factor.cpu.as_deref()) / 1000 + dedicated;
    let reserved = reserved.memory.and_then(|text| text.parse::<Bytes>().ok());
    let reserved = reserved.map_or(0, Bytes::get);
    HostResources {
        cpu: u32::try_from(cpu).unwrap_or(u32::MAX),
        memory: Bytes::new(times(
            u128::from(info.memory),
            reserved,
            factor.memory.as_deref(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment;
    use crate::environment::running_domain;
    use common::api::libvirt_host::{Overcommit, Reserved};

    fn resources(cpu: u32, gib: u64) -> HostResources {
        HostResources {
            cpu,
            memory: Bytes::mib(gib * 1024),
        }
    }

    /// A domain of 2 vCPUs and 2Gi.
    fn domain(uid: Option<&str>, grown: Option<HostResources>) -> DomainSummary {
        let mut summary = running_domain(uid, 2 << 30);
        if let Some(metadata) = &mut summary.metadata {
            metadata.grown = grown;
        }
        summary
    }

    fn bound(uid: &str, requested: HostResources) -> BoundMachine<'_> {
        BoundMachine {
            uid,
            requested,
            reserved: None,
        }
    }

    fn sized(
        domains: &[DomainSummary],
    ) -> impl Iterator<Item = (&DomainSummary, HostResources)> + Clone {
        domains.iter().map(|it| (it, size_in(it, 0)))
    }

    #[test]
    fn a_machine_is_allocated_what_its_domain_has_and_not_what_it_asks_for() {
        let grown = Some(resources(4, 8));
        let domains = [
            domain(None, None),
            domain(Some("orphan"), None),
            domain(Some("greedy"), None),
            domain(Some("grown"), grown),
        ];
        let most = resources(64, 64);
        let mut machines = [
            bound("greedy", resources(2, 12 * 1024)),
            bound("grown", resources(4, 8)),
        ];
        assert_eq!(
            allocated(sized(&domains), &machines, most),
            resources(10, 14)
        );
        // A reservation that the last poll does not show.
        machines[0].reserved = Some(resources(3, 4));
        assert_eq!(
            allocated(sized(&domains), &machines, most),
            resources(11, 16)
        );
    }

    #[test]
    fn a_machine_without_a_domain_counts_as_far_as_there_is_room_for_it() {
        let domains = [domain(None, None)];
        let machines = [
            bound("c", resources(2, 4)),
            bound("a", resources(2, 12 * 1024)),
            bound("b", resources(2, 4)),
        ];
        let all = allocated(sized(&domains), &machines, resources(64, 16));
        assert_eq!(all, resources(6, 10));
        assert_eq!(
            allocated(sized(&domains), &machines, resources(4, 16)),
            resources(4, 6)
        );
    }

    #[test]
    fn allocatable_is_capacity_less_reserved_times_overcommit() {
        let mut spec = environment::host_spec();
        spec.reserved = Some(Reserved {
            cpu: Some("500m".into()),
            memory: Some("4Gi".into()),
        });
        spec.overcommit = Some(Overcommit {
            cpu: Some("2.5".into()),
            memory: None,
            storage: None,
        });
        let info = HostInfo {
            cpus: 4,
            memory: 16 << 30,
            ..HostInfo::default()
        };
        let all = allocatable(&spec, &info);
        // (4 - 0.5) * 2.5 = 8.75, of which eight are whole.
        assert_eq!((all.cpu, all.memory), (8, Bytes::mib(12 * 1024)));
        // (4 - 2 - 0.5) * 2.5 = 3.75 are shared.
        spec.dedicated_cpus = Some("2-3".into());
        assert_eq!(allocatable(&spec, &info).cpu, 5);
    }
}
