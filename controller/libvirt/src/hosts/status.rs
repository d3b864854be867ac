//! The status of a LibvirtHost. Pure.

use common::api::choice::HostNetworkType;
use common::api::libvirt_host::{HostDomains, HostResources, LibvirtHostSpec, LibvirtHostStatus};
use common::api::status::Condition;
use common::quantity::Bytes;

use super::protection::{confined, mac_filtered};
use super::unlisted::{advice, unlisted};
use crate::capacity::allocatable;
use crate::parts::{existing_pool_fault, network_fault, offered_pool_fault};
use crate::snapshot::Snapshot;
use controller_core::conditions::condition;
use controller_core::machine_index::MachineIndex;
use controller_core::plan::Now;

/// Input of the status of a host.
#[derive(Debug)]
pub(super) struct StatusInput<'a> {
    /// Spec of the LibvirtHost.
    pub(super) spec: &'a LibvirtHostSpec,
    /// Generation that `spec` has.
    pub(super) generation: Option<i64>,
    /// The status as the API server has it.
    pub(super) old: &'a LibvirtHostStatus,
    /// `old`, plus the volumes that other hosts list for shared pools.
    pub(super) listed: &'a LibvirtHostStatus,
    /// The last poll, or why the host cannot be reached.
    pub(super) snapshot: Result<&'a Snapshot, &'a str>,
    /// What its domains and the Machines bound to it are allocated.
    pub(super) allocated: HostResources,
    /// All Machines.
    pub(super) machines: &'a MachineIndex,
}

/// The new status; `None`: nothing but times would change.
pub(super) fn status(input: &StatusInput<'_>, now: Now) -> Option<LibvirtHostStatus> {
    let mut status = LibvirtHostStatus {
        observed_generation: input.generation,
        conditions: vec![],
        ..input.old.clone()
    };
    let mut conditions = Conditions {
        input,
        now,
        list: vec![],
    };
    match input.snapshot {
        Err(why) => {
            conditions.set(
                "Reachable",
                "False",
                "Unreachable",
                format!("the host cannot be reached: {why}"),
            );
            for kind in ["PoolsReady", "NetworksReady", "MacFiltered", "Confined"] {
                conditions.set(
                    kind,
                    "Unknown",
                    "Unreachable",
                    "the host cannot be reached".into(),
                );
            }
            conditions.set(
                "Ready",
                "False",
                "Unreachable",
                format!("the host cannot be reached: {why}"),
            );
        }
        Ok(snapshot) => {
            conditions.set("Reachable", "True", "Connected", "the host answers".into());
            let pools = missing_pools(input.spec, snapshot);
            let networks = missing_networks(input.spec, snapshot);
            match shared_image_pool(input.spec) {
                // The host goes on serving what it serves: it stays ready.
                Some(why) if pools.is_empty() => {
                    conditions.set("PoolsReady", "False", "ImagePoolShared", why);
                }
                _ => conditions.set_from_faults(
                    "PoolsReady",
                    ("PoolsActive", "every pool is there and active"),
                    ("PoolMissing", &pools),
                ),
            }
            conditions.set_from_faults(
                "NetworksReady",
                ("NetworksActive", "every network is there and active"),
                ("NetworkMissing", &networks),
            );
            let protections = [
                ("MacFiltered", mac_filtered(input.spec, snapshot)),
                ("Confined", confined(snapshot)),
            ];
            for (kind, (status, reason, message)) in protections {
                conditions.set(kind, status, reason, message);
            }
            let faults: Vec<_> = pools.into_iter().chain(networks).collect();
            if input.spec.maintenance == Some(true) {
                let message = "the host is in maintenance: its Machines are observed only, and none is placed on it";
                conditions.set("Ready", "False", "Maintenance", message.into());
            } else {
                conditions.set_from_faults(
                    "Ready",
                    ("Ready", "the host runs Machines"),
                    ("Incomplete", &faults),
                );
            }
            let left_out = unlisted(&snapshot.unowned_volumes, input.listed, input.machines);
            if !left_out.is_empty() {
                let message = advice(&left_out);
                conditions.set("VolumesListed", "False", "VolumesUnlisted", message);
            }
            let is_gone = |pool: &str, volume: &str| {
                let mut gone = snapshot.gone_volumes.iter();
                gone.any(|(of, name)| (of.as_str(), name.as_str()) == (pool, volume))
            };
            status
                .kept_volumes
                .retain(|kept| !is_gone(&kept.pool, &kept.volume));
            status.unlisted_volumes = Some(u32::try_from(left_out.len()).unwrap_or(u32::MAX));
            describe(&mut status, input, snapshot, now);
        }
    }
    status.conditions = conditions.list;
    (undated(&status) != undated(input.old)).then_some(status)
}

fn describe(
    status: &mut LibvirtHostStatus,
    input: &StatusInput<'_>,
    snapshot: &Snapshot,
    now: Now,
) {
    let info = &snapshot.info;
    status.libvirt_version = Some(info.libvirt_version.clone());
    status.hypervisor_version = Some(info.hypervisor_version.clone());
    status.host_uuid = info.uuid.map(|uuid| uuid.to_string());
    status.machine_types.clone_from(&info.machine_types);
    let models = info.cpu_models.get(&input.spec.virt_type);
    status.cpu_models = models.cloned().unwrap_or_default();
    status.hugepages.clone_from(&info.hugepages);
    status.firmware = Some(info.firmware());
    status.tpm = Some(info.tpm);
    status.capacity = Some(HostResources {
        cpu: info.cpus,
        memory: Bytes::new(u128::from(info.memory)),
    });
    status.allocatable = Some(allocatable(input.spec, info));
    status.allocated = Some(input.allocated);
    let mut domains = HostDomains::default();
    for summary in snapshot.domains.iter() {
        let count = match &summary.metadata {
            None => &mut domains.foreign,
            Some(metadata) if input.machines.contains(&metadata.uid) => &mut domains.ours,
            Some(_) => &mut domains.orphaned,
        };
        *count += 1;
    }
    status.domains = Some(domains);
    status.last_seen_time = Some(now.text());
}

fn missing_pools(spec: &LibvirtHostSpec, snapshot: &Snapshot) -> Vec<String> {
    let fault = |name: &String| offered_pool_fault(&snapshot.pools, name);
    let mut named = spec.pools();
    // It holds no volumes of disks, so a deletion does not depend on it.
    named.extend(spec.console_log_pool.clone());
    let existing = spec.existing_volumes.iter().flatten();
    let existing = existing.filter_map(|offer| existing_pool_fault(&snapshot.pools, &offer.pool));
    named.iter().filter_map(fault).chain(existing).collect()
}

/// Why the image pool cannot be used: a release before this rule accepted such a LibvirtHost.
fn shared_image_pool(spec: &LibvirtHostSpec) -> Option<String> {
    let pool = spec.image_pool.as_deref()?;
    let mut offers = spec.storage.iter().flatten();
    let shared = offers.find(|offer| offer.pool == pool)?;
    Some(format!(
        "imagePool '{pool}' is also the pool of storage class '{}', which guests write to: define a pool for images alone on the host (virsh pool-define-as), write the images that image.volume names into it, each in the format in which it was made (qemu-img convert -f qcow2 -O qcow2, or -f raw), and name it in spec.imagePool; fetched images are fetched again",
        shared.storage_class
    ))
}

fn missing_networks(spec: &LibvirtHostSpec, snapshot: &Snapshot) -> Vec<String> {
    let fault = |kind, source: &str| match kind {
        HostNetworkType::Network => network_fault(&snapshot.networks, source),
        // Some drivers of libvirt cannot list the host's interfaces.
        HostNetworkType::Bridge | HostNetworkType::Ovs
            if !snapshot.bridges.is_empty() && snapshot.bridges.iter().all(|it| it != source) =>
        {
            Some(format!(
                "bridge '{source}' does not exist: create it on the host"
            ))
        }
        HostNetworkType::Bridge | HostNetworkType::Ovs => None,
    };
    let offers = spec.networks.iter().flatten();
    offers
        .filter_map(|offer| fault(offer.kind, &offer.source))
        .collect()
}

struct Conditions<'a> {
    input: &'a StatusInput<'a>,
    now: Now,
    list: Vec<Condition>,
}

impl Conditions<'_> {
    fn set_from_faults(
        &mut self,
        kind: &str,
        good: (&str, &str),
        (reason, faults): (&str, &[String]),
    ) {
        if faults.is_empty() {
            self.set(kind, "True", good.0, good.1.to_owned());
        } else {
            self.set(kind, "False", reason, faults.join("; "));
        }
    }

    fn set(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let StatusInput {
            old, generation, ..
        } = self.input;
        self.list.push(condition(
            &old.conditions,
            (kind, status),
            (reason, message),
            *generation,
            self.now,
        ));
    }
}

fn undated(status: &LibvirtHostStatus) -> LibvirtHostStatus {
    let mut status = status.clone();
    status.last_seen_time = None;
    for condition in &mut status.conditions {
        condition.last_transition_time = String::new();
    }
    status
}

#[cfg(test)]
mod tests;
