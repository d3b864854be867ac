//! Machines of a group are kept apart, and tainted nodes are kept free: the nodes that guests get, and what a Machine says
//! that gets none.
mod environment;

use std::collections::BTreeSet;

use lab::{
    Scenario,
    objects::{condition, condition_message},
};
use serde_json::{Value, json};

use environment::{Environment, machine};

fn in_group(name: &str, required: bool) -> Value {
    let group = json!({"name": "db", "required": required});
    let spec = json!({"template": "small", "placement": {"antiAffinityGroup": group}});
    machine(name, &spec)
}

#[tokio::test]
async fn machines_of_a_group_run_on_different_nodes_and_wait_if_they_require_that() {
    let env = Environment::with_best_crds().await;
    let machines = env.machines();
    let mut nodes = BTreeSet::new();
    for name in ["a", "b", "c"] {
        env.apply(&in_group(name, true)).await;
        let runs = machines.until_phase(name, "Running").await.unwrap();
        nodes.insert(runs["status"]["nodeName"].as_str().unwrap().to_owned());
    }
    assert_eq!(nodes.len(), 3, "{nodes:?}");

    env.apply(&in_group("d", true)).await;
    let waits = machines.until_condition("d", "Ready", "False", "InsufficientResources");
    let waits = waits.await.unwrap();
    let message = condition_message(&waits, "Ready").unwrap();
    assert!(message.contains("anti-affinity"), "{message}");
    let freed = machines.get("b").await.unwrap();
    machines.delete("b").await.unwrap();
    let runs = machines.until_phase("d", "Running").await.unwrap();
    assert_eq!(runs["status"]["nodeName"], freed["status"]["nodeName"]);

    // A Machine that prefers another node is started beside one that prefers that, too.
    for name in ["a", "c", "d"] {
        env.apply(&in_group(name, false)).await;
        let pending = machines.until(name, "to have a pending change", |machine| {
            machine["status"]["pendingChanges"][0]["field"] == "placement.antiAffinityGroup"
        });
        let pending = pending.await.unwrap();
        let change = &pending["status"]["pendingChanges"][0];
        assert_eq!(
            (&change["current"], &change["desired"], &change["action"]),
            (
                &json!("db by Host, required"),
                &json!("db by Host, preferred"),
                &json!("Restart")
            )
        );
        assert_eq!(condition(&pending, "Ready")["reason"], "Running");
    }
    env.apply(&in_group("e", false)).await;
    machines.until_phase("e", "Running").await.unwrap();
}

#[tokio::test]
async fn a_guest_runs_on_tainted_nodes_only_if_it_tolerates_the_taint() {
    let env = Environment::with_best_crds().await;
    let (machines, kubectl) = (env.machines(), env.lab.kubectl());
    let taint = ["taint", "nodes", "--all", "dedicated=db:NoSchedule"];
    kubectl.run(&taint).await.unwrap().ok().unwrap();
    let tolerant = |effect: &str| {
        let toleration = json!({"key": "dedicated", "value": "db", "effect": effect});
        let placement = json!({"tolerations": [toleration]});
        machine("db", &json!({"template": "small", "placement": placement}))
    };
    env.apply(&machine("db", &json!({"template": "small"})))
        .await;
    let waits = machines.until_condition("db", "Ready", "False", "InsufficientResources");
    let waits = waits.await.unwrap();
    let message = condition_message(&waits, "Ready").unwrap();
    assert!(message.contains("untolerated taint"), "{message}");

    // A pod that waits is made anew with the next start of the guest.
    env.apply(&tolerant("NoSchedule")).await;
    let runs = machines.until_phase("db", "Running").await.unwrap();
    assert_eq!(runs["status"]["pendingChanges"], Value::Null);

    env.simulator.set_all(Scenario::NoMigration);
    env.apply(&tolerant("NoExecute")).await;
    let pending = machines.until("db", "to have a pending change", |machine| {
        !machine["status"]["pendingChanges"].is_null()
    });
    let pending = pending.await.unwrap();
    let change = &pending["status"]["pendingChanges"][0];
    assert_eq!(change["field"], "placement.tolerations");
    assert_eq!(change["current"], "dedicated=db:NoSchedule");
    assert_eq!(change["desired"], "dedicated=db:NoExecute");
    assert_eq!(change["action"], "Restart");
}
