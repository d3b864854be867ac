//! What a Machine counts with while its guest has other values than its block.

use common::api::status::PendingChange;

use super::*;

/// A running Machine whose block of this generation asks for `cpu` cores, as the controller reported it at another one.
/// Its guest has `runs` cores.
fn shrunk(cpu: u32, generation: i64, observed: i64, runs: Option<u32>) -> CachedMachine {
    let mut machine = running("a", cpu).decompress();
    machine.metadata.generation = Some(generation);
    machine.status.observed_generation = Some(observed);
    let change = |runs: u32| PendingChange {
        field: "cpu.cores".to_owned(),
        current: runs.to_string(),
        desired: cpu.to_string(),
        action: "Restart".to_owned(),
    };
    machine.status.pending_changes = runs.map(change).into_iter().collect();
    machine.into()
}

#[test]
fn a_guest_that_is_to_have_less_counts_with_what_it_has_until_it_was_restarted() {
    let mut cluster = Cluster::new();
    let is_held = |cluster: &Cluster| matches!(cluster.decide("new"), Decision::Held(_));
    cluster.apply(shrunk(4, 1, 1, None));
    cluster.apply(new("new", 1, 3));
    assert_eq!(cluster.decide("a"), Decision::Granted);
    assert!(is_held(&cluster));
    // Stored, and then reported.
    for observed in [1, 2] {
        cluster.apply(shrunk(1, 2, observed, (observed == 2).then_some(4)));
        assert!(is_held(&cluster), "{observed}");
        assert_eq!(cluster.decide("a"), Decision::Granted);
        assert!(is_held(&cluster), "{observed}");
    }
    // Another replica knows what was granted only from the Machines.
    for first in ["a", "new"] {
        cluster.caches.quotas.remove_grants();
        cluster.decide(first);
        assert_eq!(cluster.decide("a"), Decision::Granted);
        assert!(is_held(&cluster), "{first} first");
    }
    cluster.apply(shrunk(1, 2, 2, None));
    assert!(!is_held(&cluster));
    cluster.apply(shrunk(2, 3, 3, None));
    let decision = cluster.decide("a");
    assert!(matches!(decision, Decision::Held(Hold::Growth(_))));
}

#[test]
fn a_new_list_of_machines_does_not_forget_what_an_unreported_guest_has() {
    let mut cluster = Cluster::new();
    cluster.apply(shrunk(4, 1, 1, None));
    let unreported = shrunk(1, 2, 1, None);
    cluster.apply(unreported.clone());
    for event in [
        Event::Init,
        Event::InitApply(unreported.clone()),
        Event::InitDone,
    ] {
        cluster.event(&event);
    }
    assert_eq!(cluster.caches.address_index.usage_of(&unreported).cpu, 4);
}

#[test]
fn nothing_is_given_back_while_the_guest_cannot_be_observed() {
    let mut cluster = Cluster::new();
    cluster.apply(shrunk(4, 1, 1, None));
    let mut unknown = shrunk(1, 2, 2, None).decompress();
    unknown.status.conditions = fixtures::ready("Unknown", "HostUnreachable").conditions;
    let unknown: CachedMachine = unknown.into();
    cluster.apply(unknown.clone());
    assert_eq!(cluster.caches.address_index.usage_of(&unknown).cpu, 4);
}

/// A running Machine with this block and pending change.
fn changing(block: &Normalized, field: &str, current: &str) -> CachedMachine {
    let mut machine = stored("a", 9, block, &json!({"phase": "Running"})).decompress();
    machine.status.pending_changes = vec![PendingChange {
        field: field.to_owned(),
        current: current.to_owned(),
        desired: "less".to_owned(),
        action: "Restart".to_owned(),
    }];
    machine.into()
}

#[test]
fn memory_and_dedicated_cpus_count_as_the_guest_has_them() {
    let mut cluster = Cluster::new();
    let mut small = fixtures::block();
    small.memory.size = Bytes::mib(512);
    small.memory.max_size = Bytes::mib(512);
    let machine = changing(&small, "memory.size", "64Gi");
    cluster.apply(machine.clone());
    let usage = |cluster: &Cluster| cluster.caches.address_index.usage_of(&machine);
    assert_eq!(usage(&cluster).memory, 64 << 30);

    let mut shared = fixtures::block();
    shared.backend = Backend::Libvirt;
    shared.cpu.max_sockets = 64;
    let factor = shared.cpu.cores * shared.cpu.threads;
    cluster.apply(changing(&shared, "cpu.dedicated", "CPUs 8-71"));
    assert_eq!(usage(&cluster).cpu, u64::from(64 * factor));
}

#[test]
fn a_disk_that_left_the_spec_counts_once_before_its_status_is_written() {
    for backend in [Backend::Kubevirt, Backend::Libvirt] {
        let mut cluster = Cluster::new();
        let at = |has_data: bool, generation: i64| {
            let mut machine = with_disks(backend, has_data).decompress();
            machine.metadata.generation = Some(generation);
            machine.status.observed_generation = Some(1);
            CachedMachine::from(machine)
        };
        cluster.apply(at(true, 1));
        cluster.apply(at(false, 2));
        let usage = cluster.caches.address_index.usage_of(&at(false, 2));
        assert_eq!(usage.storage, 20 << 30, "{backend:?}");
    }
}
