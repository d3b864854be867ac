//! Where Machines are, and what they may have there.

use common::api::normalized::NormalizedHardware;
use common::api::status::LastMigration;
use common::quantity::Bytes;
use common::render::libvirt::domain_uuid;
use controller_core::caches::Caches;
use controller_core::fixtures;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::reflector::store;
use kube::runtime::watcher::Event;

use super::room::bound_to;
use super::*;
use crate::access::fake::FakeLibvirt;
use crate::access::{DomainHardware, Host, HostInfo, Target};
use crate::environment::{block, host_object as host, running_domain};
use crate::snapshot::Snapshot;

fn resources(cpu: u32, gib: u64) -> HostResources {
    HostResources {
        cpu,
        memory: Bytes::mib(gib * 1024),
    }
}

impl Hosts {
    /// Reaches a host in memory, whose last poll showed this.
    pub(crate) fn connect(
        &self,
        name: &str,
        fake: FakeLibvirt,
        polled: Result<Snapshot, String>,
    ) -> Arc<ConnectedHost> {
        let target = Target {
            uri: String::new(),
            credentials: None,
        };
        let host = Host::new(Arc::new(fake), target);
        let host = Arc::new(ConnectedHost::new(name, host));
        host.set_snapshot(polled.map(Arc::new));
        self.insert(host.clone());
        host
    }
}

/// Machines that are bound to the host `alpha`.
fn caches(uids: &[&str]) -> Caches {
    let (machines, mut writer) = store();
    let caches = Caches::new(machines);
    for uid in uids {
        let machine = fixtures::cached(uid, uid, block(), Some("alpha"));
        caches.apply(&Event::Apply(machine), &mut writer, "cluster");
    }
    caches
}

/// A host of 8 CPUs and 12Gi with a domain of 2 vCPUs and this memory for each Machine.
fn snapshot(machines: &[(&str, u64)]) -> Snapshot {
    let domain = |(uid, gib): &(&str, u64)| running_domain(Some(uid), gib << 30);
    Snapshot {
        info: HostInfo {
            cpus: 8,
            memory: 12 << 30,
            ..HostInfo::default()
        },
        domains: machines.iter().map(domain).collect(),
        ..Snapshot::default()
    }
}

/// A Machine that has 2 CPUs and 2 MiB.
fn asking(uid: &str, asks: HostResources) -> Asking<'_> {
    Asking {
        uid,
        asks,
        has: resources(2, 2),
        is_dedicated: false,
        reserves: true,
    }
}

#[test]
fn of_two_machines_that_grow_at_the_same_time_one_gets_what_is_left() {
    let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
    let (alpha, caches) = (host("alpha"), caches(&["a", "b"]));
    let polled = snapshot(&[("a", 2), ("b", 2)]);
    let room = |snapshot: &Snapshot, uid| {
        hosts.room(&alpha, snapshot, &caches, &asking(uid, resources(2, 8)))
    };
    assert_eq!(room(&polled, "a"), resources(6, 10));
    assert_eq!(room(&polled, "b"), resources(6, 4), "a has the reservation");
    let all = |snapshot: &Snapshot| hosts.allocated(&alpha, snapshot, &caches, None);
    assert_eq!(all(&polled), resources(4, 10));

    // A poll confirms the reservation.
    let polled = snapshot(&[("a", 8), ("b", 2)]);
    hosts.remove_confirmed_reservations(&alpha, &polled, &caches);
    assert_eq!(all(&polled), resources(4, 10));
    assert!(hosts.reserved().is_empty());

    // What a Machine no longer asks for is free again.
    let polled = snapshot(&[("a", 2), ("b", 2)]);
    room(&polled, "a");
    hosts.reduce_reservation("a", resources(2, 2));
    assert_eq!(all(&polled), resources(4, 4));
}

/// A moved Machine is bound to its new host before the API server shows that.
#[test]
fn a_machine_counts_on_the_host_that_it_is_reserved_on_and_not_on_that_of_its_status() {
    let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
    let caches = caches(&["a", "b"]);
    let bound = |host: &str| -> Vec<_> {
        let bound = bound_to(&hosts.reserved(), host, &caches).into_iter();
        bound
            .map(|(machine, size)| (machine.uid.to_string(), size))
            .collect()
    };
    assert_eq!(bound("alpha"), [("a".into(), None), ("b".into(), None)]);
    hosts.reserve("a", "beta", resources(2, 2));
    hosts.reserve("gone", "beta", resources(2, 2));
    assert_eq!(bound("alpha"), [("b".into(), None)]);
    assert_eq!(bound("beta"), [("a".into(), Some(resources(2, 2)))]);
    hosts.reserve("b", "alpha", resources(2, 2));
    assert_eq!(bound("alpha"), [("b".into(), Some(resources(2, 2)))]);
}

fn connect(hosts: &Hosts, name: &str, polled: Result<Snapshot, String>) {
    hosts.connect(name, FakeLibvirt::new(), polled);
}

#[test]
fn the_domain_proves_on_which_host_a_machine_is_and_the_status_is_a_hint() {
    let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
    connect(&hosts, "alpha", Ok(snapshot(&[("a", 2)])));
    connect(&hosts, "beta", Ok(snapshot(&[])));
    let host_of = |uid, hint| hosts.host_of(uid, hint);
    let (alpha, beta) = (Some("alpha".to_owned()), Some("beta".to_owned()));
    assert_eq!(host_of("a", None), alpha, "the status was lost");
    assert_eq!(host_of("a", Some("beta")), alpha, "the status was forged");
    hosts
        .get("alpha")
        .unwrap()
        .set_snapshot(Err("no route".into()));
    assert_eq!(host_of("a", Some("beta")), alpha, "by the last answer");
    // Its connections were opened again with other credentials.
    connect(&hosts, "alpha", Err("no route".into()));
    assert_eq!(host_of("a", Some("beta")), alpha);

    assert_eq!(host_of("new", None), None);
    assert_eq!(host_of("new", Some("beta")), beta);
    hosts.reserve("new", "alpha", resources(2, 2));
    assert_eq!(host_of("new", Some("beta")), alpha, "bound a moment ago");
    hosts.remove("alpha");
    assert_eq!(host_of("new", Some("beta")), beta, "the host was deleted");
}

#[test]
fn a_machine_that_is_moved_is_where_the_polls_show_it_and_then_where_it_is_moved_to() {
    let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
    let mut machine = fixtures::machine(block());
    machine.metadata.uid = Some("a".into());
    machine.status.host = Some("beta".into());
    machine.status.last_migration = Some(LastMigration {
        from: Some("alpha".into()),
        node: Some("beta".into()),
        ..LastMigration::default()
    });
    connect(&hosts, "alpha", Ok(snapshot(&[("a", 2)])));
    connect(&hosts, "beta", Ok(snapshot(&[])));
    hosts.reserve("a", "beta", resources(2, 2));
    let on = |machine: &Machine| hosts.host_of_machine(machine).unwrap();
    assert_eq!(on(&machine), "alpha", "it has not left it");
    let mut deleted = machine.clone();
    deleted.metadata.deletion_timestamp =
        Some(Time(std::time::SystemTime::UNIX_EPOCH.try_into().unwrap()));
    assert_eq!(on(&deleted), "alpha");
    connect(&hosts, "alpha", Ok(snapshot(&[])));
    assert_eq!(on(&machine), "beta");
    assert_eq!(on(&deleted), "alpha", "libvirt knows its volumes there");
    // A move that was given up takes no room on the other host.
    hosts.release_reservation_elsewhere("a", "alpha");
    assert!(hosts.reserved().is_empty());
}

#[test]
fn no_guest_is_made_while_a_host_of_which_nothing_is_known_may_have_the_domain() {
    let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
    let mut away = host("alpha");
    away.status.last_seen_time = Some("2026-01-01T00:00:00Z".into());
    let objects = Cache::default();
    for event in [Event::Init, Event::InitApply(away), Event::InitDone] {
        objects.apply(event, |_| ());
    }
    let machine = fixtures::machine(block());
    let possible = || hosts.possible_hosts(&machine, &objects);
    assert_eq!(possible(), [("alpha".to_owned(), NOT_POLLED.to_owned())]);
    connect(&hosts, "alpha", Err("no route".into()));
    assert_eq!(possible(), [("alpha".to_owned(), "no route".to_owned())]);
    // Once it answered, it is known what it has.
    connect(&hosts, "alpha", Ok(snapshot(&[])));
    assert_eq!(possible(), []);
    hosts
        .get("alpha")
        .unwrap()
        .set_snapshot(Err("no route".into()));
    assert_eq!(possible(), []);
}

#[test]
fn a_request_that_does_not_fit_takes_no_room_from_others() {
    let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
    let (alpha, caches) = (host("alpha"), caches(&["a", "b"]));
    let polled = snapshot(&[("a", 2), ("b", 2)]);
    let asks = asking("a", resources(2, 12 * 1024));
    let most = hosts.room(&alpha, &polled, &caches, &asks);
    assert_eq!(most, resources(6, 10));
    let all = hosts.allocated(&alpha, &polled, &caches, None);
    assert_eq!(all, resources(4, 4));
}

/// The host keeps a CPU for each vCPU that can be plugged in: nobody else runs on it.
#[test]
fn dedicated_vcpus_count_as_many_as_the_guest_can_get() {
    let hosts = Hosts::new(Arc::new(FakeLibvirt::new()));
    let mut alpha = host("alpha");
    alpha.spec.dedicated_cpus = Some("8-15".into());
    let mut dedicated = block();
    dedicated.hardware = Some(NormalizedHardware {
        dedicated_cpu: true,
        ..NormalizedHardware::default()
    });
    dedicated.cpu.cores = 1;
    dedicated.cpu.max_sockets = 8;
    let (machines, mut writer) = store();
    let caches = Caches::new(machines);
    let machine = fixtures::cached("a", "a", dedicated, Some("alpha"));
    caches.apply(&Event::Apply(machine), &mut writer, "cluster");
    let has_domain = |defined: bool| {
        let mut polled = snapshot(if defined { &[("a", 2)] } else { &[] });
        polled.info.cpus = 16;
        if defined {
            let hardware = DomainHardware {
                cpus: (8..16).collect(),
                ..DomainHardware::default()
            };
            polled.hardware.insert(domain_uuid("a"), hardware);
        }
        polled
    };
    for polled in [has_domain(false), has_domain(true)] {
        let all = hosts.allocated(&alpha, &polled, &caches, None);
        assert_eq!(all.cpu, 8);
        let shared = asking("b", resources(15, 2));
        let most = hosts.room(&alpha, &polled, &caches, &shared);
        assert_eq!(most.cpu, 8, "those that are not dedicated");
    }
}
