//! What counts in the quota of a namespace.

use common::api::choice::Backend;
use common::catalog::{Catalog as _, QuotaRequest};
use serde_json::{Value, json};

use super::{claim, decode, machine_name, stored_machine};
use crate::catalog::{Cache, Machine, MachineEntry};
use crate::watch::WatchSink as _;

#[test]
fn a_machine_with_an_unreadable_block_counts_what_can_be_read_of_it() {
    const GI: u64 = 1 << 30;
    let disks = json!([{"name": "root", "size": "20Gi", "someday": {}}]);
    for (spec, expected) in [
        (json!(null), (1, 0, 0)),
        (json!({}), (1, 0, 0)),
        (
            json!({"normalized": {"version": 9, "cpu": {"cores": 4}, "disks": disks}}),
            (4, 0, 20 * GI),
        ),
        (
            json!({"resources": {"cpu": {"cores": 2}, "memory": {"size": "4Gi"}}, "disks": disks}),
            (2, 4 * GI, 20 * GI),
        ),
    ] {
        let machine: Machine = decode(json!({
            "metadata": {"namespace": "prod", "name": "odd"}, "spec": spec,
        }));
        let cache = Cache::default();
        cache.machines.apply(MachineEntry::parse(&machine, "here"));
        let request = QuotaRequest {
            machine: machine_name("web"),
            backend: Backend::Kubevirt,
            disks: vec![],
            had: vec![],
        };
        let usage = cache.usage_beside(&request).others;
        assert_eq!((usage.cpu, usage.memory, usage.storage), expected);
        // The claim of its disk is not one that is kept.
        cache.claims.apply(claim(
            "odd-root",
            "odd",
            &json!({"labels": {
                "vitistack.io/managed-by": "kubevirt-operator",
                "vitistack.io/machine": "odd",
                "vitistack.io/disk": "root",
            }}),
        ));
        let with_claim = cache.usage_beside(&request).others.storage;
        let kept = if expected.2 == 0 { 10 * GI } else { expected.2 };
        assert_eq!(with_claim, kept, "{spec}");
    }
}

#[test]
fn a_guest_that_is_to_have_less_counts_with_what_it_has_until_it_was_restarted() {
    let change = json!({"field": "cpu.cores", "current": "4", "desired": "1", "action": "Restart"});
    let cache = Cache::default();
    for (cores, generation, observed, pending, expected) in [
        (4, 1, 1, json!([]), 4),
        // Stored, and then reported.
        (1, 2, 1, json!([]), 4),
        (1, 2, 2, json!([change]), 4),
        (1, 2, 2, json!([]), 1),
    ] {
        let mut machine = stored_machine("odd", &json!([]));
        machine["metadata"]["generation"] = generation.into();
        machine["spec"]["normalized"]["cpu"]["cores"] = cores.into();
        machine["status"] =
            json!({"phase": "Running", "observedGeneration": observed, "pendingChanges": pending});
        let machine: Machine = decode(machine);
        cache.machines.apply(MachineEntry::parse(&machine, "here"));
        let request = QuotaRequest {
            machine: machine_name("web"),
            backend: Backend::Kubevirt,
            disks: vec![],
            had: vec![],
        };
        assert_eq!(cache.usage_beside(&request).others.cpu, expected);
    }
}

#[test]
fn a_volume_that_a_host_keeps_counts_before_the_controller_reports_it_and_after() {
    let asked = |name| QuotaRequest {
        machine: machine_name(name),
        backend: Backend::Libvirt,
        disks: vec!["root"],
        had: vec![],
    };
    let volume = |name: &str| json!({"name": name, "claimName": "v", "capacity": "10Gi"});
    let stored = |status: &Value| {
        let mut object = stored_machine("web", &json!([]));
        object["spec"]["normalized"]["backend"] = json!("libvirt");
        object["status"] = status.clone();
        MachineEntry::parse(&decode(object), "here")
    };
    let cache = Cache::default();
    for status in [
        json!({"volumes": [volume("root"), volume("data")]}),
        json!({"volumes": [volume("root")], "keptVolumes": [volume("data")]}),
    ] {
        cache.machines.apply(stored(&status));
        let storage = |name| cache.usage_beside(&asked(name)).others.storage >> 30;
        // The block has a disk of 20Gi.
        assert_eq!((storage("db"), storage("web")), (30, 10), "{status}");
    }
    cache.hosts.apply(decode(json!({
        "metadata": {"name": "hv1"},
        "spec": {"uri": "test:///default", "virtType": "qemu"},
        "status": {"keptVolumes": [{
            "machine": "prod/old", "uid": "u", "disk": "data", "pool": "vms", "volume": "v", "size": "5Gi",
        }]},
    })));
    assert_eq!(cache.usage_beside(&asked("web")).others.storage >> 30, 15);
}
