//! The objects of a namespace, without the fields that differ from run to run.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use lab::{
    Lab,
    objects::{ADDRESS, ATTACHMENT, CLAIM, DATA_VOLUME, INSTANCE, MACHINE, NETWORK, SECRET, VM},
};
use serde_json::Value;

/// Objects by kind and name.
pub(crate) type State = BTreeMap<String, Value>;

/// The uids seen so far, with their objects.
pub(crate) type Uids = BTreeMap<String, String>;

/// The state of the namespace now.
pub(crate) async fn of(lab: &Lab, namespace: &str, uids: &mut Uids) -> Result<State> {
    let mut state = State::new();
    for (kind, objects) in [
        ("Machine", MACHINE),
        ("VirtualMachine", VM),
        ("VirtualMachineInstance", INSTANCE),
        ("PersistentVolumeClaim", CLAIM),
        ("DataVolume", DATA_VOLUME),
        ("Secret", SECRET),
        ("NetworkConfiguration", NETWORK),
        ("NetworkAttachmentDefinition", ATTACHMENT),
    ] {
        for mut object in lab.objects(objects, namespace).list().await? {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let what = format!("{kind} {name}");
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            uids.insert(uid.to_owned(), format!("uid of {what}"));
            if kind.starts_with("VirtualMachine") || kind == "NetworkConfiguration" {
                // KubeVirt writes it at its own pace, and what matters of it is in the Machine's status. That of a
                // network is written every 5 s.
                object["status"].take();
            }
            state.insert(what, object);
        }
    }
    // The locks of the Machine's addresses: each is in the state, the address and the name that follows from it are not.
    for mut object in lab.objects(ADDRESS, "").list().await? {
        let holder = &object["spec"]["machineRef"];
        if holder["namespace"] == namespace {
            let what = format!("MachineAddress of {}", holder["card"]);
            for derived in ["name", "uid"] {
                object["metadata"][derived].take();
            }
            let several = state.insert(what.clone(), object);
            ensure!(several.is_none(), "a second {what}");
        }
    }
    for object in state.values_mut() {
        comparable(object, namespace, uids);
    }
    Ok(state)
}

/// Fields that depend on time, node or writer, or follow from a uid or the namespace.
const VOLATILE_FIELDS: [&str; 21] = [
    "resourceVersion",
    "generation",
    "observedGeneration",
    "creationTimestamp",
    "lastTransitionTime",
    "lastUpdated",
    "managedFields",
    "uuid",
    "serial",
    "macAddress",
    "mac",
    "nodeName",
    "ipAddress",
    "ipAddresses",
    "address",
    "allocatedAddresses",
    "intentHash",
    "networkData",
    "volumeName",
    "machine.vitistack.io/rendered",
    "desiredGeneration",
];

fn comparable(value: &mut Value, namespace: &str, uids: &Uids) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !VOLATILE_FIELDS.contains(&key.as_str()));
            for field in fields.values_mut() {
                comparable(field, namespace, uids);
            }
        }
        Value::Array(items) => {
            for item in items {
                comparable(item, namespace, uids);
            }
        }
        Value::String(text) => {
            if let Some(whose) = uids.get(text.as_str()) {
                text.clone_from(whose);
            } else {
                *text = text.replace(namespace, "NAMESPACE");
            }
        }
        _ => {}
    }
}

/// The differences between two states, one line each.
pub(crate) fn differences(here: &State, there: &State) -> Vec<String> {
    let names = here
        .keys()
        .chain(there.keys().filter(|it| !here.contains_key(*it)));
    let differences = names.filter_map(|name| {
        let (here, there) = (here.get(name), there.get(name));
        match (here, there) {
            (Some(here), Some(there)) => {
                let mut paths = Vec::new();
                compare(name, here, there, &mut paths);
                (!paths.is_empty()).then(|| paths.join("; "))
            }
            (Some(_), None) => Some(format!("{name} is there and should not be")),
            _ => Some(format!("{name} is missing")),
        }
    });
    differences.collect()
}

fn compare(path: &str, here: &Value, there: &Value, paths: &mut Vec<String>) {
    match (here, there) {
        (Value::Object(left), Value::Object(right)) => {
            for key in left
                .keys()
                .chain(right.keys().filter(|key| !left.contains_key(*key)))
            {
                compare(&format!("{path}.{key}"), &here[key], &there[key], paths);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{path}[{index}]"), left, right, paths);
            }
        }
        _ if here != there => paths.push(format!("{path} is {here} and should be {there}")),
        _ => {}
    }
}
