use time::{Duration, OffsetDateTime};

use super::*;
use crate::access::{DomainState, HostInfo, Pool, State};
use crate::environment::{self, POOL};
use crate::snapshot::DomainSummary;
use common::render::libvirt::DomainMetadata;
use controller_core::fixtures;

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
            path: None,
            kind: "dir".into(),
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
        domains: [
            domain(1, Some("uid-of-web")),
            domain(2, Some("uid-of-a-deleted-one")),
            domain(3, None),
        ]
        .into_iter()
        .collect(),
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
        listed: old,
        snapshot,
        allocated: HostResources {
            cpu: 4,
            memory: Bytes::mib(1024),
        },
        machines: &fixtures::machine_index(&["uid-of-web"]),
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
    const PAGE: &str = include_str!("../../../../../docs/operate.md");
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
fn a_pool_in_which_new_volumes_may_show_old_content_is_named_with_its_type() {
    let spec = environment::host_spec();
    let mut snapshot = snapshot();
    snapshot.pools[0].kind = "logical".into();
    let status = written(&spec, &LibvirtHostStatus::default(), Ok(&snapshot), 0).unwrap();
    let (ready, reason, message) = condition(&status, "PoolsReady");
    assert_eq!((ready, reason), ("False", "PoolMissing"));
    assert!(
        message.contains("pool 'vms' is of type 'logical'"),
        "{message}"
    );
    assert_eq!(condition(&status, "Ready").0, "False");
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
