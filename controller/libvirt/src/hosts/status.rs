//! The status of a LibvirtHost. Pure.

use std::collections::BTreeSet;

use common::api::choice::HostNetworkType;
use common::api::libvirt_host::{
    HostDomains, HostFirmware, HostResources, LibvirtHostSpec, LibvirtHostStatus,
};
use common::api::status::Condition;
use common::quantity::Bytes;

use super::protection::{confined, mac_filtered};
use super::unlisted::{advice, unlisted};
use crate::capacity::allocatable;
use crate::parts::{network_fault, pool_fault};
use crate::snapshot::Snapshot;
use controller_core::conditions::condition;
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
    /// The last poll, or why the host cannot be reached.
    pub(super) snapshot: Result<&'a Snapshot, &'a str>,
    /// What its domains and the Machines bound to it are allocated.
    pub(super) allocated: HostResources,
    /// Uids of all Machines.
    pub(super) living: &'a BTreeSet<String>,
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
                _ => conditions.verdict(
                    "PoolsReady",
                    ("PoolsActive", "every pool is there and active"),
                    ("PoolMissing", &pools),
                ),
            }
            conditions.verdict(
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
                conditions.verdict(
                    "Ready",
                    ("Ready", "the host runs Machines"),
                    ("Incomplete", &faults),
                );
            }
            let left_out = unlisted(&snapshot.unowned_volumes, input.old, input.living);
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
    status.machine_types.clone_from(&info.machine_types);
    status.firmware = Some(HostFirmware {
        efi: info.efi,
        secure_boot: info.secure_boot,
    });
    status.capacity = Some(HostResources {
        cpu: info.cpus,
        memory: Bytes::new(u128::from(info.memory)),
    });
    status.allocatable = Some(allocatable(input.spec, info));
    status.allocated = Some(input.allocated);
    let mut domains = HostDomains::default();
    for summary in &snapshot.domains {
        let count = match &summary.metadata {
            None => &mut domains.foreign,
            Some(metadata) if input.living.contains(&metadata.uid) => &mut domains.ours,
            Some(_) => &mut domains.orphaned,
        };
        *count += 1;
    }
    status.domains = Some(domains);
    status.last_seen_time = Some(now.text());
}

fn missing_pools(spec: &LibvirtHostSpec, snapshot: &Snapshot) -> Vec<String> {
    let fault = |name: &String| pool_fault(&snapshot.pools, name);
    spec.pools().iter().filter_map(fault).collect()
}

/// Why the image pool is none: a release before this rule accepted such a LibvirtHost.
fn shared_image_pool(spec: &LibvirtHostSpec) -> Option<String> {
    let pool = spec.image_pool.as_deref()?;
    let mut offers = spec.storage.iter().flatten();
    let shared = offers.find(|offer| offer.pool == pool)?;
    Some(format!(
        "imagePool '{pool}' is also the pool of storage class '{}', which guests write to: define a pool for images alone on the host (virsh pool-define-as), copy the volumes that image.volume names to it (virsh vol-clone), and name it in spec.imagePool; fetched images are fetched again",
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
    fn verdict(&mut self, kind: &str, good: (&str, &str), (reason, faults): (&str, &[String])) {
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
mod tests {

    use time::{Duration, OffsetDateTime};

    use super::*;
    use crate::access::{DomainState, HostInfo, Pool, State};
    use crate::environment::{self, POOL};
    use crate::snapshot::DomainSummary;
    use common::render::libvirt::DomainMetadata;

    fn snapshot() -> Snapshot {
        let domain = |number: u128, owner: Option<&str>| DomainSummary {
            domain: DomainState {
                uuid: uuid::Uuid::from_u128(number),
                name: format!("domain-{number}"),
                metadata: None,
                state: State::ShutOff,
                reason: 0,
                vcpus: 2,
                memory: 1 << 30,
                persistent: true,
            },
            metadata: owner.map(|uid| DomainMetadata {
                uid: uid.into(),
                ..DomainMetadata::default()
            }),
        };
        Snapshot {
            info: HostInfo {
                libvirt_version: "9.0.0".into(),
                cpus: 8,
                memory: 16 << 30,
                ..HostInfo::default()
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
                linux_bridge: true,
            }],
            bridges: vec![],
            domains: vec![
                domain(1, Some("uid-of-web")),
                domain(2, Some("uid-of-a-deleted-one")),
                domain(3, None),
            ],
            ..Snapshot::default()
        }
    }

    fn written(
        spec: &LibvirtHostSpec,
        old: &LibvirtHostStatus,
        snapshot: Result<&Snapshot, &str>,
        seconds: i64,
    ) -> Option<LibvirtHostStatus> {
        let input = StatusInput {
            spec,
            generation: Some(1),
            old,
            snapshot,
            allocated: HostResources {
                cpu: 4,
                memory: Bytes::mib(1024),
            },
            living: &["uid-of-web".to_owned()].into(),
        };
        let now = OffsetDateTime::UNIX_EPOCH + Duration::seconds(seconds);
        let written = status(&input, Now(now));
        for condition in written.iter().flat_map(|status| &status.conditions) {
            assert_documented(&condition.kind, &condition.reason);
        }
        written
    }

    /// Fails if the page does not document a condition.
    fn assert_documented(kind: &str, reason: &str) {
        const PAGE: &str = include_str!("../../../../docs/operate.md");
        let row = format!("| `{kind}` | `{reason}` |");
        let of_any = format!("| any | `{reason}` |");
        let is_documented = PAGE.contains(&row) || PAGE.contains(&of_any);
        assert!(
            is_documented,
            "docs/operate.md does not document {kind}, reason {reason}"
        );
    }

    fn condition<'a>(status: &'a LibvirtHostStatus, kind: &str) -> (&'a str, &'a str, &'a str) {
        let mut all = status.conditions.iter();
        let found = all.find(|it| it.kind == kind).unwrap();
        (&found.status, &found.reason, &found.message)
    }

    #[test]
    fn the_status_has_what_was_polled_and_is_not_written_again_while_nothing_changes() {
        let mut spec = environment::host_spec();
        spec.image_pool = None;
        let snapshot = snapshot();
        let first = written(&spec, &LibvirtHostStatus::default(), Ok(&snapshot), 0).unwrap();
        assert_eq!(condition(&first, "Ready").0, "True");
        assert_eq!(condition(&first, "PoolsReady").1, "PoolsActive");
        let count = first.domains.unwrap();
        assert_eq!((count.ours, count.orphaned, count.foreign), (1, 1, 1));
        // The Machine that runs, and the foreign domain.
        assert_eq!(first.allocated.unwrap().cpu, 4);
        assert_eq!(first.allocated.unwrap().memory, Bytes::mib(1024));
        assert_eq!(
            first.last_seen_time.as_deref(),
            Some("1970-01-01T00:00:00Z")
        );
        assert_eq!(written(&spec, &first, Ok(&snapshot), 60), None);
    }

    #[test]
    fn volumes_that_no_list_names_are_counted_and_named_until_they_are_gone() {
        let spec = environment::host_spec();
        let mut snapshot = snapshot();
        let name = "default-web-00000000.root.qcow2";
        snapshot.unowned_volumes = [(POOL.to_owned(), name.to_owned())].into();
        let status = written(&spec, &LibvirtHostStatus::default(), Ok(&snapshot), 0).unwrap();
        let (listed, reason, message) = condition(&status, "VolumesListed");
        assert_eq!((listed, reason), ("False", "VolumesUnlisted"));
        assert!(message.contains(&format!("{POOL}/{name}")), "{message}");
        assert_eq!(status.unlisted_volumes, Some(1));
        assert_eq!(condition(&status, "Ready").0, "True");
        snapshot.unowned_volumes.clear();
        let status = written(&spec, &status, Ok(&snapshot), 60).unwrap();
        assert_eq!(status.unlisted_volumes, Some(0));
        assert!(
            status
                .conditions
                .iter()
                .all(|it| it.kind != "VolumesListed")
        );
    }

    #[test]
    fn a_host_whose_images_are_beside_its_disks_says_so_and_stays_ready() {
        let mut spec = environment::host_spec();
        spec.image_pool = Some(POOL.into());
        let snapshot = snapshot();
        let status = written(&spec, &LibvirtHostStatus::default(), Ok(&snapshot), 0).unwrap();
        let (ready, reason, message) = condition(&status, "PoolsReady");
        assert_eq!((ready, reason), ("False", "ImagePoolShared"));
        assert!(message.contains("storage class 'local'"), "{message}");
        assert!(message.contains("virsh pool-define-as"), "{message}");
        assert_eq!(condition(&status, "Ready").0, "True");
    }

    #[test]
    fn a_missing_pool_or_network_is_named_with_the_command_that_repairs_it() {
        let spec = environment::host_spec();
        let mut snapshot = snapshot();
        snapshot.pools[0].active = false;
        snapshot.networks.clear();
        let status = written(&spec, &LibvirtHostStatus::default(), Ok(&snapshot), 0).unwrap();
        let (ready, reason, message) = condition(&status, "Ready");
        assert_eq!((ready, reason), ("False", "Incomplete"));
        assert!(message.contains("virsh pool-start vms"), "{message}");
        assert!(
            message.contains("network 'default' does not exist"),
            "{message}"
        );
        assert_eq!(condition(&status, "NetworksReady").1, "NetworkMissing");
    }

    #[test]
    fn a_host_that_went_away_keeps_what_was_known_of_it() {
        let spec = environment::host_spec();
        let snapshot = snapshot();
        let before = written(&spec, &LibvirtHostStatus::default(), Ok(&snapshot), 0).unwrap();
        let away = written(&spec, &before, Err("no route to host"), 60).unwrap();
        let (reachable, _, message) = condition(&away, "Reachable");
        assert_eq!(reachable, "False");
        assert!(message.contains("no route to host"));
        assert_eq!(condition(&away, "PoolsReady").0, "Unknown");
        assert_eq!(away.capacity, before.capacity);
        assert_eq!(away.last_seen_time, before.last_seen_time);
    }

    #[test]
    fn a_host_in_maintenance_is_reachable_and_not_ready() {
        let mut spec = environment::host_spec();
        spec.maintenance = Some(true);
        let status = written(&spec, &LibvirtHostStatus::default(), Ok(&snapshot()), 0).unwrap();
        assert_eq!(condition(&status, "Ready").1, "Maintenance");
        assert_eq!(condition(&status, "Reachable").0, "True");
    }
}
