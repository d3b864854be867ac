//! The status of a LibvirtHost. Pure.

use std::collections::BTreeSet;

use common::api::choice::HostNetworkType;
use common::api::libvirt_host::{
    HostDomains, HostFirmware, HostResources, LibvirtHostSpec, LibvirtHostStatus,
};
use common::api::status::Condition;
use common::quantity::Bytes;

use super::{Snapshot, foreign, sum};
use crate::placement::allocatable;
use controller_core::conditions::condition;
use controller_core::plan::Now;

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
        let Known {
            old, generation, ..
        } = self.known;
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
mod tests {
    use time::{Duration, OffsetDateTime};

    use super::*;
    use crate::access::{DomainState, Facts, Pool, State};
    use crate::hosts::Inhabitant;
    use crate::world::{POOL, World, block};
    use common::render::libvirt::DomainMetadata;

    fn seen() -> Snapshot {
        let domain = |number: u128, owner: Option<&str>| Inhabitant {
            domain: DomainState {
                uuid: uuid::Uuid::from_u128(number),
                name: format!("domain-{number}"),
                mark: None,
                state: State::ShutOff,
                reason: 0,
                vcpus: 2,
                memory: 1 << 30,
                persistent: true,
            },
            mark: owner.map(|uid| DomainMetadata {
                uid: uid.into(),
                ..DomainMetadata::default()
            }),
        };
        Snapshot {
            facts: Facts {
                libvirt_version: "9.0.0".into(),
                cpus: 8,
                memory: 16 << 30,
                ..Facts::default()
            },
            pools: vec![Pool {
                name: POOL.into(),
                active: true,
                capacity: 1,
                available: 1,
            }],
            networks: vec![crate::access::Network {
                name: "default".into(),
                active: true,
                bridge: None,
            }],
            bridges: vec![],
            domains: vec![
                domain(1, Some("uid-of-web")),
                domain(2, Some("uid-of-one-that-is-gone")),
                domain(3, None),
            ],
        }
    }

    fn told(
        spec: &LibvirtHostSpec,
        old: &LibvirtHostStatus,
        seen: Result<&Snapshot, &str>,
        seconds: i64,
    ) -> Option<LibvirtHostStatus> {
        let known = Known {
            spec,
            generation: Some(1),
            old,
            seen,
            allocated: HostResources {
                cpu: 4,
                memory: Bytes::mib(1024),
            },
            living: &["uid-of-web".to_owned()].into(),
        };
        let now = OffsetDateTime::UNIX_EPOCH + Duration::seconds(seconds);
        status(&known, Now(now))
    }

    fn condition<'a>(status: &'a LibvirtHostStatus, kind: &str) -> (&'a str, &'a str, &'a str) {
        let mut all = status.conditions.iter();
        let found = all.find(|it| it.kind == kind).unwrap();
        (&found.status, &found.reason, &found.message)
    }

    #[test]
    fn a_host_tells_what_it_has_and_nothing_new_is_nothing_to_write() {
        let spec = World::new(block()).object.spec;
        let seen = seen();
        let first = told(&spec, &LibvirtHostStatus::default(), Ok(&seen), 0).unwrap();
        assert_eq!(condition(&first, "Ready").0, "True");
        assert_eq!(condition(&first, "PoolsReady").1, "PoolsActive");
        let count = first.domains.unwrap();
        assert_eq!((count.ours, count.orphaned, count.foreign), (1, 1, 1));
        // What Machines are promised, and the domain that is nobody's.
        assert_eq!(first.allocated.unwrap().cpu, 6);
        assert_eq!(first.allocated.unwrap().memory, Bytes::mib(2048));
        assert_eq!(
            first.last_seen_time.as_deref(),
            Some("1970-01-01T00:00:00Z")
        );
        assert_eq!(told(&spec, &first, Ok(&seen), 60), None);
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let spec = World::new(block()).object.spec;
        let mut seen = seen();
        seen.pools[0].active = false;
        seen.networks.clear();
        let status = told(&spec, &LibvirtHostStatus::default(), Ok(&seen), 0).unwrap();
        let (ready, reason, message) = condition(&status, "Ready");
        assert_eq!((ready, reason), ("False", "Incomplete"));
        assert!(message.contains("virsh pool-start vms"), "{message}");
        assert!(
            message.contains("network 'default' is not there"),
            "{message}"
        );
        assert_eq!(condition(&status, "NetworksReady").1, "NetworkMissing");
    }

    #[test]
    fn a_host_that_went_away_keeps_what_was_known_of_it() {
        let spec = World::new(block()).object.spec;
        let seen = seen();
        let before = told(&spec, &LibvirtHostStatus::default(), Ok(&seen), 0).unwrap();
        let away = told(&spec, &before, Err("no route to host"), 60).unwrap();
        let (reachable, _, message) = condition(&away, "Reachable");
        assert_eq!(reachable, "False");
        assert!(message.contains("no route to host"));
        assert_eq!(condition(&away, "PoolsReady").0, "Unknown");
        assert_eq!(away.capacity, before.capacity);
        assert_eq!(away.last_seen_time, before.last_seen_time);
    }

    #[test]
    fn maintenance_is_told() {
        let mut spec = World::new(block()).object.spec;
        spec.maintenance = Some(true);
        let status = told(&spec, &LibvirtHostStatus::default(), Ok(&seen()), 0).unwrap();
        assert_eq!(condition(&status, "Ready").1, "Maintenance");
        assert_eq!(condition(&status, "Reachable").0, "True");
    }
}
