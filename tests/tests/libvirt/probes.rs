//! A guest with a readiness probe is ready while its agent answers.

use lab::{objects::condition, wait};
use serde_json::{Value, json};

use crate::environment::{Environment, machine};

/// Status and reason of the condition `Ready`.
fn ready(machine: &Value) -> (&Value, &Value) {
    let ready = condition(machine, "Ready");
    (&ready["status"], &ready["reason"])
}

fn fails(machine: &Value) -> bool {
    ready(machine) == (&json!("False"), &json!("ReadinessProbeFailing"))
        && machine["status"]["phase"] == "Running"
}

#[tokio::test]
async fn a_guest_with_a_readiness_probe_is_ready_while_its_agent_answers() {
    let Some(env) = Environment::new().await else {
        return;
    };
    let kubectl = env.lab.kubectl();
    let liveness = json!({"probes": {"liveness": {"guestAgentPing": {}}}});
    let refused = kubectl.apply(&machine("vm", &liveness)).await.unwrap();
    let refused = refused.refused().unwrap();
    assert!(refused.contains("[ProbesNeedKubevirt]"), "{refused}");

    let probe = json!({"guestAgentPing": {}, "periodSeconds": 1, "failureThreshold": 2});
    env.apply("vm", &json!({"probes": {"readiness": probe}}))
        .await;
    // The guest boots for seconds before its agent is there.
    let boots = env.until("vm", "to run without its agent", fails).await;
    let message = condition(&boots, "Ready")["message"].as_str().unwrap();
    assert!(message.contains("guest agent"), "{message}");
    let is_ready = |it: &Value| ready(it) == (&json!("True"), &json!("Running"));
    env.until("vm", "to be ready", is_ready).await;
    let report = env.until_report("vm", "its boot", |it| it.boots == 1).await;

    let kill = json!({
        "execute": "guest-exec",
        "arguments": {"path": "/bin/busybox", "arg": ["killall", "qemu-ga"]},
    });
    let domain = env.domain("vm").await;
    wait::until("the agent to end", async || {
        // It may end before it has answered.
        let command = [
            "qemu-agent-command",
            "--timeout",
            "2",
            &domain,
            &kill.to_string(),
        ];
        env.libvirt.virsh(&command).await?;
        // An agent that is slow fails a command, too, but has its end of the channel open.
        let asked = env.libvirt.virsh(&["domtime", &domain]).await?;
        let has_ended = asked.stderr.contains("guest agent is not connected");
        Ok(has_ended.then_some(()).ok_or(asked))
    })
    .await
    .unwrap();
    let fails = env.until("vm", "to fail its probe", fails).await;
    let message = condition(&fails, "Ready")["message"].as_str().unwrap();
    assert!(message.contains("does not answer within 1 s"), "{message}");

    // Without the probe it is ready at once, in the same boot.
    env.apply("vm", &json!({})).await;
    let probed = env.until("vm", "to be ready again", is_ready).await;
    assert!(probed["status"]["pendingChanges"].is_null(), "{probed}");
    env.assert_same_run(&report).await;
}
