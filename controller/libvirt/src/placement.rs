//! Which host a new Machine gets: the least allocated of those that can run it. Pure.
//!
//! ```text
//! hosts ─ filter: reachable, schedulable, labels, classes, networks, firmware, room ─▶ least allocated ─▶ status.host
//!               └─ why not, host by host
//! ```
//! Room is what Machines and foreign domains are allocated, not what libvirt reports as free memory: a guest
//! that is off is started again, and an idle one uses its memory later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::api::choice::VirtType;
use common::api::libvirt_host::{HostResources, LibvirtHostSpec};
use common::api::normalized::Normalized;
use common::catalog::{HardwareNeed, HostHardware};
use common::names::LABEL_ZONE;
use common::quantity::Bytes;
use controller_core::machine::requested_resources;
use controller_core::objects::Network;

use crate::access::HostInfo;
use crate::capacity::allocatable;
use crate::groups::{HostMembers, Member, count_sharing};
use crate::hardware::Cpus;
use crate::offers::{attach, images, is_overlay, source_fault, storage};
use crate::parts::{existing_pool_fault, pool_type_fault};
use crate::pool_space::StorageFactor;
use crate::snapshot::Snapshot;
use crate::switches::Switches;

/// Hosts are compared by how full they are, in parts of a million.
const SHARES: u128 = 1_000_000;

/// A host to choose from.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// Name of the LibvirtHost.
    pub(crate) name: String,
    /// Labels of the LibvirtHost, which a Machine's `nodeSelector` has to match.
    pub(crate) labels: BTreeMap<String, String>,
    /// Spec of the LibvirtHost.
    pub(crate) spec: LibvirtHostSpec,
    /// The last poll, or why the host cannot be reached.
    pub(crate) snapshot: Result<Arc<Snapshot>, String>,
    /// What domains on the host and Machines bound to it are allocated.
    pub(crate) allocated: HostResources,
    /// How many dedicated CPUs are left.
    pub(crate) cpus_left: u32,
    /// How many devices of each name that it offers are left.
    pub(crate) devices_left: BTreeMap<String, usize>,
    /// Groups of the Machines that are bound to it.
    pub(crate) groups: Vec<Member>,
}

/// The host that gets a Machine; or why none can run it, host by host.
pub(crate) fn choose<'a>(
    namespace: &str,
    block: &Normalized,
    networks: &BTreeMap<String, Arc<Network>>,
    hosts: &'a [Candidate],
) -> Result<&'a str, String> {
    best(namespace, block, networks, hosts, true).map_err(|unfit| {
        if hosts.is_empty() {
            return "no LibvirtHost is registered: create one; the Machine continues automatically then"
                .into();
        }
        format!(
            "no LibvirtHost can run it: {}; the Machine continues automatically when one can",
            unfit.join("; ")
        )
    })
}

/// The host that gets a Machine; or for each host why it cannot run it. `makes_volumes`: the volumes of its disks do not
/// exist yet.
pub(crate) fn best<'a>(
    namespace: &str,
    block: &Normalized,
    networks: &BTreeMap<String, Arc<Network>>,
    hosts: impl IntoIterator<Item = &'a Candidate> + Clone,
    makes_volumes: bool,
) -> Result<&'a str, Vec<String>> {
    let mut unfit = Vec::new();
    let mut fit = Vec::new();
    let members = hosts.clone().into_iter().map(|host| HostMembers {
        name: &host.name,
        zone: host.labels.get(LABEL_ZONE).map(String::as_str),
        members: &host.groups,
    });
    let members: Vec<_> = members.collect();
    let count_sharing = |own| {
        let group = block.group();
        group.map_or(Ok(0), |group| {
            count_sharing(namespace, group, own, &members)
        })
    };
    for (host, own) in hosts.into_iter().zip(&members) {
        match fits(namespace, block, networks, host, makes_volumes)
            .and_then(|load| Ok((count_sharing(own)?, load)))
        {
            Ok((sharing, load)) => {
                // Without a pool for it the output of the console would be lost.
                let loses_log =
                    block.console_log() == Some(true) && host.spec.console_log_pool.is_none();
                fit.push(((sharing, loses_log, load), host.name.as_str()));
            }
            Err(why) => unfit.push(format!("{}: {why}", host.name)),
        }
    }
    let chosen = fit.into_iter().min();
    chosen.map(|(_, name)| name).ok_or(unfit)
}

/// How full a host would be with the Machine, as the fuller of vCPUs and memory; or why it cannot run it.
fn fits(
    namespace: &str,
    block: &Normalized,
    networks: &BTreeMap<String, Arc<Network>>,
    host: &Candidate,
    makes_volumes: bool,
) -> Result<u128, String> {
    let snapshot = host
        .snapshot
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
        if !snapshot.has_pool(&offer.pool) {
            return Err(format!("its pool '{}' is not active", offer.pool));
        }
    }
    for nic in &block.networks {
        let network = nic.network_name.as_ref().map(|name| {
            let known = networks.get(name).map(|network| &network.spec);
            known.ok_or_else(|| format!("NetworkConfiguration '{name}' does not exist"))
        });
        attach(&host.spec, &Switches::of(snapshot), network.transpose()?)?;
    }
    if images(block).next().is_some() && host.spec.image_pool.is_none() {
        return Err("has no imagePool".into());
    }
    for image in images(block) {
        if let Some(why) = source_fault(image, host.spec.image_sources.as_deref()) {
            return Err(format!("fetches no such image: {why}"));
        }
    }
    existing(namespace, block, &host.spec, snapshot)?;
    hardware(block, host.spec.virt_type, &snapshot.info)?;
    devices(block, host)?;
    if makes_volumes {
        space(block, &host.spec, snapshot)?;
    }
    dedicated_cpus(block, host, &snapshot.info)?;
    room(
        requested_resources(block),
        &host.spec,
        &snapshot.info,
        host.allocated
            .beside_dedicated(host.cpus_left, block.has_dedicated_cpus()),
    )
}

/// Whether the host has the existing volumes that disks are to be on.
fn existing(
    namespace: &str,
    block: &Normalized,
    spec: &LibvirtHostSpec,
    snapshot: &Snapshot,
) -> Result<(), String> {
    for disk in &block.existing_disks {
        let Some(offer) = spec.existing_volumes_of(namespace) else {
            return Err(format!(
                "offers no existing volumes to namespace '{namespace}'"
            ));
        };
        if let Some(why) = existing_pool_fault(&snapshot.pools, &offer.pool) {
            return Err(format!("its {why}"));
        }
        let key = (offer.pool.clone(), disk.source().to_owned());
        if !snapshot.existing_volumes.contains(&key) {
            let (pool, volume) = key;
            return Err(format!("has no volume '{volume}' in pool '{pool}'"));
        }
    }
    Ok(())
}

/// Whether the pools have space for all disks.
fn space(block: &Normalized, spec: &LibvirtHostSpec, snapshot: &Snapshot) -> Result<(), String> {
    let factor = StorageFactor::of(spec);
    let mut needs: BTreeMap<&str, u128> = BTreeMap::new();
    for disk in &block.disks {
        let Some(offer) = storage(spec, &disk.storage_class) else {
            continue;
        };
        if let Some(why) = pool_type_fault(&snapshot.pools, &offer.pool) {
            return Err(format!("its {why}"));
        }
        let charge = factor.charge(disk.size, is_overlay(disk, offer));
        let needed = needs.entry(&offer.pool).or_default();
        *needed = needed.saturating_add(charge);
        let left = snapshot.space_left.get(&offer.pool).copied().unwrap_or(0);
        if *needed > left {
            let [left, needed] = [left, *needed].map(Bytes::new);
            return Err(format!(
                "its pool '{}' has room for {left}, {needed} are needed",
                offer.pool
            ));
        }
    }
    Ok(())
}

/// Whether the hypervisor has what the guest needs, as far as it says what it has.
fn hardware(block: &Normalized, virt_type: VirtType, info: &HostInfo) -> Result<(), String> {
    let models = info.cpu_models.get(&virt_type);
    let has = HostHardware {
        machine_types: info.machine_types.as_slice().into(),
        firmware: Some(info.firmware()),
        tpm: Some(info.tpm),
        cpu_models: models.map_or(&[][..], Vec::as_slice).into(),
        hugepages: info.hugepages.as_deref().map(Into::into),
    };
    let Some(lacks) = HardwareNeed::all_of(block).find(|need| !has.offers(need)) else {
        return Ok(());
    };
    Err(match lacks {
        HardwareNeed::MachineType(kind) => format!("its hypervisor has no machine type {kind}"),
        HardwareNeed::Efi => "has no EFI firmware (install ovmf there)".to_owned(),
        HardwareNeed::SecureBoot => {
            "has no EFI firmware with secure boot (install ovmf there)".to_owned()
        }
        HardwareNeed::Tpm => "cannot emulate a TPM (install swtpm-tools there)".to_owned(),
        HardwareNeed::CpuModel(model) => {
            format!("its guests cannot have the CPU model {model} with virtType {virt_type}")
        }
        HardwareNeed::Hugepages(size) => format!("has no huge pages of {size}"),
    })
}

/// Whether the host has the devices left that the Machine is to have for itself.
fn devices(block: &Normalized, host: &Candidate) -> Result<(), String> {
    for (name, count) in block.device_counts() {
        let Some(left) = host.devices_left.get(name) else {
            return Err(format!("offers no device '{name}'"));
        };
        if count > *left {
            let all = host.spec.devices_named(name).count();
            return Err(format!(
                "has {left} of {all} devices '{name}' left, {count} needed"
            ));
        }
    }
    Ok(())
}

/// Whether the host has the CPUs left that the Machine is to have for its vCPUs alone.
fn dedicated_cpus(block: &Normalized, host: &Candidate, info: &HostInfo) -> Result<(), String> {
    let needed = block.dedicated_cpus().unwrap_or(0);
    if needed <= host.cpus_left {
        return Ok(());
    }
    let all = Cpus::of(&host.spec, info.cpus).dedicated.len();
    Err(match all {
        0 => "has no dedicated CPUs".to_owned(),
        all => format!(
            "has {} of {all} dedicated CPUs left, {needed} are needed",
            host.cpus_left
        ),
    })
}

fn room(
    needs: HostResources,
    spec: &LibvirtHostSpec,
    info: &HostInfo,
    allocated: HostResources,
) -> Result<u128, String> {
    let all = allocatable(spec, info);
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

/// The storage classes that the disks of a block name.
fn classes(block: &Normalized) -> BTreeSet<&str> {
    block
        .disks
        .iter()
        .map(|disk| disk.storage_class.as_str())
        .collect()
}

#[cfg(test)]
mod tests;
