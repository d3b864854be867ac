//! The status of a LibvirtHost. Pure.

use std::collections::BTreeSet;

use common::api::choice::HostNetworkType;
use common::api::libvirt_host::{
    HostDomains, HostFirmware, HostResources, LibvirtHostSpec, LibvirtHostStatus,
};
use common::api::status::Condition;
use common::quantity::Bytes;

use super::{NOTHING, Snapshot, foreign, sum};
use crate::libvirt::placement::allocatable;
use crate::plan::Now;

/// What is known of a host when its status is written.
#[derive(Debug)]
pub(super) struct Known<'a> {
    pub(super) spec: &'a LibvirtHostSpec,
    pub(super) generation: Option<i64>,
    pub(super) old: &'a LibvirtHostStatus,
    /// What was seen, or why the host cannot be asked.
    pub(super) seen: Result<&'a Snapshot, &'a str>,
    /// What Machines are promised there.
    pub(super) allocated: HostResources,
    /// Uids of the Machines that live.
    pub(super) living: &'a BTreeSet<String>,
}

/// The status, if it says anything that the old one does not.
pub(super) fn status(known: &Known<'_>, now: Now) -> Option<LibvirtHostStatus> {
    let mut status = LibvirtHostStatus {
        observed_generation: known.generation,
        conditions: vec![],
        ..known.old.clone()
    };
    let mut conditions = Conditions {
        known,
        now,
        list: vec![],
    };
    match known.seen {
        Err(why) => {
            conditions.set(
                "Reachable",
                "False",
                "Unreachable",
                format!("the host cannot be asked: {why}"),
            );
            for kind in ["PoolsReady", "NetworksReady"] {
                conditions.set(
                    kind,
                    "Unknown",
                    "Unreachable",
                    "the host cannot be asked".into(),
                );
            }
            conditions.set(
                "Ready",
                "False",
                "Unreachable",
                format!("the host cannot be asked: {why}"),
            );
        }
        Ok(seen) => {
            conditions.set("Reachable", "True", "Connected", "the host answers".into());
            let pools = missing_pools(known.spec, seen);
            let networks = missing_networks(known.spec, seen);
            conditions.verdict(
                "PoolsReady",
                ("PoolsActive", "every pool is there and active"),
                ("PoolMissing", &pools),
            );
            conditions.verdict(
                "NetworksReady",
                ("NetworksActive", "every network is there and active"),
                ("NetworkMissing", &networks),
            );
            let faults: Vec<_> = pools.into_iter().chain(networks).collect();
            if known.spec.maintenance == Some(true) {
                let told = "the host is in maintenance: its Machines are observed only, and none is placed on it";
                conditions.set("Ready", "False", "Maintenance", told.into());
            } else {
                conditions.verdict(
                    "Ready",
                    ("Ready", "the host runs Machines"),
                    ("Incomplete", &faults),
                );
            }
            describe(&mut status, known, seen, now);
        }
    }
    status.conditions = conditions.list;
    (undated(&status) != undated(known.old)).then_some(status)
}

fn describe(status: &mut LibvirtHostStatus, known: &Known<'_>, seen: &Snapshot, now: Now) {
    let facts = &seen.facts;
    status.libvirt_version = Some(facts.libvirt_version.clone());
    status.hypervisor_version = Some(facts.hypervisor_version.clone());
    status.machine_types.clone_from(&facts.machine_types);
    status.firmware = Some(HostFirmware {
        efi: facts.efi,
        secure_boot: facts.secure_boot,
    });
    status.capacity = Some(HostResources {
        cpu: facts.cpus,
        memory: Bytes::new(u128::from(facts.memory)),
    });
    status.allocatable = Some(allocatable(known.spec, facts));
    status.allocated = Some(sum(known.allocated, foreign(seen)));
    let mut domains = HostDomains::default();
    for inhabitant in &seen.domains {
        let count = match &inhabitant.mark {
            None => &mut domains.foreign,
            Some(mark) if known.living.contains(&mark.uid) => &mut domains.ours,
            Some(_) => &mut domains.orphaned,
        };
        *count += 1;
    }
    status.domains = Some(domains);
    status.last_seen_time = Some(now.text());
    if status.allocated.is_none() {
        status.allocated = Some(NOTHING);
    }
}

fn missing_pools(spec: &LibvirtHostSpec, seen: &Snapshot) -> Vec<String> {
    let classes = spec
        .storage
        .iter()
        .flatten()
        .map(|offer| offer.pool.as_str());
    let named: BTreeSet<&str> = classes.chain(spec.image_pool.as_deref()).collect();
    let fault = |name: &str| match seen.pools.iter().find(|pool| pool.name == name) {
        None => Some(format!(
            "pool '{name}' is not there: define it on the host (virsh pool-define-as)"
        )),
        Some(pool) if !pool.active => Some(format!(
            "pool '{name}' is not active: start it on the host (virsh pool-start {name})"
        )),
        Some(_) => None,
    };
    named.into_iter().filter_map(fault).collect()
}

fn missing_networks(spec: &LibvirtHostSpec, seen: &Snapshot) -> Vec<String> {
    let fault = |kind, source: &str| match kind {
        HostNetworkType::Network => match seen.networks.iter().find(|it| it.name == source) {
            None => Some(format!(
                "network '{source}' is not there: define it on the host (virsh net-define)"
            )),
            Some(network) if !network.active => Some(format!(
                "network '{source}' is not active: start it on the host (virsh net-start {source})"
            )),
            Some(_) => None,
        },
        // Not every libvirt can tell what interfaces there are.
        HostNetworkType::Bridge | HostNetworkType::Ovs
            if !seen.bridges.is_empty() && seen.bridges.iter().all(|it| it != source) =>
        {
            Some(format!(
                "bridge '{source}' is not there: make it on the host"
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
    known: &'a Known<'a>,
    now: Now,
    list: Vec<Condition>,
}

impl Conditions<'_> {
    fn verdict(&mut self, kind: &str, good: (&str, &str), (reason, faults): (&str, &[String])) {
        if faults.is_empty() {
            self.set(kind, "True", good.0, good.1.to_owned());
        } else {
            self.set(kind, "False", reason, faults.join("; "));
        }
    }

    fn set(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let old = self
            .known
            .old
            .conditions
            .iter()
            .find(|old| old.kind == kind);
        let since = match old {
            Some(old) if old.status == status => old.last_transition_time.clone(),
            _ => self.now.text(),
        };
        self.list.push(Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: since,
            observed_generation: self.known.generation,
        });
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
