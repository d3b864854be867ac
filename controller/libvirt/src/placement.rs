//! Where a Machine goes: the host that can run it and has the most room left. Pure.
//!
//! ```text
//! hosts ─ can it? ready, labels, classes, networks, firmware, room ─▶ least allocated ─▶ status.host
//!               └─ why not, host by host
//! ```
//! Room is counted by what Machines and foreign domains are promised, not by what libvirt says is free: a
//! guest that is off comes back, and one that idles wakes up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::api::choice::{FirmwareType, HostNetworkType, MachineType};
use common::api::libvirt_host::{HostResources, HostStorage, LibvirtHostSpec};
use common::api::network::NetworkConfigurationSpec;
use common::api::normalized::Normalized;
use common::names::DEFAULT_NETWORK;
use common::quantity::{Bytes, Milli};
use common::render::libvirt::{NicAttachment, NicSource};

use super::access::Facts;
use super::hosts::Snapshot;
use super::plan::images;
use controller_core::machine::requested_resources;
use controller_core::objects::Network;

/// Into how many parts a host is divided to compare how full hosts are.
const SHARES: u128 = 1_000_000;

/// A host to choose from.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) spec: LibvirtHostSpec,
    /// What was seen there last, or why it cannot be asked.
    pub(crate) seen: Result<Arc<Snapshot>, String>,
    /// What Machines and foreign domains are promised.
    pub(crate) allocated: HostResources,
}

/// The host to run a Machine, or why none can, host by host.
pub(crate) fn choose<'a>(
    block: &Normalized,
    networks: &BTreeMap<String, Arc<Network>>,
    hosts: &'a [Candidate],
) -> Result<&'a str, String> {
    let mut lacks = Vec::new();
    let mut fit = Vec::new();
    for host in hosts {
        match fits(block, networks, host) {
            Ok(load) => fit.push((load, host.name.as_str())),
            Err(why) => lacks.push(format!("{}: {why}", host.name)),
        }
    }
    match fit.into_iter().min() {
        Some((_, name)) => Ok(name),
        None if hosts.is_empty() => Err(
            "no LibvirtHost is registered: create one; the Machine goes on by itself then".into(),
        ),
        None => Err(format!(
            "no LibvirtHost can run it: {}; the Machine goes on by itself when one can",
            lacks.join("; ")
        )),
    }
}

/// How full a host would be with the Machine, as the fuller of vCPUs and memory; or why it cannot run it.
fn fits(
    block: &Normalized,
    networks: &BTreeMap<String, Arc<Network>>,
    host: &Candidate,
) -> Result<u128, String> {
    let seen = host
        .seen
        .as_ref()
        .map_err(|why| format!("cannot be reached ({why})"))?;
    if host.spec.maintenance == Some(true) {
        return Err("is in maintenance".into());
    }
    if host.spec.schedulable == Some(false) {
        return Err("is not schedulable".into());
    }
    let selector = block.node_selector.iter();
    let mut missing = selector.filter(|(key, value)| host.labels.get(*key) != Some(value));
    if let Some((key, value)) = missing.next() {
        return Err(format!("has no label {key}={value}"));
    }
    for class in classes(block) {
        let Some(offer) = storage(&host.spec, class) else {
            return Err(format!("offers no storage class '{class}'"));
        };
        if !seen.has_pool(&offer.pool) {
            return Err(format!("its pool '{}' is not active", offer.pool));
        }
    }
    for nic in &block.networks {
        let network = nic.network_name.as_ref().map(|name| {
            let known = networks.get(name).map(|network| &network.spec);
            known.ok_or_else(|| format!("NetworkConfiguration '{name}' is not there"))
        });
        attach(&host.spec, network.transpose()?)?;
    }
    if images(block).next().is_some() && host.spec.image_pool.is_none() {
        return Err("has no imagePool".into());
    }
    hardware(block, &seen.facts)?;
    room(
        requested_resources(block),
        &host.spec,
        &seen.facts,
        host.allocated,
    )
}

fn hardware(block: &Normalized, facts: &Facts) -> Result<(), String> {
    let machine = match block.machine_type {
        MachineType::Q35 => "q35",
        MachineType::Pc => "pc",
    };
    let knows = facts.machine_types.iter().any(|known| known == machine);
    if !knows && !facts.machine_types.is_empty() {
        return Err(format!("its hypervisor has no machine type {machine}"));
    }
    if block.firmware.kind == FirmwareType::Efi && !facts.efi {
        return Err("has no EFI firmware (install ovmf there)".into());
    }
    if block.firmware.secure_boot == Some(true) && !facts.secure_boot {
        return Err("has no EFI firmware with secure boot (install ovmf there)".into());
    }
    Ok(())
}

fn room(
    needs: HostResources,
    spec: &LibvirtHostSpec,
    facts: &Facts,
    allocated: HostResources,
) -> Result<u128, String> {
    let all = allocatable(spec, facts);
    let cpu = allocated.cpu.saturating_add(needs.cpu);
    if cpu > all.cpu {
        let left = all.cpu.saturating_sub(allocated.cpu);
        return Err(format!(
            "has {left} of {} vCPUs left, {} are needed",
            all.cpu, needs.cpu
        ));
    }
    let (taken, needed, most) = (allocated.memory.get(), needs.memory.get(), all.memory.get());
    let memory = taken.saturating_add(needed);
    if memory > most {
        let left = Bytes::new(most.saturating_sub(taken));
        return Err(format!(
            "has {left} of {} memory left, {} are needed",
            all.memory, needs.memory
        ));
    }
    let share = |part: u128, whole: u128| (part * SHARES).checked_div(whole).unwrap_or(SHARES);
    Ok(share(u128::from(cpu), u128::from(all.cpu)).max(share(memory, most)))
}

/// What a host has for Machines: without what is reserved, times the overcommitment.
pub(crate) fn allocatable(spec: &LibvirtHostSpec, facts: &Facts) -> HostResources {
    let reserved = spec.reserved.clone().unwrap_or_default();
    let factor = spec.overcommit.clone().unwrap_or_default();
    // Admission has read them: what cannot be read is as absent.
    let milli = |text: &str| text.parse().ok().map(Milli::get);
    let times = |all: u128, reserved: u128, factor: Option<&str>| {
        let factor = factor.and_then(milli).unwrap_or(1000);
        all.saturating_sub(reserved).saturating_mul(factor) / 1000
    };
    let cores = reserved.cpu.as_deref().and_then(milli).unwrap_or_default();
    let cpu = times(u128::from(facts.cpus) * 1000, cores, factor.cpu.as_deref()) / 1000;
    let reserved = reserved.memory.and_then(|text| text.parse::<Bytes>().ok());
    let reserved = reserved.map_or(0, Bytes::get);
    HostResources {
        cpu: u32::try_from(cpu).unwrap_or(u32::MAX),
        memory: Bytes::new(times(
            u128::from(facts.memory),
            reserved,
            factor.memory.as_deref(),
        )),
    }
}

/// The storage classes a block needs volumes of.
pub(crate) fn classes(block: &Normalized) -> BTreeSet<&str> {
    block
        .disks
        .iter()
        .map(|disk| disk.storage_class.as_str())
        .collect()
}

/// What a host offers under the name of a class.
pub(crate) fn storage<'a>(spec: &'a LibvirtHostSpec, class: &str) -> Option<&'a HostStorage> {
    let mut offers = spec.storage.iter().flatten();
    offers.find(|offer| offer.storage_class == class)
}

/// How a card is attached on a host; `None` is its default network. The error says what the host lacks.
pub(crate) fn attach(
    spec: &LibvirtHostSpec,
    network: Option<&NetworkConfigurationSpec>,
) -> Result<NicAttachment, String> {
    let (name, vlan) = match network {
        None => (DEFAULT_NETWORK, None),
        Some(network) => {
            let bridge = network.bridge.as_deref();
            let name =
                bridge.ok_or("a NetworkConfiguration without a bridge is for KubeVirt only")?;
            (name, network.vlan.and_then(|tag| u16::try_from(tag).ok()))
        }
    };
    let mut offers = spec
        .networks
        .iter()
        .flatten()
        .filter(|offer| offer.name == name);
    let offer = offers
        .next()
        .ok_or_else(|| format!("offers no network '{name}'"))?;
    if !offer.carries(vlan.map(i64::from)) {
        let tag = vlan.map_or_else(|| "untagged frames".to_owned(), |tag| format!("VLAN {tag}"));
        return Err(format!("its network '{name}' does not carry {tag}"));
    }
    let source = offer.source.clone();
    let wire = match offer.kind {
        HostNetworkType::Network => NicSource::Network(source),
        HostNetworkType::Bridge => NicSource::Bridge(source),
        HostNetworkType::Ovs => NicSource::Ovs(source),
    };
    Ok(NicAttachment {
        // A bridge for a VLAN takes frames without a tag.
        vlan: vlan.filter(|_| offer.kind == HostNetworkType::Ovs),
        mtu: network.and_then(|network| u32::try_from(network.mtu?).ok()),
        source: wire,
    })
}

#[cfg(test)]
mod tests {
    use common::api::choice::{Provisioning, VirtType};
    use common::api::libvirt_host::{HostNetwork, Overcommit, Reserved};
    use common::quantity::Bytes;

    use super::*;
    use crate::access::Pool;
    use crate::world::block;
    use controller_core::machine::NO_RESOURCES;

    type Change = fn(&mut Normalized, &mut Candidate);

    fn host(name: &str) -> Candidate {
        let offer = HostStorage {
            storage_class: "local".into(),
            pool: "vms".into(),
            format: None,
            provisioning: Some(Provisioning::Overlay),
        };
        let network = |name: &str, kind, vlans| HostNetwork {
            name: name.into(),
            kind,
            source: format!("{name}0"),
            vlans,
        };
        Candidate {
            name: name.into(),
            labels: BTreeMap::new(),
            spec: LibvirtHostSpec {
                uri: "qemu:///system".into(),
                credentials_secret_ref: None,
                virt_type: VirtType::Kvm,
                cpu_mode: None,
                schedulable: None,
                maintenance: None,
                overcommit: None,
                reserved: None,
                storage: Some(vec![offer]),
                image_pool: None,
                networks: Some(vec![
                    network("default", HostNetworkType::Network, None),
                    network("plain", HostNetworkType::Bridge, None),
                    network("tagged", HostNetworkType::Bridge, Some(vec![100])),
                    network("ovs", HostNetworkType::Ovs, None),
                ]),
            },
            seen: Ok(Arc::new(Snapshot {
                facts: Facts {
                    cpus: 8,
                    memory: 16 << 30,
                    efi: true,
                    ..Facts::default()
                },
                pools: vec![Pool {
                    name: "vms".into(),
                    active: true,
                    capacity: 1 << 40,
                    available: 1 << 40,
                }],
                ..Snapshot::default()
            })),
            allocated: NO_RESOURCES,
        }
    }

    fn why(block: &Normalized, host: Candidate) -> String {
        choose(block, &BTreeMap::new(), &[host]).unwrap_err()
    }

    #[test]
    fn the_host_with_the_most_room_left_is_chosen_and_of_two_alike_the_first() {
        let (alpha, beta) = (host("alpha"), host("beta"));
        let mut full = host("gamma");
        full.allocated.cpu = 4;
        let networks = BTreeMap::new();
        let chosen = |hosts: &[Candidate]| choose(&block(), &networks, hosts).unwrap().to_owned();
        assert_eq!(chosen(&[beta.clone(), alpha.clone()]), "alpha");
        assert_eq!(chosen(&[full.clone(), beta]), "beta");
        let mut by_memory = host("delta");
        by_memory.allocated.memory = Bytes::mib(12 * 1024);
        assert_eq!(chosen(&[by_memory, full]), "gamma");
    }

    #[test]
    fn each_host_says_what_it_lacks() {
        assert!(
            choose(&block(), &BTreeMap::new(), &[])
                .unwrap_err()
                .contains("create one")
        );
        let table: [(&str, Change); 12] = [
            ("cannot be reached (no route)", |_, host| {
                host.seen = Err("no route".into());
            }),
            ("is in maintenance", |_, host| {
                host.spec.maintenance = Some(true);
            }),
            ("is not schedulable", |_, host| {
                host.spec.schedulable = Some(false);
            }),
            ("has no label disk=ssd", |block, _| {
                block.node_selector.insert("disk".into(), "ssd".into());
            }),
            ("offers no storage class 'fast'", |block, _| {
                block.disks[0].storage_class = "fast".into();
            }),
            ("its pool 'elsewhere' is not active", |_, host| {
                host.spec.storage.as_mut().unwrap()[0].pool = "elsewhere".into();
            }),
            ("offers no network 'default'", |_, host| {
                host.spec.networks = None;
            }),
            ("NetworkConfiguration 'prod' is not there", |block, _| {
                block.networks[0].network_name = Some("prod".into());
            }),
            ("has no EFI firmware with secure boot", |block, _| {
                block.firmware.secure_boot = Some(true);
            }),
            ("has 1 of 8 vCPUs left, 2 are needed", |_, host| {
                host.allocated.cpu = 7;
            }),
            ("has 1Gi of 16Gi memory left, 2Gi are needed", |_, host| {
                host.allocated.memory = Bytes::mib(15 * 1024);
            }),
            (
                "has 2Gi of 16Gi memory left, 3Gi are needed",
                |block, host| {
                    // A guest boots with the most it may have.
                    block.memory.max_size = Bytes::mib(3 * 1024);
                    host.allocated.memory = Bytes::mib(14 * 1024);
                },
            ),
        ];
        for (lack, change) in table {
            let (mut block, mut host) = (block(), host("alpha"));
            change(&mut block, &mut host);
            let why = why(&block, host);
            assert!(why.contains(&format!("alpha: {lack}")), "{lack}: {why}");
        }
    }

    #[test]
    fn what_is_reserved_and_overcommitted_counts() {
        let mut spec = host("alpha").spec;
        spec.reserved = Some(Reserved {
            cpu: Some("500m".into()),
            memory: Some("4Gi".into()),
        });
        spec.overcommit = Some(Overcommit {
            cpu: Some("2.5".into()),
            memory: None,
        });
        let facts = Facts {
            cpus: 4,
            memory: 16 << 30,
            ..Facts::default()
        };
        let all = allocatable(&spec, &facts);
        // (4 - 0.5) * 2.5 = 8.75, of which eight are whole.
        assert_eq!((all.cpu, all.memory), (8, Bytes::mib(12 * 1024)));
    }

    #[test]
    fn a_vlan_needs_a_bridge_of_its_own_or_one_that_tags() {
        let spec = host("alpha").spec;
        let network = |bridge: &str, vlan| NetworkConfigurationSpec {
            bridge: Some(bridge.into()),
            vlan,
            mtu: Some(9000),
            ..NetworkConfigurationSpec::default()
        };
        let on = |bridge, vlan| attach(&spec, Some(&network(bridge, vlan)));
        let tag = |bridge, vlan| on(bridge, vlan).map(|attached| attached.vlan);
        assert_eq!(tag("plain", None), Ok(None));
        assert!(
            on("plain", Some(100))
                .unwrap_err()
                .contains("does not carry VLAN 100")
        );
        assert_eq!(tag("tagged", Some(100)), Ok(None), "the bridge is the VLAN");
        assert!(on("tagged", Some(200)).unwrap_err().contains("VLAN 200"));
        assert!(on("tagged", None).unwrap_err().contains("untagged frames"));
        assert_eq!(tag("ovs", Some(7)), Ok(Some(7)));
        assert_eq!(tag("ovs", None), Ok(None));
        assert_eq!(on("ovs", None).unwrap().mtu, Some(9000));
        let nad = NetworkConfigurationSpec::default();
        assert!(
            attach(&spec, Some(&nad))
                .unwrap_err()
                .contains("KubeVirt only")
        );
    }
}
