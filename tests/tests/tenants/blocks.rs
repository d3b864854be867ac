//! Attempts to store a block `spec.normalized` that admission did not compute.

use lab::wait;
use serde_json::{Value, json};

use crate::{
    red::Red,
    tenants::{Tenants, machine},
};

/// More than any policy, host or namespace has.
const FORGED: [(&str, &str); 2] = [
    ("/spec/normalized/memory/size", "1Ei"),
    ("/spec/normalized/disks/0/size", "1Ei"),
];

fn off(name: &str) -> Value {
    let spec = json!({"template": "small", "powerState": "Stopped"});
    machine("red", name, &spec)
}

/// Replaces fields of the block, each of which has to be refused.
async fn forge(tenants: &Tenants, name: &str) {
    for (path, value) in FORGED {
        let edit = json!([{"op": "replace", "path": path, "value": value}]).to_string();
        let patch = ["patch", "machine", name, "--type=json", "-p", &edit];
        let text = tenants.red.run(&patch).await.refused().unwrap();
        assert!(text.contains("[NormalizedEdited]"), "{path}: {text}");
    }
}

pub(crate) async fn forging_the_block(tenants: &Tenants) {
    tenants.red.create(&off("forger")).await;
    forge(tenants, "forger").await;
    // Sent with a new Machine, it does not count: the block is computed from the spec.
    let machines = Red::machines(&tenants.lab);
    let stored = machines.get("forger").await.unwrap();
    let mut attack = off("forger-too");
    attack["spec"]["normalized"] = stored["spec"]["normalized"].clone();
    attack["spec"]["normalized"]["memory"]["size"] = json!("1Ei");
    let dry = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let admitted = tenants.red.send(&dry, &attack).await.ok().unwrap();
    let admitted: Value = serde_json::from_str(&admitted).unwrap();
    let memory = |machine: &Value| machine["spec"]["normalized"]["memory"]["size"].clone();
    assert_eq!(memory(&admitted), memory(&stored));
}

pub(crate) async fn forging_the_block_of_a_paused_machine_under_deletion(tenants: &Tenants) {
    let red = &tenants.red;
    let mut paused = off("held");
    paused["metadata"]["annotations"] = json!({"machine.vitistack.io/paused": "true"});
    paused["metadata"]["finalizers"] = json!(["example.com/keep"]);
    red.create(&paused).await;
    let delete = ["delete", "machine", "held", "--wait=false"];
    red.run(&delete).await.ok().unwrap();
    forge(tenants, "held").await;
    let go = json!({"metadata": {"finalizers": null}}).to_string();
    let patch = ["patch", "machine", "held", "--type=merge", "-p", &go];
    red.run(&patch).await.ok().unwrap();
}

pub(crate) async fn sending_a_deletion_timestamp(tenants: &Tenants) {
    let mut attack = machine("red", "gone", &json!({"template": "no-such-template"}));
    attack["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    attack["metadata"]["finalizers"] = json!(["example.com/keep"]);
    for command in [
        &["apply", "--server-side", "-f", "-"][..],
        &["create", "-f", "-"],
    ] {
        let text = tenants.red.send(command, &attack).await.refused().unwrap();
        assert!(text.contains("[TemplateNotFound]"), "{command:?}: {text}");
    }
    let stored = Red::machines(&tenants.lab).find("gone").await.unwrap();
    assert_eq!(stored, None);
}

/// Waits until the webhook refuses, in a dry run, what a policy that was just written does not allow.
pub(crate) async fn until_refused(tenants: &Tenants, object: &Value, code: &str) {
    let dry = ["create", "--dry-run=server", "-f", "-"];
    wait::until("the webhook to have the policy", async || {
        let output = tenants.red.send(&dry, object).await;
        let is_refused = output.code != 0 && output.stderr.contains(code);
        Ok(is_refused.then_some(()).ok_or(output))
    })
    .await
    .unwrap();
}
