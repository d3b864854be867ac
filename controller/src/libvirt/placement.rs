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
use common::api::libvirt_host::{HostNetwork, HostResources, HostStorage, LibvirtHostSpec};
use common::api::network::NetworkConfigurationSpec;
use common::api::normalized::Normalized;
use common::quantity::Bytes;
use common::render::libvirt::{Attached, Wire};

use super::access::Facts;
use super::hosts::Snapshot;
use crate::objects::Network;

/// The network of a host that a card without a NetworkConfiguration is on.
pub(crate) const DEFAULT_NETWORK: &str = "default";

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

/// vCPUs and memory of a block.
pub(crate) fn needs(block: &Normalized) -> HostResources {
    HostResources {
        cpu: block.cpu.vcpus(),
        memory: block.memory.max_size.max(block.memory.size),
    }
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
    let needs_images = block.disks.iter().map(|disk| &disk.image);
    let needs_images = needs_images.chain(block.cdroms.iter().map(|cdrom| &cdrom.image));
    if needs_images.flatten().next().is_some() && host.spec.image_pool.is_none() {
        return Err("has no imagePool".into());
    }
    hardware(block, &seen.facts)?;
    room(needs(block), &host.spec, &seen.facts, host.allocated)
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
    let times = |all: u128, reserved: u128, factor: Option<&str>| {
        let factor = factor.and_then(thousandths).unwrap_or(1000);
        all.saturating_sub(reserved).saturating_mul(factor) / 1000
    };
    let cores = reserved.cpu.as_deref().and_then(cores).unwrap_or_default();
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

/// A decimal such as 1.5, in thousandths; what is finer is dropped.
fn thousandths(text: &str) -> Option<u128> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    Some(whole.parse::<u128>().ok()?.checked_mul(1000)? + part.parse::<u128>().ok()?)
}

/// Cores of a quantity such as 2 or 500m, in thousandths.
fn cores(text: &str) -> Option<u128> {
    match text.strip_suffix('m') {
        Some(milli) => milli.parse().ok(),
        None => thousandths(text),
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
) -> Result<Attached, String> {
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
    if !carries(offer, vlan) {
        let tag = vlan.map_or_else(|| "untagged frames".to_owned(), |tag| format!("VLAN {tag}"));
        return Err(format!("its network '{name}' does not carry {tag}"));
    }
    let source = offer.source.clone();
    let wire = match offer.kind {
        HostNetworkType::Network => Wire::Network(source),
        HostNetworkType::Bridge => Wire::Bridge(source),
        HostNetworkType::Ovs => Wire::Ovs(source),
    };
    Ok(Attached {
        // A bridge for a VLAN takes frames without a tag.
        vlan: vlan.filter(|_| offer.kind == HostNetworkType::Ovs),
        mtu: network.and_then(|network| u32::try_from(network.mtu?).ok()),
        wire,
    })
}

/// `vlans` absent: any for Open vSwitch, none for the others.
fn carries(offer: &HostNetwork, vlan: Option<u16>) -> bool {
    let is_ovs = offer.kind == HostNetworkType::Ovs;
    match (&offer.vlans, vlan) {
        (None, None) => true,
        (Some(tags), Some(tag)) => tags.contains(&tag),
        (None, Some(_)) | (Some(_), None) => is_ovs,
    }
}
