//! Whether a Machine is as wished, as kubectl and GitOps tools tell it without knowing the kind.

mod stage;

use lab::{Script, objects::condition};
use serde_json::{Value, json};

use stage::{Stage, machine};

/// What Flux makes of any object: the rules of kstatus for kinds it does not know.
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
        // Without any condition kstatus takes an object for current: scripts wait for Ready.
        _ => "Current",
    }
}

#[tokio::test]
async fn scripts_and_gitops_tools_can_wait_for_a_machine() {
    let mut stage = Stage::new().await;
    let (kubectl, machines) = (stage.lab.kubectl(), stage.machines());
    let wait = [
        "wait",
        "--for=condition=Ready",
        "--timeout=30s",
        "machine/web",
    ];
    stage
        .apply(&machine("web", &json!({"template": "small"})))
        .await;
    let met = kubectl.run(&wait).await.unwrap().ok().unwrap();
    assert_eq!(met.trim(), "machine.vitistack.io/web condition met");
    assert_eq!(kstatus(&machines.get("web").await.unwrap()), "Current");

    // Nobody takes an old status for the answer to a new wish.
    stage.controller.stop().await.unwrap();
    let off = json!({"spec": {"powerState": "Stopped"}});
    machines.merge("web", &off).await.unwrap();
    let waits = machines.get("web").await.unwrap();
    assert_eq!(condition(&waits, "Ready")["status"], "True");
    assert_eq!(kstatus(&waits), "InProgress");
    stage.controller.start_again().unwrap();
    let stopped = machines.told("web", "Ready", "True", "Stopped").await;
    assert_eq!(kstatus(&stopped.unwrap()), "Current");

    // What has failed is never taken for done.
    stage.simulator.set("default", "broken", Script::Crash);
    stage
        .apply(&machine("broken", &json!({"template": "small"})))
        .await;
    let broken = machines.in_phase("broken", "Failed").await.unwrap();
    assert_eq!(kstatus(&broken), "InProgress");
    stage.simulator.set("default", "web", Script::Stuck);
    machines
        .merge("web", &json!({"spec": {"powerState": "Running"}}))
        .await
        .unwrap();
    machines.delete("web").await.unwrap();
    let web = machines.told("web", "Ready", "False", "Deleting").await;
    assert_eq!(kstatus(&web.unwrap()), "Terminating");
}
