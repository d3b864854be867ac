//! Changes of a running guest: what KubeVirt takes over into the instance, and what needs a restart.
//!
//! As KubeVirt 1.9 with `vmRolloutStrategy: LiveUpdate`:
//!
//! | change | KubeVirt | where |
//! |---|---|---|
//! | bridged card that is new | into the instance, see [`migration`](super::migration) | `applyDynamicIfaceRequestOnVMI` |
//! | other network of a card | likewise | `LiveUpdateNADRef`, general since 1.9 |
//! | card that leaves, changed card | `RestartRequired` | `vmliveupdate.IsRestartRequired` |
//! | node labels | into the instance, and no more | `handleAffinityChangeRequest` |
//! | tolerations | likewise | `handleTolerationsChangeRequest` |
//! | sockets, memory | into the instance and the guest | `handleCPUChangeRequest`, `handleMemoryHotplugRequest` |
//! | volumes with `hotpluggable: true` | see [`hotplug`] | `validLiveUpdateVolumes` |
//! | everything else | `RestartRequired` | `syncRestartRequired` |
//!
//! While a restart is required, only cards and their networks are taken over.

use common::quantity::Bytes;
use serde_json::{Value, json};

use super::hotplug;

/// The effect of a changed template on the running guest.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rollout {
    /// Patch of the instance with what is taken over.
    pub(super) live: Option<Value>,
    /// Why a restart is required, in KubeVirt's words.
    pub(super) restart: Option<&'static str>,
}

const CARDS: &str = "/domain/devices/interfaces";
const SOCKETS: &str = "/domain/cpu/sockets";
const MEMORY: &str = "/domain/memory/guest";

pub(super) fn rollout(desired: &Value, instance: &Value, migratable: bool) -> Rollout {
    let mut plug = json!({});
    cards(desired, &instance["spec"], &mut plug);
    let restart = restart(desired, instance, migratable);
    if restart.is_none() {
        labels(desired, &instance["spec"], &mut plug);
        affinity(desired, &instance["spec"], &mut plug);
        tolerations(desired, &instance["spec"], &mut plug);
        resources(desired, instance, migratable, &mut plug);
    }
    Rollout {
        live: (plug != json!({})).then_some(plug),
        restart,
    }
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn named<'a>(items: &'a [Value], name: &Value) -> Option<&'a Value> {
    items.iter().find(|item| item["name"] == *name)
}

/// New bridged cards, and other networks of those that stay.
fn cards(desired: &Value, runs: &Value, plug: &mut Value) {
    let mut interfaces = list(runs.pointer(CARDS)).to_vec();
    let mut networks = list(runs.get("networks")).to_vec();
    for wanted in list(desired.get("networks")) {
        let known = networks.iter_mut().find(|it| it["name"] == wanted["name"]);
        if let Some(network) = known.filter(|it| it["multus"].is_object()) {
            if wanted["multus"].is_object() {
                *network = wanted.clone();
            }
            continue;
        }
        let interface = named(list(desired.pointer(CARDS)), &wanted["name"]);
        let is_new = named(&networks, &wanted["name"]).is_none();
        if let Some(interface) = interface.filter(|it| is_new && it["bridge"].is_object()) {
            interfaces.push(interface.clone());
            networks.push(wanted.clone());
        }
    }
    if networks != list(runs.get("networks")) {
        plug["spec"]["domain"]["devices"]["interfaces"] = json!(interfaces);
        plug["spec"]["networks"] = json!(networks);
    }
}

fn labels(desired: &Value, runs: &Value, plug: &mut Value) {
    let (runs, desired) = (&runs["nodeSelector"], &desired["nodeSelector"]);
    if runs == desired {
        return;
    }
    let mut labels = desired.as_object().cloned().unwrap_or_default();
    for key in runs.as_object().into_iter().flatten().map(|(key, _)| key) {
        // Null removes a label in a merge patch.
        labels.entry(key.clone()).or_insert(Value::Null);
    }
    plug["spec"]["nodeSelector"] = json!(labels);
}

/// The affinity, which the running instance gets and its pod does not.
fn affinity(desired: &Value, runs: &Value, plug: &mut Value) {
    if runs["affinity"] == desired["affinity"] {
        return;
    }
    // Null removes a field in a merge patch.
    let mut affinity = desired["affinity"].clone();
    for kind in ["nodeAffinity", "podAffinity", "podAntiAffinity"] {
        if affinity.is_object() && affinity.get(kind).is_none() {
            affinity[kind] = Value::Null;
        }
        for strength in ["preferred", "required"] {
            let key = format!("{strength}DuringSchedulingIgnoredDuringExecution");
            if affinity[kind].is_object() && affinity[kind].get(&key).is_none() {
                affinity[kind][&key] = Value::Null;
            }
        }
    }
    plug["spec"]["affinity"] = affinity;
}

/// The tolerations, which the running instance gets and its pod does not.
fn tolerations(desired: &Value, runs: &Value, plug: &mut Value) {
    if runs["tolerations"] != desired["tolerations"] {
        plug["spec"]["tolerations"] = desired["tolerations"].clone();
    }
}

fn restart(desired: &Value, instance: &Value, migratable: bool) -> Option<&'static str> {
    const OTHER: &str = "a non-live-updatable field was changed in the template spec";
    let runs = &instance["spec"];
    if cards_need_restart(desired, runs) {
        return Some(OTHER);
    }
    let mut live = runs.clone();
    for field in [SOCKETS, MEMORY] {
        if let (Some(live), Some(desired)) = (live.pointer_mut(field), desired.pointer(field)) {
            *live = desired.clone();
        }
    }
    let mut fields = vec![
        ("networks", ""),
        ("nodeSelector", ""),
        ("affinity", ""),
        ("tolerations", ""),
        ("interfaces", "/domain/devices"),
    ];
    if hotplug::is_live(desired, runs) {
        fields.extend([("volumes", ""), ("disks", "/domain/devices")]);
    }
    for (key, at) in fields {
        let value = desired.pointer(at).and_then(|parent| parent.get(key));
        if let Some(parent) = live.pointer_mut(at).and_then(Value::as_object_mut) {
            match value {
                Some(value) => parent.insert(key.to_owned(), value.clone()),
                None => parent.remove(key),
            };
        }
    }
    if live != *desired {
        return Some(OTHER);
    }
    let [(socket, sockets), (memory, bytes)] =
        [SOCKETS, MEMORY].map(|field| (runs.pointer(field), desired.pointer(field)));
    if socket != sockets {
        if count(sockets) > count(runs.pointer("/domain/cpu/maxSockets")) {
            return Some(
                "CPU sockets updated in template spec to a value higher than what's available",
            );
        }
        if count(sockets) < count(socket) {
            return Some("Reduction of CPU socket count requires a restart");
        }
    }
    if memory != bytes {
        let size = |value: Option<&Value>| -> Option<Bytes> { value?.as_str()?.parse().ok() };
        if !migratable {
            return Some(
                "memory updated in template spec. Memory-hotplug is only available for migratable VMs",
            );
        }
        let Some(most) = size(runs.pointer("/domain/memory/maxGuest")) else {
            return Some(
                "memory updated in template spec. Memory-hotplug is not available for this VM configuration",
            );
        };
        if size(bytes) < size(Some(&instance["status"]["memory"]["guestAtBoot"])) {
            return Some(
                "memory updated in template spec to a value lower than what the VM started with",
            );
        }
        if size(bytes) > Some(most) {
            return Some("memory updated in template spec to a value higher than what's available");
        }
    }
    None
}

/// A card left or changed, or moved to or from the pod network.
fn cards_need_restart(desired: &Value, runs: &Value) -> bool {
    let (wanted, networks) = (list(desired.pointer(CARDS)), list(desired.get("networks")));
    let changed = |card: &Value| named(wanted, &card["name"]) != Some(card);
    let moved = |network: &Value| {
        let wanted = named(networks, &network["name"]);
        let is_multus = |network: &Value| network["multus"].is_object();
        wanted.is_none_or(|wanted| is_multus(network) != is_multus(wanted))
    };
    let on_pod = |spec: &Value| {
        let networks = list(spec.get("networks"));
        networks.iter().any(|network| network["pod"].is_object())
    };
    list(runs.pointer(CARDS)).iter().any(changed)
        || list(runs.get("networks")).iter().any(moved)
        || (on_pod(desired) && !on_pod(runs))
}

fn count(value: Option<&Value>) -> u64 {
    value.and_then(Value::as_u64).unwrap_or(1)
}

fn resources(desired: &Value, instance: &Value, migratable: bool, plug: &mut Value) {
    let runs = &instance["spec"];
    let [(socket, sockets), (memory, bytes)] =
        [SOCKETS, MEMORY].map(|field| (runs.pointer(field), desired.pointer(field)));
    if socket != sockets {
        plug["spec"]["domain"]["cpu"]["sockets"] = json!(sockets);
        if migratable {
            plug["status"]["currentCPUTopology"]["sockets"] = json!(sockets);
        } else {
            // KubeVirt hot-plugs sockets by a migration, which never happens here.
            let mut conditions = list(instance["status"].get("conditions")).to_vec();
            conditions.push(json!({"type": "HotVCPUChange", "status": "True"}));
            plug["status"]["conditions"] = json!(conditions);
        }
    }
    if memory != bytes {
        plug["spec"]["domain"]["memory"]["guest"] = json!(bytes);
        plug["status"]["memory"] = json!({"guestCurrent": bytes, "guestRequested": bytes});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_and_memory_are_hot_plugged_up_to_their_maximum() {
        let with = |sockets: u32, guest: &str| {
            json!({"domain": {
                "cpu": {"sockets": sockets, "cores": 1, "threads": 1, "maxSockets": 4},
                "memory": {"guest": guest, "maxGuest": "8Gi"},
            }})
        };
        let runs = json!({
            "spec": with(2, "2Gi"),
            "status": {
                "memory": {"guestAtBoot": "2Gi"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let rolled_out = |desired: Value, migratable: bool| rollout(&desired, &runs, migratable);
        let restart = |desired: Value, migratable| rolled_out(desired, migratable).restart.unwrap();
        assert_eq!(rolled_out(with(2, "2Gi"), true), Rollout::default());
        let plug = json!({
            "spec": {"domain": {"cpu": {"sockets": 4}, "memory": {"guest": "8Gi"}}},
            "status": {
                "currentCPUTopology": {"sockets": 4},
                "memory": {"guestCurrent": "8Gi", "guestRequested": "8Gi"},
            },
        });
        let plugged = Rollout {
            live: Some(plug),
            restart: None,
        };
        assert_eq!(rolled_out(with(4, "8Gi"), true), plugged);
        let waits = rolled_out(with(3, "2Gi"), false).live.unwrap();
        let conditions = &waits["status"]["conditions"];
        assert_eq!(conditions[1]["type"], "HotVCPUChange");
        for (desired, migratable, why) in [
            (with(5, "2Gi"), true, "higher than what's available"),
            (with(1, "2Gi"), true, "Reduction of CPU socket count"),
            (with(2, "1Gi"), true, "lower than what the VM started with"),
            (with(2, "9Gi"), true, "higher than what's available"),
            (with(2, "4Gi"), false, "only available for migratable VMs"),
        ] {
            let reported = restart(desired.clone(), migratable);
            assert!(reported.contains(why), "{desired}: {reported}");
        }
        let mut other = with(4, "2Gi");
        other["domain"]["cpu"]["maxSockets"] = json!(8);
        assert!(restart(other, true).starts_with("a non-live-updatable field"));
    }
    /// A guest with a card on the pod network and one on `prod`.
    fn two_cards() -> Value {
        json!({
            "domain": {"devices": {"interfaces": [
                {"name": "eth0", "masquerade": {}}, {"name": "eth1", "bridge": {}},
            ]}},
            "networks": [
                {"name": "eth0", "pod": {}}, {"name": "eth1", "multus": {"networkName": "a/prod"}},
            ],
            "nodeSelector": {"disk": "ssd"},
        })
    }

    #[test]
    fn cards_networks_and_node_labels_are_taken_over_without_a_restart() {
        let runs = json!({"spec": two_cards()});
        let mut desired = two_cards();
        desired["networks"][1]["multus"]["networkName"] = json!("a/test");
        let card = json!({"name": "eth2", "bridge": {}});
        let network = json!({"name": "eth2", "multus": {"networkName": "a/prod"}});
        let interfaces = desired.pointer_mut(CARDS).unwrap().as_array_mut().unwrap();
        interfaces.insert(0, card.clone());
        let networks = desired["networks"].as_array_mut().unwrap();
        networks.insert(0, network.clone());
        desired["nodeSelector"] = json!({"zone": "b"});
        for migratable in [true, false] {
            let Rollout { live, restart } = rollout(&desired, &runs, migratable);
            assert_eq!(restart, None);
            let spec = &live.unwrap()["spec"];
            assert_eq!(spec.pointer(CARDS).unwrap()[2], card);
            assert_eq!(spec["networks"][1]["multus"]["networkName"], "a/test");
            assert_eq!(spec["networks"][2], network);
            assert_eq!(spec["nodeSelector"], json!({"zone": "b", "disk": null}));
        }
    }

    #[test]
    fn a_card_that_leaves_changes_or_comes_without_a_bridge_needs_a_restart() {
        let runs = json!({"spec": two_cards()});
        let mut without = two_cards();
        without["domain"]["devices"]["interfaces"] = json!([{"name": "eth0", "masquerade": {}}]);
        without["networks"] = json!([{"name": "eth0", "pod": {}}]);
        let mut another = two_cards();
        another["domain"]["devices"]["interfaces"][1]["model"] = json!("e1000");
        let mut moved = two_cards();
        moved["networks"][1] = json!({"name": "eth1", "pod": {}});
        for desired in [without, another, moved] {
            let rollout = rollout(&desired, &runs, true);
            assert!(rollout.restart.is_some(), "{desired}");
            assert_eq!(rollout.live, None, "{desired}");
        }
    }
}
