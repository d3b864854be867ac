//! Decisions about Machines of the namespace `prod`, whose policy gives it four vCPUs and 100Gi of storage.

use common::api::choice::{Backend, ReclaimPolicy};
use common::api::libvirt_host::LibvirtHostStatus;
use common::api::normalized::Normalized;
use common::names;
use common::normalize::intent_hash;
use common::quantity::Bytes;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

mod guest_usage;

use super::*;
use crate::caches::Caches;
use crate::conditions::Fault;
use crate::fixtures;
use crate::machine::{Block, CachedMachine};
use crate::objects::Cacheable;

/// Caches as the watches fill them.
struct Cluster {
    caches: Caches,
    machines: Writer<CachedMachine>,
}

fn machine(name: &str, second: u8, cpu: u32, status: &Value) -> CachedMachine {
    let mut block = fixtures::block();
    block.cpu.cores = cpu;
    stored(name, second, &block, status)
}

fn stored(name: &str, second: u8, block: &Normalized, status: &Value) -> CachedMachine {
    let mut block = serde_json::to_value(block).unwrap();
    let mut spec = json!({"template": "small"});
    block["intentHash"] = intent_hash(&spec, None).into();
    spec["normalized"] = block;
    let object = json!({
        "metadata": {
            "name": name, "namespace": "prod", "uid": format!("uid-of-{name}"), "resourceVersion": "1",
            "creationTimestamp": format!("2026-01-01T00:00:0{second}Z"),
        },
        "spec": spec,
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

/// A Machine that was created in this second and has not started.
fn new(name: &str, second: u8, cpu: u32) -> CachedMachine {
    machine(name, second, cpu, &json!({}))
}

fn running(name: &str, cpu: u32) -> CachedMachine {
    machine(name, 9, cpu, &json!({"phase": "Running"}))
}

fn policy(quota: &Value) -> objects::PolicyObject {
    let policy = json!({
        "metadata": {"name": "tenants"},
        "spec": {"namespaceSelector": {"matchLabels": {"tenancy": "shared"}}, "quota": quota},
    });
    serde_json::from_value(policy).unwrap()
}

fn namespace(labels: &Value) -> objects::Namespace {
    let namespace = json!({"metadata": {"name": "prod", "labels": labels}});
    serde_json::from_value(namespace).unwrap()
}

fn list<K: Cacheable>(cache: &crate::cache::Cache<K>, objects: Vec<K>) {
    cache.apply(Event::Init, |_| {});
    for object in objects {
        cache.apply(Event::InitApply(object), |_| {});
    }
    cache.apply(Event::InitDone, |_| {});
}

impl Cluster {
    fn new() -> Self {
        let (machines, writer) = store();
        let caches = Caches::new(machines);
        let quota = json!({"cpu": 4, "storage": "100Gi"});
        list(&caches.policies, vec![policy(&quota)]);
        list(
            &caches.namespaces,
            vec![namespace(&json!({"tenancy": "shared"}))],
        );
        Self {
            caches,
            machines: writer,
        }
    }

    fn event(&mut self, event: &Event<CachedMachine>) {
        self.caches.apply(event, &mut self.machines, "cluster");
        if let Event::Delete(machine) = event {
            self.caches.quotas.machine_deleted(machine);
        }
    }

    fn apply(&mut self, machine: CachedMachine) {
        self.event(&Event::Apply(machine));
    }

    fn decide(&self, name: &str) -> Decision {
        let key = ObjectRef::new(name).within("prod");
        let cached = self.caches.machines.get(&key).unwrap();
        decide(&self.caches, &cached, &cached.decompress())
    }

    fn held(&self) -> Vec<String> {
        let held = self.caches.quotas.held_in("prod").into_iter();
        held.map(|key| key.name).collect()
    }
}

fn reason(decision: &Decision) -> Option<&Fault> {
    match decision {
        Decision::Held(Hold::New(fault) | Hold::Growth(fault)) => Some(fault),
        Decision::Granted | Decision::Unknown => None,
    }
}

#[test]
fn of_new_machines_the_younger_is_held_until_the_older_is_gone_in_whatever_order_they_are_seen() {
    for order in [["old", "young"], ["young", "old"]] {
        let mut cluster = Cluster::new();
        cluster.apply(new("old", 1, 3));
        cluster.apply(new("young", 2, 2));
        for name in order {
            let held = matches!(cluster.decide(name), Decision::Held(Hold::New(_)));
            assert_eq!(held, name == "young", "{order:?}");
        }
        assert_eq!(cluster.held(), ["young"]);
        let decision = cluster.decide("young");
        let fault = reason(&decision).unwrap();
        assert_eq!(fault.reason(), "QuotaExceeded");
        let text = format!("{fault:?}");
        assert!(
            text.contains("policy 'tenants' gives the namespace 4 vCPUs, and its other Machines have 3; this Machine asks for 2"),
            "{text}"
        );
        cluster.event(&Event::Delete(new("old", 1, 3)));
        assert_eq!(cluster.decide("young"), Decision::Granted);
        assert!(cluster.held().is_empty());
    }
}

#[test]
fn of_machines_of_the_same_second_the_one_with_the_smaller_uid_comes_first() {
    let mut cluster = Cluster::new();
    cluster.apply(new("b", 1, 3));
    cluster.apply(new("a", 1, 3));
    assert!(matches!(cluster.decide("b"), Decision::Held(_)));
    assert_eq!(cluster.decide("a"), Decision::Granted);
}

#[test]
fn a_machine_that_was_granted_its_share_keeps_it_before_its_status_shows_that_it_started() {
    let mut cluster = Cluster::new();
    cluster.apply(new("young", 2, 3));
    assert_eq!(cluster.decide("young"), Decision::Granted);
    // It was stored earlier, and is seen later.
    cluster.apply(new("old", 1, 3));
    assert!(matches!(
        cluster.decide("old"),
        Decision::Held(Hold::New(_))
    ));
    assert_eq!(cluster.decide("young"), Decision::Granted);
}

#[test]
fn an_older_machine_that_is_held_itself_takes_no_room() {
    let mut cluster = Cluster::new();
    cluster.apply(new("large", 1, 9));
    cluster.apply(new("small", 2, 4));
    assert_eq!(cluster.decide("small"), Decision::Granted);
    assert!(matches!(cluster.decide("large"), Decision::Held(_)));
}

#[test]
fn what_has_started_is_never_held_and_its_growth_is() {
    let mut cluster = Cluster::new();
    cluster.apply(running("a", 3));
    cluster.apply(running("b", 9));
    assert_eq!(cluster.decide("a"), Decision::Granted);
    assert_eq!(cluster.decide("b"), Decision::Granted);
    cluster.apply(new("new", 1, 1));
    assert!(matches!(
        cluster.decide("new"),
        Decision::Held(Hold::New(_))
    ));

    cluster.apply(running("a", 4));
    let decision = cluster.decide("a");
    assert!(matches!(decision, Decision::Held(Hold::Growth(_))));
    let text = format!("{:?}", reason(&decision).unwrap());
    assert!(text.contains("asks for 4 and keeps what it has"), "{text}");
    assert_eq!(cluster.held(), ["a", "new"]);
    // What it does not get is not taken from others.
    assert_eq!(
        cluster.caches.quotas.shares().granted["uid-of-a"].usage.cpu,
        3
    );
    // It shrinks, and what it had can be given to others.
    cluster.apply(running("a", 1));
    assert_eq!(cluster.decide("a"), Decision::Granted);
    cluster.event(&Event::Delete(running("b", 9)));
    assert_eq!(cluster.decide("new"), Decision::Granted);
    cluster.apply(running("a", 3));
    assert_eq!(cluster.decide("a"), Decision::Granted);
}

#[test]
fn a_finalizer_that_a_user_can_write_is_no_sign_that_a_machine_has_started() {
    let mut cluster = Cluster::new();
    for (name, second) in [("old", 1), ("young", 2)] {
        let mut machine = new(name, second, 3).decompress();
        machine.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
        cluster.apply(machine.into());
    }
    assert_eq!(cluster.decide("old"), Decision::Granted);
    assert!(matches!(
        cluster.decide("young"),
        Decision::Held(Hold::New(_))
    ));
}

/// The metadata of the claim of a disk.
fn claim_of(machine: &str, disk: &str) -> crate::objects::Secret {
    serde_json::from_value(json!({"metadata": {
        "name": format!("{machine}-{disk}"), "namespace": "prod", "labels": {
            "vitistack.io/managed-by": "kubevirt-operator",
            "vitistack.io/machine": machine,
            "vitistack.io/disk": disk,
        },
    }}))
    .unwrap()
}

#[test]
fn kept_disks_count_until_they_are_released() {
    let mut cluster = Cluster::new();
    let claim = claim_of("gone", "data");
    let kept = |size: &str| -> LibvirtHostStatus {
        serde_json::from_value(json!({"keptVolumes": [{
            "machine": "prod/gone", "uid": "u", "disk": "data", "pool": "vms", "volume": "v", "size": size,
        }]}))
        .unwrap()
    };
    // The Machine has a disk of 20Gi.
    cluster.apply(new("web", 1, 1));
    let quotas = cluster.caches.quotas.clone();
    quotas.claim_changed(&claim, 70 << 30);
    assert!(!quotas.host_changed("hv1", &kept("20Gi")));
    assert!(matches!(
        cluster.decide("web"),
        Decision::Held(Hold::New(_))
    ));
    assert!(quotas.host_changed("hv1", &kept("10Gi")));
    assert_eq!(cluster.decide("web"), Decision::Granted);

    cluster.event(&Event::Delete(new("web", 1, 1)));
    cluster.apply(new("db", 1, 1));
    assert!(!quotas.host_changed("hv1", &kept("20Gi")));
    assert!(matches!(cluster.decide("db"), Decision::Held(Hold::New(_))));
    quotas.claim_deleted(&claim);
    assert_eq!(cluster.decide("db"), Decision::Granted);
    assert!(quotas.host_changed("hv1", &LibvirtHostStatus::default()));
}

/// A running Machine with the disk `root` of 20Gi, and with `data` of 10Gi or its volume as a kept one.
fn with_disks(backend: Backend, has_data: bool) -> CachedMachine {
    let mut block = fixtures::block();
    block.backend = backend;
    if has_data {
        let mut data = fixtures::disk("data", ReclaimPolicy::Retain);
        data.size = Bytes::mib(10 * 1024);
        block.disks.push(data);
    }
    let volume = |name: &str, size: &str| json!({"name": name, "claimName": "v", "capacity": size});
    let status = json!({
        "phase": "Running",
        "volumes": [volume("root", "20Gi")],
        "keptVolumes": [volume("data", "10Gi")],
    });
    stored("web", 1, &block, &status)
}

#[test]
fn above_its_quota_a_namespace_can_take_its_kept_disks_back() {
    for backend in [Backend::Kubevirt, Backend::Libvirt] {
        let mut cluster = Cluster::new();
        if backend == Backend::Kubevirt {
            let claim = claim_of("web", "data");
            cluster.caches.quotas.claim_changed(&claim, 10 << 30);
        }
        cluster.apply(with_disks(backend, false));
        assert_eq!(cluster.decide("web"), Decision::Granted);
        let quota = json!({"storage": "5Gi"});
        list(&cluster.caches.policies, vec![policy(&quota)]);
        assert_eq!(cluster.decide("web"), Decision::Granted);

        cluster.apply(with_disks(backend, true));
        assert_eq!(cluster.decide("web"), Decision::Granted, "{backend:?}");

        let mut larger = with_disks(backend, true).decompress();
        let mut block = larger.desired().unwrap().clone();
        block.disks[1].size = Bytes::mib(11 * 1024);
        larger.block = Block::Matching(Box::new(block));
        cluster.apply(larger.into());
        let decision = cluster.decide("web");
        assert!(
            matches!(decision, Decision::Held(Hold::Growth(_))),
            "{backend:?}"
        );
    }
}

#[test]
fn without_a_quota_nothing_is_held_and_without_labels_nothing_is_decided() {
    let mut cluster = Cluster::new();
    cluster.apply(new("web", 1, 9));
    assert!(matches!(cluster.decide("web"), Decision::Held(_)));
    list(
        &cluster.caches.namespaces,
        vec![namespace(&json!({"tenancy": "own"}))],
    );
    assert_eq!(cluster.decide("web"), Decision::Granted);
    assert!(cluster.held().is_empty());
    list(&cluster.caches.namespaces, vec![]);
    assert_eq!(cluster.decide("web"), Decision::Unknown);
    list(&cluster.caches.policies, vec![policy(&json!({}))]);
    assert_eq!(cluster.decide("web"), Decision::Granted);
}

#[test]
fn a_machine_without_a_usable_block_counts_what_can_be_read_of_it() {
    let mut cluster = Cluster::new();
    let newer = json!({
        "metadata": {"name": "newer", "namespace": "prod", "uid": "uid-of-newer"},
        "spec": {"normalized": {"version": 9, "cpu": {"cores": 3}}},
        "status": {"phase": "Running"},
    });
    cluster.apply(serde_json::from_value(newer).unwrap());
    let usage = cluster.caches.address_index.usage("prod");
    assert_eq!(usage.cpu, 3);
    cluster.apply(new("web", 1, 2));
    assert!(matches!(cluster.decide("web"), Decision::Held(_)));
}

/// The limits of every policy that selects the namespace count, and of all policies while its labels are not known.
#[test]
fn the_largest_disk_of_a_namespace_is_the_least_limit_of_its_policies() {
    let (store, _) = store();
    let caches = Caches::new(store);
    let limited = |name: &str, labels: Value, disk: &str| {
        let policy = json!({
            "metadata": {"name": name},
            "spec": {"namespaceSelector": {"matchLabels": labels}, "limits": {"disk": disk}},
        });
        serde_json::from_value::<objects::PolicyObject>(policy).unwrap()
    };
    assert_eq!(caches.largest_disk("prod"), None);
    let shared = json!({"tenancy": "shared"});
    let policies = vec![
        limited("a", shared.clone(), "8Gi"),
        limited("b", shared.clone(), "6Gi"),
        limited("c", json!({"tenancy": "own"}), "1Gi"),
        policy(&json!({"cpu": 4})),
    ];
    list(&caches.policies, policies);
    let limit = || caches.largest_disk("prod").map(|limit| limit.to_string());
    assert_eq!(limit().as_deref(), Some("1Gi"));
    list(&caches.namespaces, vec![namespace(&shared)]);
    assert_eq!(limit().as_deref(), Some("6Gi"));
    list(&caches.namespaces, vec![namespace(&json!({}))]);
    assert_eq!(limit(), None);
}
