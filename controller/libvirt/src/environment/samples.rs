//! A block, a host and guards, as most tests need them.

use super::*;
use crate::guard::OtherHosts;

/// The pool of the fake host.
pub(crate) const POOL: &str = "vms";

/// A block for a libvirt host: one disk, one card on its default network.
pub(crate) fn block() -> Normalized {
    let mut block = fixtures::block();
    block.backend = Backend::Libvirt;
    block.disks[0].storage_class = "local".into();
    block
}

/// The spec of the fake host: one pool, for overlays, copies and images; one network.
pub(crate) fn host_spec() -> LibvirtHostSpec {
    let offer = |class: &str, provisioning| HostStorage {
        storage_class: class.into(),
        pool: POOL.into(),
        format: None,
        provisioning,
        shared_as: None,
    };
    let network = HostNetwork {
        name: "default".into(),
        kind: HostNetworkType::Network,
        source: "default".into(),
        vlans: None,
        port_isolation: None,
        allow_mac_spoofing: None,
    };
    LibvirtHostSpec {
        uri: "qemu:///system".into(),
        credentials_secret_ref: None,
        virt_type: VirtType::Qemu,
        cpu_mode: None,
        schedulable: None,
        maintenance: None,
        overcommit: None,
        reserved: None,
        storage: Some(vec![
            offer("local", None),
            offer("copied", Some(Provisioning::Copy)),
        ]),
        image_pool: Some(POOL.into()),
        console_log_pool: None,
        existing_volumes: None,
        image_sources: None,
        networks: Some(vec![network]),
        dedicated_cpus: None,
        devices: None,
        limits: None,
    }
}

/// A LibvirtHost of this name and of [`host_spec`].
pub(crate) fn host_object(name: &str) -> LibvirtHost {
    LibvirtHost {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        spec: host_spec(),
        unreadable: None,
        status: LibvirtHostStatus::default(),
    }
}

/// A running domain of 2 vCPUs and this memory in bytes, as a poll shows it; `uid`: of a Machine, or of nobody.
pub(crate) fn running_domain(uid: Option<&str>, memory: u64) -> DomainSummary {
    DomainSummary {
        domain: DomainState {
            uuid: uid.map(domain_uuid).unwrap_or_default(),
            name: String::new(),
            metadata: None,
            state: State::Running,
            reason: 0,
            vcpus: 2,
            memory,
            persistent: true,
        },
        metadata: uid.map(|uid| DomainMetadata {
            uid: uid.into(),
            ..DomainMetadata::default()
        }),
    }
}

/// A guard that permits every effect, of a host whose spec names the pool.
pub(crate) fn guard() -> Guard {
    guard_with(&[POOL])
}

/// A guard that permits every effect, of a host whose spec names these pools.
pub(crate) fn guard_with(pools: &[&str]) -> Guard {
    Guard::new(|| Ok(()), OtherHosts::default, named(pools))
}

/// A guard of a Machine whose domain these hosts show, too.
pub(crate) fn guard_beside(hosts: Vec<String>) -> Guard {
    let other_hosts = move || OtherHosts {
        defined: hosts.clone(),
        ..OtherHosts::default()
    };
    Guard::new(|| Ok(()), other_hosts, named(&[POOL]))
}

/// A guard of a replica that lost the Lease.
pub(crate) fn guard_without_lease() -> Guard {
    let lost = || Err(AccessError::Cancelled("the Lease is lost".into()));
    Guard::new(lost, OtherHosts::default, named(&[POOL]))
}

/// A guard of a Machine that is bound to another host.
pub(crate) fn guard_of_another_host() -> Guard {
    let other_hosts = || OtherHosts {
        bound: Some("beta".into()),
        ..OtherHosts::default()
    };
    Guard::new(|| Ok(()), other_hosts, named(&[POOL]))
}

/// The pools that the spec of a host names.
fn named(pools: &[&str]) -> impl Fn() -> access::Result<BTreeSet<String>> + Send + Sync + 'static {
    let pools: BTreeSet<String> = pools.iter().map(|&it| it.to_owned()).collect();
    move || Ok(pools.clone())
}
