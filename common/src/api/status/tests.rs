//! A status that another release has written.

use serde_json::{Value, json};

use super::*;

fn status() -> Value {
    json!({
        "phase": "Running",
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "Running", "message": "the guest runs",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3,
        }],
        "observedGeneration": 3,
        "vmName": "web",
        "vmiName": "web",
        "ipAddresses": ["192.0.2.1"],
        "nodeName": "node-1",
        "host": "hv1",
        "lastUpdated": "2026-01-01T00:00:00Z",
        "resourceVersion": "42",
        "vcpus": 2,
        "networkInterfaces": [{
            "name": "eth0", "macAddress": "52:54:00:00:00:01",
            "allocatedAddresses": ["192.0.2.1"], "ipAddresses": ["192.0.2.1"],
        }],
        "guestOS": {"name": "Fedora Linux", "version": "40", "kernel": "6.8"},
        "display": {"passwordVersion": "7"},
        "lastRestart": {"request": "now", "replaces": "uid-1", "cause": "drained"},
        "lastReset": {"request": "now", "result": "Refused", "message": "the guest is off"},
        "lastMigration": {
            "request": "now", "node": "node-2", "migration": "web-1", "from": "hv1",
            "result": "Failed", "message": "no room",
        },
        "volumes": [{
            "name": "root", "claimName": "web-root", "phase": "Bound", "capacity": "1Gi", "progress": "40%",
        }],
        "keptVolumes": [{"name": "old", "claimName": "default-web.old.qcow2", "capacity": "1Gi"}],
        "pendingChanges": [
            {"field": "cpu.cores", "current": "1", "desired": "2", "action": "Restart"},
        ],
    })
}

#[test]
fn a_field_with_an_unknown_value_is_read_as_absent_and_the_others_are_kept() {
    let written = status();
    let read: MachineStatus = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(
        serde_json::to_value(read).unwrap(),
        written,
        "every field is read"
    );
    for field in written.as_object().unwrap().keys() {
        for unknown in [json!({"of": "a later release"}), json!([7]), json!(null)] {
            let mut changed = written.clone();
            changed[field] = unknown;
            let read: MachineStatus = serde_json::from_value(changed).unwrap();
            let mut expected = written.clone();
            expected.as_object_mut().unwrap().remove(field);
            let mut read = serde_json::to_value(read).unwrap();
            // An object without a known key is read as one without known values.
            if ["guestOS", "display"].contains(&field.as_str()) {
                read.as_object_mut().unwrap().remove(field);
            }
            assert_eq!(read, expected, "{field}");
        }
    }
}

/// Fields without which an object or item is left out.
const REQUIRED: [&str; 15] = [
    "/conditions/0/type",
    "/conditions/0/status",
    "/conditions/0/reason",
    "/conditions/0/message",
    "/conditions/0/lastTransitionTime",
    "/networkInterfaces/0/name",
    "/lastRestart/request",
    "/lastReset/request",
    "/lastMigration/request",
    "/volumes/0/name",
    "/keptVolumes/0/name",
    "/pendingChanges/0/field",
    "/pendingChanges/0/current",
    "/pendingChanges/0/desired",
    "/pendingChanges/0/action",
];

/// JSON pointers to all values below one.
fn pointers(value: &Value, at: &str) -> Vec<String> {
    let children: Vec<_> = match value {
        Value::Object(fields) => fields.iter().map(|(key, it)| (key.clone(), it)).collect(),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.map(|(index, it)| (index.to_string(), it)).collect()
        }
        _ => vec![],
    };
    let below = children.into_iter().flat_map(|(key, child)| {
        let at = format!("{at}/{key}");
        let below = pointers(child, &at);
        [at].into_iter().chain(below)
    });
    below.collect()
}

/// Removes a value, and the list that is empty then: it is not written.
fn remove(value: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match value.pointer_mut(parent).unwrap() {
        Value::Array(items) => {
            items.remove(key.parse().unwrap());
            if items.is_empty() {
                remove(value, parent);
            }
        }
        parent => drop(parent.as_object_mut().unwrap().remove(key)),
    }
}

#[test]
fn a_nested_field_with_an_unknown_value_loses_nothing_but_itself() {
    let written = status();
    let nested = pointers(&written, "");
    let nested = nested.iter().filter(|at| at.matches('/').count() > 1);
    for at in nested.filter(|at| !at.ends_with("s/0")) {
        for unknown in [json!({"of": "a later release"}), json!([[7]])] {
            let mut changed = written.clone();
            *changed.pointer_mut(at).unwrap() = unknown;
            let read: MachineStatus = serde_json::from_value(changed).unwrap();
            let mut expected = written.clone();
            if at.ends_with("/claimName") {
                *expected.pointer_mut(at).unwrap() = json!("");
            } else if REQUIRED.contains(&at.as_str()) {
                remove(&mut expected, at.rsplit_once('/').unwrap().0);
            } else {
                remove(&mut expected, at);
            }
            assert_eq!(serde_json::to_value(read).unwrap(), expected, "{at}");
        }
    }
}

#[test]
fn an_unreadable_list_item_is_left_out_and_the_others_are_kept() {
    let mut written = status();
    let items = written["conditions"].as_array_mut().unwrap();
    items.push(json!({"type": "Novel"}));
    let read: MachineStatus = serde_json::from_value(written).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), status());
}

#[test]
fn an_unknown_phase_does_not_lose_the_recorded_restart() {
    let written = json!({"phase": "Hibernating", "lastRestart": {"request": "now"}});
    let read: MachineStatus = serde_json::from_value(written).unwrap();
    assert_eq!(read.phase, None);
    assert_eq!(read.last_restart.unwrap().request, "now");
}
