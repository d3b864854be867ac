//! CPU and memory of a host: what Machines may be given, and what is allocated already.

use common::api::libvirt_host::{HostResources, LibvirtHostSpec};
use common::quantity::{Bytes, Milli};
use controller_core::machine::NO_RESOURCES;

use crate::access::HostInfo;
use crate::snapshot::Snapshot;

/// Both together.
pub(crate) fn sum(a: HostResources, b: HostResources) -> HostResources {
    HostResources {
        cpu: a.cpu.saturating_add(b.cpu),
        memory: Bytes::new(a.memory.get().saturating_add(b.memory.get())),
    }
}

/// CPU and memory of the domains that are not ours. Those that are shut off count: they are started again.
pub(crate) fn foreign(snapshot: &Snapshot) -> HostResources {
    let others = snapshot.domains.iter().filter(|it| it.metadata.is_none());
    others.fold(NO_RESOURCES, |all, it| {
        let memory = Bytes::new(u128::from(it.domain.memory));
        sum(
            all,
            HostResources {
                cpu: it.domain.vcpus,
                memory,
            },
        )
    })
}

/// Allocatable to Machines: a host's capacity without its reservations, times the overcommitment.
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
    let cpu = times(u128::from(info.cpus) * 1000, cores, factor.cpu.as_deref()) / 1000;
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
    use common::api::libvirt_host::{Overcommit, Reserved};

    use super::*;
    use crate::environment;

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
        });
        let info = HostInfo {
            cpus: 4,
            memory: 16 << 30,
            ..HostInfo::default()
        };
        let all = allocatable(&spec, &info);
        // (4 - 0.5) * 2.5 = 8.75, of which eight are whole.
        assert_eq!((all.cpu, all.memory), (8, Bytes::mib(12 * 1024)));
    }
}
