//! A guest as virt-handler reports it in the status of its instance.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher as _},
};

use serde_json::{Value, json};

use super::hotplug;

/// Whether an instance of this phase has no guest any more.
pub(super) fn is_final(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

pub(super) fn not_ready(reason: &str, message: &str) -> Value {
    json!({"type": "Ready", "status": "False", "reason": reason, "message": message})
}

/// How many nodes there are: `node-1` and so on.
pub(super) const NODES: u64 = 3;

/// The node on which an instance runs.
pub(super) fn node_of(instance: &Value) -> String {
    let metadata = &instance["metadata"];
    let name = format!(
        "{}/{}",
        text(&metadata["namespace"]),
        text(&metadata["name"])
    );
    format!("node-{}", hash(&name) % NODES + 1)
}

/// The cards of an instance once the guest has them, each with an address: the first that its network data gives the
/// card, else one of the pod network.
pub(super) fn cards(instance: &Value) -> Vec<Value> {
    let metadata = &instance["metadata"];
    let machine = (text(&metadata["namespace"]), text(&metadata["name"]));
    let cards = list(&instance["spec"]["domain"]["devices"]["interfaces"]).iter();
    cards
        .map(|interface| {
            let nic = text(&interface["name"]);
            let [.., second, third] = hash(&(machine, nic)).to_be_bytes();
            let mac = interface["macAddress"].as_str().map_or_else(
                || format!("02:00:0a:f4:{second:02x}:{third:02x}"),
                ToOwned::to_owned,
            );
            let pooled = || format!("10.244.{second}.{third}");
            let address = given_address(instance, &mac).unwrap_or_else(pooled);
            json!({
                "name": nic, "mac": mac, "ipAddress": address, "ipAddresses": [address],
                "infoSource": "domain, multus-status",
                "podInterfaceName": pod_interface(interface),
            })
        })
        .collect()
}

/// The first address that cloud-init gives the card with this MAC address. Network data that a Machine has as YAML gives
/// the simulated guest none.
fn given_address(instance: &Value, mac: &str) -> Option<String> {
    let mut volumes = list(&instance["spec"]["volumes"]).iter();
    let data = volumes.find_map(|it| it["cloudInitNoCloud"]["networkData"].as_str())?;
    let data: Value = serde_json::from_str(data).ok()?;
    let mut cards = data["ethernets"].as_object()?.values();
    let card = cards.find(|card| card["match"]["macaddress"] == mac)?;
    let (address, _prefix) = card["addresses"][0].as_str()?.split_once('/')?;
    Some(address.to_owned())
}

/// A guest as virt-handler first reports it: a node, an address per interface, its volumes.
pub(super) fn running(instance: &Value, migratable: bool) -> Value {
    let volumes = list(&instance["spec"]["volumes"]).iter();
    let volumes: Vec<Value> = volumes.map(hotplug::status).collect();
    let migratable = if migratable {
        json!({"type": "LiveMigratable", "status": "True"})
    } else {
        let why = "cannot migrate VMI: a PVC is not shared, live migration requires that all PVCs must be shared (using ReadWriteMany access mode)";
        json!({
            "type": "LiveMigratable", "status": "False",
            "reason": "DisksNotLiveMigratable", "message": why,
        })
    };
    let mut status = json!({
        "phase": "Running",
        "nodeName": node_of(instance),
        "interfaces": cards(instance),
        "volumeStatus": volumes,
        "conditions": [
            not_ready("GuestNotRunning", "Guest VM is not reported as running"),
            migratable,
        ],
    });
    let domain = &instance["spec"]["domain"];
    if domain["cpu"].is_object() {
        let [sockets, cores, threads] =
            ["sockets", "cores", "threads"].map(|it| &domain["cpu"][it]);
        status["currentCPUTopology"] =
            json!({"sockets": sockets, "cores": cores, "threads": threads});
    }
    let guest = &domain["memory"]["guest"];
    if guest.is_string() {
        status["memory"] =
            json!({"guestAtBoot": guest, "guestCurrent": guest, "guestRequested": guest});
    }
    status
}

/// Name of the interface of a pod for a network or its card, as `pkg/network/namescheme` hashes it.
pub(super) fn pod_interface(network: &Value) -> String {
    let hash = hash(&network["name"].as_str()) >> 20;
    format!("pod{hash:011x}")
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
