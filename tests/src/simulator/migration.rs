//! Live migrations: what asks for one, and what the guest has afterwards.
//!
//! As KubeVirt 1.9:
//!
//! ```text
//! instance has a card or network that the pod lacks ─▶ MigrationRequired=False, AutoMigrationPending
//!     ├─▶ the guest cannot migrate: it stays so
//!     └─▶ MigrationRequired=True, AutoMigrationDueToLiveUpdate ─▶ migration, if workloadUpdateMethods has LiveMigrate
//! launcher pod evicted ─▶ evacuationNodeName, EvictionRequested=True ─▶ migration, unless evictionStrategy is External
//! migration ─▶ a pod made from the instance's specification on another node ─▶ the guest is there
//! ```
//! `pkg/network/migration` decides, the workload updater and the evacuation controller migrate. KubeVirt waits 15 s
//! before it sets `True`, and a migration takes its time; here each is one step. Other node labels ask for no
//! migration.

use serde_json::{Value, json};

use super::{
    guest::{NODES, pod_interface},
    scenario::Scenario,
};

const REQUIRED: &str = "MigrationRequired";
const EVICTION: &str = "EvictionRequested";
const STRATEGY: &str = "evictionStrategy";

/// The next write for a running instance.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// The status of the instance.
    Report(Value),
    /// The guest is on another node, with this status of the instance.
    Complete(Value),
}

/// The next step of a running instance; `None`: there is none. `cards`: the state of the instance's cards once they are
/// in the guest.
pub(super) fn next(
    instance: &Value,
    pod: Option<&Value>,
    migratable: bool,
    scenario: Scenario,
    cards: impl FnOnce() -> Vec<Value>,
) -> Option<Step> {
    let status = &instance["status"];
    if is_underway(instance) {
        return Some(Step::Complete(migrated_status(instance, &cards())));
    }
    let migrates = migratable && scenario != Scenario::NoMigration;
    let evacuates = instance["spec"][STRATEGY] != "External";
    if is_true(status, EVICTION) && evacuates && migrates {
        return Some(Step::Report(started(instance)));
    }
    let required = condition(status, REQUIRED);
    let requested = |value: &str, reason: &str| {
        let condition = json!({"type": REQUIRED, "status": value, "reason": reason});
        let mut conditions = without(status, &[REQUIRED]);
        conditions.push(condition);
        Some(Step::Report(json!({"conditions": conditions})))
    };
    match required.map(|condition| condition["status"] == "True") {
        None if waits(instance, pod) => requested("False", "AutoMigrationPending"),
        Some(_) if !waits(instance, pod) => {
            let conditions = without(status, &[REQUIRED]);
            Some(Step::Report(json!({"conditions": conditions})))
        }
        Some(false) if migratable => requested("True", "AutoMigrationDueToLiveUpdate"),
        Some(true) if migrates => Some(Step::Report(started(instance))),
        None | Some(_) => None,
    }
}

/// Whether the guest moves to another node.
pub(super) fn is_underway(instance: &Value) -> bool {
    let state = &instance["status"]["migrationState"];
    state.is_object() && state["completed"] != true
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut conditions = list(&status["conditions"]).iter();
    conditions.find(|condition| condition["type"] == kind)
}

fn is_true(status: &Value, kind: &str) -> bool {
    condition(status, kind).is_some_and(|condition| condition["status"] == "True")
}

/// The conditions without those of these types.
fn without(status: &Value, kinds: &[&str]) -> Vec<Value> {
    let conditions = list(&status["conditions"]).iter();
    let kept = conditions.filter(|it| kinds.iter().all(|kind| it["type"] != *kind));
    kept.cloned().collect()
}

/// Whether a card of the instance is not in the guest, or its network is not that of the pod.
fn waits(instance: &Value, pod: Option<&Value>) -> bool {
    let selected = pod.and_then(|pod| {
        let annotations = &pod["metadata"]["annotations"];
        let selected = annotations["k8s.v1.cni.cncf.io/networks"].as_str();
        serde_json::from_str::<Value>(selected.unwrap_or("[]")).ok()
    });
    let networks = list(&instance["spec"]["networks"]).iter();
    let mut networks = networks.filter(|network| network["multus"].is_object());
    networks.any(|network| {
        let cards = &instance["status"]["interfaces"];
        let has = list(cards).iter().any(|it| it["name"] == network["name"]);
        let interface = pod_interface(network);
        let is_on = |element: &Value| {
            let text = |key: &str| element[key].as_str().unwrap_or_default();
            let name = format!("{}/{}", text("namespace"), text("name"));
            element["interface"] == interface && network["multus"]["networkName"] == name
        };
        let moved = selected
            .as_ref()
            .is_some_and(|all| !list(all).iter().any(is_on));
        !has || moved
    })
}

/// Whether KubeVirt reports that the guest can be migrated.
pub(super) fn is_migratable(instance: &Value) -> bool {
    is_true(&instance["status"], "LiveMigratable")
}

/// The status of an instance whose migration starts.
pub(super) fn started(instance: &Value) -> Value {
    started_to(instance, None)
}

/// The status of an instance whose migration to this node starts.
pub(super) fn started_to(instance: &Value, wanted: Option<&str>) -> Value {
    let node = instance["status"]["nodeName"].as_str().unwrap_or_default();
    let number = node
        .rsplit('-')
        .next()
        .and_then(|it| it.parse::<u64>().ok());
    let target = number.unwrap_or_default() % NODES + 1;
    let target = wanted.map_or_else(|| format!("node-{target}"), ToOwned::to_owned);
    let state = json!({
        "sourceNode": node, "targetNode": target,
        "completed": null, "failed": null, "failureReason": null,
    });
    json!({ "migrationState": state })
}

/// The status of an instance whose guest runs on the target node.
fn migrated_status(instance: &Value, cards: &[Value]) -> Value {
    let (spec, status) = (&instance["spec"], &instance["status"]);
    let memory = &spec["domain"]["memory"]["guest"];
    let conditions = [REQUIRED, EVICTION, "HotVCPUChange", "HotMemoryChange"];
    json!({
        "nodeName": status["migrationState"]["targetNode"],
        "migrationState": {"completed": true},
        "evacuationNodeName": null,
        "interfaces": cards,
        "currentCPUTopology": {"sockets": spec["domain"]["cpu"]["sockets"]},
        "memory": {"guestCurrent": memory, "guestRequested": memory},
        "conditions": without(status, &conditions),
    })
}

/// The answer of virt-api's webhook for evictions (`pod-eviction-admitter.go`, v1.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// The pod is deleted, and the guest shuts down.
    Allowed,
    /// The eviction is refused for now, and the guest is to leave the node.
    Waits,
    /// The eviction is refused: the guest has to be migrated, and cannot be.
    Refused,
}

/// How an eviction of the guest's pod is answered.
pub(super) fn eviction(instance: &Value) -> Eviction {
    let migratable = is_migratable(instance);
    match (instance["spec"][STRATEGY].as_str(), migratable) {
        (Some("External"), _) | (Some("LiveMigrate" | "LiveMigrateIfPossible"), true) => {
            Eviction::Waits
        }
        (Some("LiveMigrate"), false) => Eviction::Refused,
        _ => Eviction::Allowed,
    }
}

/// The status of a running instance whose launcher pod was evicted, as virt-api's webhook for evictions and
/// virt-controller (since 1.7 with the condition) set it.
pub(super) fn evicted(instance: &Value) -> Value {
    let status = &instance["status"];
    let mut conditions = without(status, &[EVICTION]);
    conditions.push(json!({"type": EVICTION, "status": "True", "reason": EVICTION}));
    json!({"evacuationNodeName": status["nodeName"], "conditions": conditions})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest on `a/prod` whose instance is on this network, with these conditions.
    fn instance(network: &str, conditions: &Value) -> Value {
        json!({
            "spec": {"networks": [{"name": "eth0", "multus": {"networkName": network}}]},
            "status": {
                "nodeName": "node-3", "conditions": conditions,
                "interfaces": [{"name": "eth0"}],
            },
        })
    }

    fn pod() -> Value {
        let interface = pod_interface(&json!({"name": "eth0"}));
        let networks = json!([{"name": "prod", "namespace": "a", "interface": interface}]);
        let annotations = json!({"k8s.v1.cni.cncf.io/networks": networks.to_string()});
        json!({"metadata": {"annotations": annotations}})
    }

    fn step(instance: &Value, migratable: bool, scenario: Scenario) -> Option<Step> {
        next(instance, Some(&pod()), migratable, scenario, Vec::new)
    }

    #[test]
    fn another_network_or_card_waits_and_migrates_where_that_is_possible() {
        let none = json!([]);
        let here = instance("a/prod", &none);
        assert_eq!(step(&here, true, Scenario::Happy), None);
        let required = |value: &str, reason: &str| json!([{"type": REQUIRED, "status": value, "reason": reason}]);
        let waits = required("False", "AutoMigrationPending");
        let due = required("True", "AutoMigrationDueToLiveUpdate");
        let reports = |conditions: &Value| Some(Step::Report(json!({"conditions": conditions})));

        let moved = instance("a/test", &none);
        assert_eq!(step(&moved, false, Scenario::Happy), reports(&waits));
        let mut added = here.clone();
        added["status"]["interfaces"] = json!([]);
        assert_eq!(step(&added, false, Scenario::Happy), reports(&waits));
        let moved = instance("a/test", &waits);
        assert_eq!(step(&moved, false, Scenario::Happy), None);
        assert_eq!(step(&moved, true, Scenario::Happy), reports(&due));
        let moved = instance("a/test", &due);
        assert_eq!(step(&moved, true, Scenario::NoMigration), None);
        let Some(Step::Report(status)) = step(&moved, true, Scenario::Happy) else {
            panic!("no migration");
        };
        assert_eq!(status["migrationState"]["targetNode"], "node-1");
        // Changed back before the migration.
        let back = instance("a/prod", &due);
        assert_eq!(step(&back, true, Scenario::NoMigration), reports(&none));
    }

    #[test]
    fn an_eviction_is_answered_by_strategy_and_what_the_guest_can() {
        let answer = |strategy: &str, migratable: &str| {
            let conditions = json!([{"type": "LiveMigratable", "status": migratable}]);
            let mut instance = instance("a/prod", &conditions);
            instance["spec"][STRATEGY] = json!(strategy);
            eviction(&instance)
        };
        for (strategy, can, cannot) in [
            ("None", Eviction::Allowed, Eviction::Allowed),
            ("LiveMigrateIfPossible", Eviction::Waits, Eviction::Allowed),
            ("LiveMigrate", Eviction::Waits, Eviction::Refused),
            ("External", Eviction::Waits, Eviction::Waits),
        ] {
            assert_eq!(answer(strategy, "True"), can, "{strategy}");
            assert_eq!(answer(strategy, "False"), cannot, "{strategy}");
        }
    }

    #[test]
    fn an_evicted_guest_migrates_and_its_conditions_end() {
        let mut instance = instance("a/prod", &json!([{"type": "Ready", "status": "True"}]));
        let status = evicted(&instance);
        assert_eq!(status["evacuationNodeName"], "node-3");
        instance["status"]["conditions"] = status["conditions"].clone();
        assert_eq!(step(&instance, false, Scenario::Happy), None);
        let Some(Step::Report(status)) = step(&instance, true, Scenario::Happy) else {
            panic!("no migration");
        };
        instance["status"]["migrationState"] = status["migrationState"].clone();
        let Some(Step::Complete(status)) = step(&instance, true, Scenario::Happy) else {
            panic!("no arrival");
        };
        assert_eq!(status["nodeName"], "node-1");
        let ready = json!([{"type": "Ready", "status": "True"}]);
        assert_eq!(status["conditions"], ready);
    }
}
