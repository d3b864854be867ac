//! Objects as the API server sends them, and the rows that are found afterwards.

use std::sync::Arc;

use common::api::{MachineImage, MachinePolicy, MachineTemplate};
use common::catalog::{Catalog as _, ClaimHolder, MachineName, NetworkRow, StorageClassRow};
use common::mac::Mac;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Resource as _;
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};

use super::overlay::LiveRow;
use super::rows::template_row;
use super::table::{RowSet, Table};
use super::{Cache, Claim, Host, Machine, MachineEntry, Network, Overlay};
use crate::watch::WatchSink;

mod metadata;
mod quota;

/// Replaces the rows by a complete list.
fn list<K, T: RowSet<K>>(table: &Table<T>, objects: Vec<K>) {
    let mut listing = T::default();
    for object in objects {
        Table::<T>::list(&mut listing, object);
    }
    table.reset(listing);
}

fn decode<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn class(name: &str, default: bool, created: &str) -> StorageClass {
    decode(json!({
        "metadata": {
            "name": name,
            "creationTimestamp": created,
            "annotations": {"storageclass.kubernetes.io/is-default-class": default.to_string()},
        },
        "provisioner": "x",
        "allowVolumeExpansion": true,
    }))
}

fn network(namespace: &str, name: &str) -> Network {
    decode(json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"bridge": "br0", "vlan": 7},
    }))
}

fn host(name: &str, spec: &Value) -> Host {
    decode(json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "LibvirtHost",
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "spec": spec,
    }))
}

fn template(name: &str, deprecated: Option<&str>) -> MachineTemplate {
    decode(json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachineTemplate",
        "metadata": {"name": name},
        "spec": {"deprecated": deprecated, "bootOrder": ["disk"]},
    }))
}

fn claim(name: &str, machine: &str, more: &Value) -> Claim {
    let mut claim = json!({"metadata": {
        "namespace": "prod",
        "name": name,
        "labels": {
            "vitistack.io/managed-by": "kubevirt-operator",
            "vitistack.io/machine": machine,
            "vitistack.io/disk": "data",
        },
    }, "spec": {"resources": {"requests": {"storage": "10Gi"}}, "volumeName": "pv-1"}});
    for (key, value) in more.as_object().unwrap() {
        claim["metadata"][key] = value.clone();
    }
    decode(claim)
}

fn machine(name: &str, networks: &Value) -> Machine {
    decode(stored_machine(name, networks))
}

/// A Machine as it is stored, with fields that the watch does not decode.
fn stored_machine(name: &str, networks: &Value) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "Machine",
        "metadata": {
            "namespace": "prod", "name": name, "uid": "u", "resourceVersion": "7",
            "labels": {"app": "web"}, "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {
            "template": "small",
            "normalized": {
                "version": 1,
                "intentHash": "sha256:0",
                "backend": "kubevirt",
                "powerState": "Running",
                "guestShutdownStops": false,
                "cpu": {"sockets": 1, "cores": 1, "threads": 1, "maxSockets": 1},
                "memory": {"size": "2Gi", "maxSize": "2Gi"},
                "machineType": "q35",
                "firmware": {"type": "bios"},
                "features": {"acpi": true, "apic": true, "hyperv": false},
                "disks": [{
                    "name": "root", "size": "20Gi", "storageClass": "standard",
                    "accessMode": "ReadWriteOnce", "volumeMode": "Filesystem", "bus": "virtio",
                    "bootOrder": 1, "reclaimPolicy": "Delete",
                }],
                "cdroms": [],
                "networks": networks,
                "nodeSelector": {},
            },
        },
        "status": {"phase": "Running"},
    })
}

fn machine_name(name: &str) -> MachineName<'_> {
    MachineName {
        namespace: "prod",
        name,
    }
}

#[test]
fn the_default_class_is_the_newest_marked_one_then_the_first_by_name() {
    let cache = Cache::default();
    let classes = &cache.classes;
    assert_eq!(cache.default_storage_class(), None);
    list(
        classes,
        vec![
            class("old", true, "2024-01-01T00:00:00Z"),
            class("plain", false, "2026-01-01T00:00:00Z"),
        ],
    );
    assert_eq!(cache.default_storage_class().as_deref(), Some("old"));
    classes.apply(class("new-b", true, "2025-01-01T00:00:00Z"));
    classes.apply(class("new-a", true, "2025-01-01T00:00:00Z"));
    assert_eq!(cache.default_storage_class().as_deref(), Some("new-a"));
    classes.delete(class("new-a", true, "2025-01-01T00:00:00Z"));
    assert_eq!(cache.default_storage_class().as_deref(), Some("new-b"));
    classes.apply(class("new-b", false, "2025-01-01T00:00:00Z"));
    assert_eq!(cache.default_storage_class().as_deref(), Some("old"));
    assert!(cache.storage_class("plain").unwrap().allows_expansion);
}

#[test]
fn a_relist_removes_what_was_deleted_meanwhile() {
    let cache = Cache::default();
    cache.networks.apply(network("a", "one"));
    cache.networks.apply(network("b", "one"));
    let has = |namespace| cache.network(namespace, "one").is_some();
    assert!(has("a") && !has("c"));
    let row = NetworkRow {
        bridge: Some("br0".to_owned()),
        vlan: Some(7),
        definition: None,
        ipam: None,
    };
    assert_eq!(cache.network("a", "one"), Some(row));
    list(&cache.networks, vec![network("b", "two")]);
    assert!(!has("a") && !has("b"));
    assert_eq!(cache.network_names("b"), ["two"]);
    cache.networks.delete(network("b", "two"));
    assert!(cache.network_names("b").is_empty());

    cache.templates.apply(template("web", Some("use app")));
    assert_eq!(
        cache.template("web").unwrap().deprecated.as_deref(),
        Some("use app")
    );
    list(&cache.templates, Vec::<MachineTemplate>::new());
    assert!(cache.template("web").is_none() && cache.template_names().is_empty());
}

#[test]
fn a_machine_occupies_its_addresses_until_it_is_deleted() {
    let cache = Cache::default();
    cache.cluster.set("here".into()).unwrap();
    let others = |name: &str, mac: Mac| -> Vec<String> {
        let others = cache.others_with_mac(machine_name(name), mac).into_iter();
        others.map(|other| other.machine).collect()
    };
    let lan = |name: &str| others(name, Mac::new([2, 0, 0, 0, 0, 1]));
    let given = json!([{
        "name": "eth0", "networkName": "lan", "model": "virtio", "macAddress": "02:00:00:00:00:01",
    }]);
    let parsed =
        |name: &str, networks: &Value| MachineEntry::parse(&machine(name, networks), "here");
    cache.machines.apply(parsed("db", &given));
    cache.machines.apply(parsed("app", &given));
    assert_eq!(lan("web"), ["app", "db"]);
    assert_eq!(lan("app"), ["db"]);
    cache.machines.delete(parsed("app", &given));
    assert_eq!(lan("web"), ["db"]);
    assert_eq!(lan("db"), [""; 0]);

    // A card without an address occupies the derived one. Addresses on the pod network do not
    // conflict.
    let own = json!([
        {"name": "eth0", "networkName": "lan", "model": "virtio"},
        {"name": "pod", "model": "virtio", "macAddress": "02:00:00:00:00:01"},
    ]);
    cache.machines.apply(parsed("db", &own));
    assert_eq!(lan("web"), [""; 0]);
    let derived = cache.derived_mac(machine_name("db"), "eth0");
    assert_eq!(others("web", derived), ["db"]);
    list(&cache.machines, vec![]);
    assert_eq!(others("web", derived), [""; 0]);
}

#[test]
fn a_machine_with_an_unreadable_block_is_counted_and_occupies_nothing() {
    for spec in [
        json!(null),
        json!({}),
        json!({"normalized": {"version": 9}}),
    ] {
        let machine: Machine = decode(json!({
            "metadata": {"namespace": "prod", "name": "odd"}, "spec": spec,
        }));
        assert_eq!(machine.meta().name.as_deref(), Some("odd"));
        let cache = Cache::default();
        cache.machines.apply(MachineEntry::parse(&machine, "here"));
        assert_eq!(cache.machines.read().len(), 1);
        assert_eq!(cache.claim_holder(machine_name("odd-root"), "x"), None);
    }
}

#[test]
fn a_claim_is_of_the_machine_of_its_labels_until_it_is_deleted() {
    let cache = Cache::default();
    let former = |machine: &str| {
        Some(ClaimHolder::Former {
            machine: machine.to_owned(),
        })
    };
    let labelled = claim("web-old-data", "web-old", &json!({}));
    let foreign = claim("web-old-data", "web-old", &json!({"labels": {"app": "x"}}));
    assert!(!cache.has_claim("prod", "web-old-data"));
    cache.claims.apply(labelled.clone());
    assert!(cache.has_claim("prod", "web-old-data"));
    assert!(!cache.has_claim("other", "web-old-data"));
    assert_eq!(
        cache.claim_holder(machine_name("web"), "old-data"),
        former("web-old")
    );
    assert_eq!(cache.claim_holder(machine_name("web-old"), "data"), None);
    cache.claims.apply(foreign);
    let unmanaged = Some(ClaimHolder::Foreign);
    assert_eq!(
        cache.claim_holder(machine_name("web-old"), "data"),
        unmanaged
    );

    // An existing Machine takes precedence over the labels of its claim.
    let row = MachineEntry::parse(&machine("web-old", &json!([])), "here");
    assert!(!cache.has_claim("prod", "web-old-root"));
    cache.machines.apply(row);
    assert!(cache.has_claim("prod", "web-old-root"));
    assert_eq!(
        cache.claim_holder(machine_name("web"), "old-root"),
        Some(ClaimHolder::Disk {
            machine: "web-old".to_owned(),
            disk: "root".to_owned(),
        })
    );

    let deletion = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    cache
        .claims
        .apply(claim("web-old-data", "web-old", &deletion));
    assert_eq!(cache.claim_holder(machine_name("web"), "old-data"), None);
    cache.claims.apply(labelled.clone());
    cache.claims.delete(labelled);
    assert!(cache.claims.read().is_empty());
}

#[test]
fn the_cache_is_complete_once_every_kind_was_listed_even_if_empty() {
    let cache = Cache::default();
    cache.templates.apply(template("web", None));
    list(&cache.templates, Vec::<MachineTemplate>::new());
    list(&cache.images, Vec::<MachineImage>::new());
    list(&cache.classes, Vec::<StorageClass>::new());
    list(&cache.networks, Vec::<Network>::new());
    list(&cache.hosts, Vec::<Host>::new());
    list(&cache.claims, Vec::<Claim>::new());
    list(&cache.machines, Vec::<MachineEntry>::new());
    list(&cache.policies, Vec::<MachinePolicy>::new());
    assert!(!cache.is_complete());
    list(
        &cache.namespaces,
        Vec::<PartialObjectMeta<Namespace>>::new(),
    );
    assert!(cache.is_complete());
}

#[test]
fn an_overlay_adds_live_rows_without_changing_the_cache() {
    let cache = Cache::default();
    cache.templates.apply(template("web", None));
    let mut overlay = Overlay::new(&cache);
    let row = Arc::new(template_row(template("late", None)));
    overlay.extend(vec![
        LiveRow::Template("late".into(), row),
        LiveRow::StorageClass("fast".into(), StorageClassRow::default()),
        LiveRow::Network("here".into(), "prod".into(), NetworkRow::default()),
    ]);
    assert!(overlay.template("web").is_some() && overlay.template("late").is_some());
    assert!(overlay.storage_class("fast").is_some());
    assert!(overlay.network("here", "prod").is_some() && overlay.hosts().is_empty());
    assert!(overlay.network("elsewhere", "prod").is_none());
    assert!(cache.template("late").is_none() && cache.network("here", "prod").is_none());

    // A live list of hosts replaces those of the cache.
    cache.hosts.apply(host(
        "gone",
        &json!({"uri": "test:///default", "virtType": "qemu"}),
    ));
    let mut overlay = Overlay::new(&cache);
    assert_eq!(overlay.hosts().len(), 1);
    overlay.extend(vec![LiveRow::Hosts(vec![])]);
    assert!(overlay.hosts().is_empty() && cache.hosts().len() == 1);
}

#[test]
fn a_host_with_an_unreadable_spec_is_not_in_the_catalog() {
    let cache = Cache::default();
    let offers = |cache: &Cache, class: &str| {
        let hosts = cache.hosts();
        hosts.iter().any(|host| host.classes.contains(class))
    };
    let with_class = |class: &str| {
        json!({
            "uri": "test:///default", "virtType": "qemu",
            "storage": [{"storageClass": class, "pool": "default"}],
        })
    };
    cache.hosts.apply(host("hv1", &with_class("local")));
    assert!(offers(&cache, "local"));
    assert_eq!(cache.hosts()[0].labels["zone"], "a");
    cache.hosts.apply(host("hv1", &with_class("fast")));
    assert!(offers(&cache, "fast") && !offers(&cache, "local"));
    cache.hosts.apply(host(
        "hv1",
        &json!({"uri": "test:///default", "virtType": "xen"}),
    ));
    assert!(cache.hosts().is_empty());
    cache.hosts.apply(host("hv1", &with_class("fast")));
    cache.hosts.delete(host("hv1", &json!(null)));
    assert!(cache.hosts().is_empty());
}

fn policy(name: &str, selector: &Value) -> MachinePolicy {
    decode(json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "MachinePolicy",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": selector},
    }))
}

fn namespace(name: &str, labels: &Value) -> PartialObjectMeta<Namespace> {
    decode(json!({"metadata": {"name": name, "labels": labels}}))
}

/// Names of the policies that hold for a namespace, if it is known.
fn held(catalog: &dyn common::catalog::Catalog, namespace: &str) -> Option<Vec<String>> {
    let policies = catalog.policies(namespace)?;
    Some(policies.iter().map(|policy| policy.name.clone()).collect())
}

#[test]
fn policies_hold_for_the_namespaces_that_they_select_sorted_by_name() {
    let cache = Cache::default();
    let some = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    // Without policies no labels are needed.
    assert_eq!(held(&cache, "prod"), some(&[]));
    let shared = json!({"matchLabels": {"tenancy": "shared"}});
    cache.policies.apply(policy("tenants", &shared));
    cache.policies.apply(policy("all", &json!({})));
    assert_eq!(held(&cache, "prod"), None);
    cache
        .namespaces
        .apply(namespace("prod", &json!({"tenancy": "shared"})));
    cache.namespaces.apply(namespace("test", &json!({})));
    assert_eq!(held(&cache, "prod"), some(&["all", "tenants"]));
    assert_eq!(held(&cache, "test"), some(&["all"]));
    cache
        .namespaces
        .apply(namespace("prod", &json!({"tenancy": "own"})));
    assert_eq!(held(&cache, "prod"), some(&["all"]));
    cache.policies.delete(policy("all", &json!({})));
    assert_eq!(held(&cache, "prod"), some(&[]));
    cache.namespaces.delete(namespace("prod", &json!({})));
    assert_eq!(held(&cache, "prod"), None);
}

#[test]
fn a_live_read_supplies_the_labels_of_a_namespace_that_the_cache_does_not_have() {
    let cache = Cache::default();
    cache.policies.apply(policy(
        "tenants",
        &json!({"matchLabels": {"tenancy": "shared"}}),
    ));
    let mut overlay = Overlay::new(&cache);
    assert_eq!(held(&overlay, "new"), None);
    let labels = [("tenancy".to_owned(), "shared".to_owned())].into();
    overlay.extend(vec![LiveRow::Namespace(labels)]);
    assert_eq!(held(&overlay, "new"), Some(vec!["tenants".to_owned()]));
    assert_eq!(held(&cache, "new"), None);
}
