//! VirtualMachineInstanceMigrations: migrations that somebody requests, as virt-controller carries them out.
//!
//! ```text
//! created ─▶ Scheduling ─ the guest can migrate, and a node is free ─▶ Running ─ it runs there ─▶ Succeeded
//!        └▶ Failed, if the guest does not run or cannot migrate
//! ```
//! virt-api's admission refuses what cannot migrate at once; here it fails.

use std::{sync::Arc, time::Duration};

use kube::{
    ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
    runtime::{
        controller::{Action, Controller},
        watcher,
    },
};
use serde_json::{Value, json};

use super::{
    context::{Context, drain, merge, retry},
    error::SimulatorError,
    guest::{is_final, text},
    kinds::{INSTANCE, MIGRATION},
    machine::has_ended_or_ends,
    migration,
    scenario::Scenario,
};

/// Pause between two looks at a migration that has not ended.
const LOOK: Duration = Duration::from_millis(200);

pub(super) async fn run(context: Arc<Context>) {
    let config = watcher::Config::default();
    let all = context.all(&MIGRATION);
    let controller =
        Controller::new_with(all, config, MIGRATION.resource()).run(reconcile, retry, context);
    drain(controller).await;
}

async fn reconcile(
    object: Arc<DynamicObject>,
    context: Arc<Context>,
) -> Result<Action, SimulatorError> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let migrations = context.api(&MIGRATION, &namespace);
    let instances = context.api(&INSTANCE, &namespace);
    let Some(requested) = migrations.get_opt(&name).await? else {
        return Ok(Action::await_change());
    };
    let requested = serde_json::to_value(&requested)?;
    let guest = text(&requested["spec"]["vmiName"]).to_owned();
    let instance = instances.get_opt(&guest).await?;
    let instance = instance.map(|it| serde_json::to_value(&it)).transpose()?;
    let scenario = context.scenarios.of(&namespace, &guest);
    let status = match next(&requested, instance.as_ref(), scenario) {
        Step::Ended => return Ok(Action::await_change()),
        Step::Waits => return Ok(Action::requeue(LOOK)),
        Step::Begins(state) => {
            merge(&instances, &guest, &json!({"status": state})).await?;
            json!({"phase": "Running"})
        }
        Step::Reports(status) => status,
    };
    let patch = Patch::Merge(json!({"status": status}));
    let parameters = PatchParams::default();
    migrations.patch_status(&name, &parameters, &patch).await?;
    Ok(Action::requeue(LOOK))
}

#[derive(Debug, PartialEq)]
enum Step {
    Ended,
    Waits,
    /// The guest begins to move: with this status of the instance.
    Begins(Value),
    /// The status of the migration.
    Reports(Value),
}

fn next(requested: &Value, instance: Option<&Value>, scenario: Scenario) -> Step {
    let phase = text(&requested["status"]["phase"]);
    let node = requested["spec"]["addedNodeSelector"]["kubernetes.io/hostname"].as_str();
    if is_final(phase) {
        return Step::Ended;
    }
    let failed = |why: &str| {
        let state = json!({"completed": true, "failed": true, "failureReason": why});
        Step::Reports(json!({"phase": "Failed", "migrationState": state}))
    };
    let Some(instance) = instance.filter(|it| !has_ended_or_ends(it)) else {
        return failed("vmi does not exist or has ended");
    };
    let state = &instance["status"]["migrationState"];
    match phase {
        "Running" if state["completed"] == true => {
            Step::Reports(json!({"phase": "Succeeded", "migrationState": state}))
        }
        "Running" => Step::Waits,
        _ if !migration::is_migratable(instance) => failed("Cannot migrate VMI"),
        "" => Step::Reports(json!({"phase": "Scheduling"})),
        _ if scenario == Scenario::NoMigration => Step::Waits,
        _ => Step::Begins(migration::started_to(instance, node)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_migration_moves_the_guest_to_the_node_and_one_that_cannot_be_fails() {
        let request = |phase: &str| {
            let node = json!({"kubernetes.io/hostname": "node-3"});
            json!({"spec": {"vmiName": "web", "addedNodeSelector": node}, "status": {"phase": phase}})
        };
        let guest = |migratable: &str, state: Value| {
            let conditions = json!([{"type": "LiveMigratable", "status": migratable}]);
            json!({"status": {
                "phase": "Running", "nodeName": "node-1", "conditions": conditions, "migrationState": state,
            }})
        };
        let here = guest("True", Value::Null);
        let step = |phase: &str, scenario| next(&request(phase), Some(&here), scenario);
        assert_eq!(
            step("", Scenario::Happy),
            Step::Reports(json!({"phase": "Scheduling"}))
        );
        assert_eq!(step("Scheduling", Scenario::NoMigration), Step::Waits);
        let Step::Begins(status) = step("Scheduling", Scenario::Happy) else {
            panic!("it does not begin");
        };
        assert_eq!(status["migrationState"]["targetNode"], "node-3");
        assert_eq!(step("Running", Scenario::Happy), Step::Waits);
        let there = guest("True", json!({"completed": true}));
        let Step::Reports(status) = next(&request("Running"), Some(&there), Scenario::Happy) else {
            panic!("it does not end");
        };
        assert_eq!(status["phase"], "Succeeded");
        assert_eq!(step("Succeeded", Scenario::Happy), Step::Ended);
        for instance in [None, Some(&guest("False", Value::Null))] {
            let Step::Reports(status) = next(&request(""), instance, Scenario::Happy) else {
                panic!("it does not fail");
            };
            assert_eq!(status["phase"], "Failed");
        }
    }
}
