//! The health of a Machine, as kubectl and GitOps tools read it without knowing the kind.

mod environment;

use lab::{Scenario, objects::condition};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// The status of an object by the rules of kstatus for unknown kinds, which Flux uses.
fn kstatus(object: &Value) -> &'static str {
    let (metadata, status) = (&object["metadata"], &object["status"]);
    if !metadata["deletionTimestamp"].is_null() {
        return "Terminating";
    }
    let seen = &status["observedGeneration"];
    if !seen.is_null() && *seen != metadata["generation"] {
        return "InProgress";
    }
    if condition(object, "Stalled")["status"] == "True" {
        return "Failed";
    }
    match condition(object, "Ready")["status"].as_str() {
        _ if condition(object, "Reconciling")["status"] == "True" => "InProgress",
        Some("False" | "Unknown") => "InProgress",
        // kstatus treats an object without conditions as current; the rest of the test waits for Ready first.
        _ => "Current",
    }
}

#[tokio::test]
async fn kubectl_wait_and_gitops_tools_can_wait_for_a_machine() {
    let mut env = Environment::new().await;
    let (kubectl, machines) = (env.lab.kubectl(), env.machines());
    let wait = [
        "wait",
        "--for=condition=Ready",
        "--timeout=10m",
        "machine/web",
    ];
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    let met = kubectl.run(&wait).await.unwrap().ok().unwrap();
    assert_eq!(met.trim(), "machine.vitistack.io/web condition met");
    assert_eq!(kstatus(&machines.get("web").await.unwrap()), "Current");

    // A status of an earlier generation does not count as current.
    env.controller.stop().await.unwrap();
    let off = json!({"spec": {"powerState": "Stopped"}});
    machines.merge("web", &off).await.unwrap();
    let waits = machines.get("web").await.unwrap();
    assert_eq!(condition(&waits, "Ready")["status"], "True");
    assert_eq!(kstatus(&waits), "InProgress");
    env.controller.start_again().unwrap();
    let stopped = machines
        .until_condition("web", "Ready", "True", "Stopped")
        .await;
    assert_eq!(kstatus(&stopped.unwrap()), "Current");

    // A failed Machine never counts as current.
    env.simulator.set("default", "broken", Scenario::Crash);
    env.apply(&machine("broken", &json!({"template": "small"})))
        .await;
    let broken = machines.until_phase("broken", "Failed").await.unwrap();
    assert_eq!(kstatus(&broken), "InProgress");
    env.simulator.set("default", "web", Scenario::Stuck);
    machines
        .merge("web", &json!({"spec": {"powerState": "Running"}}))
        .await
        .unwrap();
    machines.until_phase("web", "Running").await.unwrap();
    machines.delete("web").await.unwrap();
    let web = machines
        .until_condition("web", "Ready", "False", "Deleting")
        .await;
    assert_eq!(kstatus(&web.unwrap()), "Terminating");
}
