//! Writes that admission never refuses: deletion, finalizers, status, and labels and annotations of others, whether or
//! not the webhook runs and the referenced objects exist.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use lab::{Kubectl, wait};
use serde_json::{Value, json};

mod machines;

use machines::{lab, machine};

const KINDS: [&str; 4] = [
    "machine",
    "machinetemplate",
    "networkconfiguration",
    "libvirthost",
];

/// Creates a Machine, every object that it refers to, and a host without its Secret, all of this name.
async fn make(kubectl: &Kubectl, name: &str) {
    let uses = format!(
        "template: {name}\n\
         disks: [{{name: root, size: 1Gi, storageClass: fast-ssd}}]\n\
         networks: [{{name: eth0, networkName: {name}}}]"
    );
    let objects = format!(
        "\
apiVersion: vitistack.io/v1alpha1
kind: MachineTemplate
metadata: {{name: {name}}}
spec: {{resources: {{memory: {{size: 1Gi}}}}}}
---
apiVersion: vitistack.io/v1alpha1
kind: NetworkConfiguration
metadata: {{name: {name}, namespace: default}}
spec: {{bridge: br0}}
---
apiVersion: vitistack.io/v1alpha1
kind: LibvirtHost
metadata: {{name: {name}}}
spec: {{uri: 'qemu+tls://hv1/system', virtType: kvm, credentialsSecretRef: {{namespace: default, name: gone}}}}
---
{}",
        machine(name, &uses)
    );
    let made = kubectl.run_with(&["apply", "-f", "-"], objects).await;
    made.unwrap().ok().unwrap();
}

async fn run(kubectl: &Kubectl, arguments: &[&str]) -> String {
    kubectl.run(arguments).await.unwrap().ok().unwrap()
}

async fn patch(kubectl: &Kubectl, kind: &str, name: &str, patch: &Value, more: &[&str]) {
    let patch = patch.to_string();
    let mut arguments = vec!["patch", kind, name, "--type=merge", "-p", &patch];
    arguments.extend(more);
    run(kubectl, &arguments).await;
}

/// The object; null when it is gone.
async fn get(kubectl: &Kubectl, kind: &str, name: &str) -> Value {
    let text = run(
        kubectl,
        &["get", kind, name, "--ignore-not-found", "-o", "json"],
    )
    .await;
    serde_json::from_str(&text).unwrap_or_default()
}

/// Writes a status, if the kind has one.
async fn report(kubectl: &Kubectl, kind: &str, name: &str) {
    let status = match kind {
        "machine" => json!({"phase": "Failed"}),
        "libvirthost" => json!({"libvirtVersion": "9.0.0"}),
        _ => return,
    };
    let status = json!({ "status": status });
    patch(kubectl, kind, name, &status, &["--subresource=status"]).await;
}

/// Makes every write to an object that admission must never block, and deletes the object.
async fn passes(kubectl: &Kubectl, kind: &str, name: &str) {
    let before = get(kubectl, kind, name).await;
    let finalizers = |names: &[&str]| json!({"metadata": {"finalizers": names}});
    patch(kubectl, kind, name, &finalizers(&["example.com/keep"]), &[]).await;
    patch(kubectl, kind, name, &finalizers(&[]), &[]).await;
    run(kubectl, &["label", kind, name, "team=a"]).await;
    run(kubectl, &["annotate", kind, name, "example.com/note=b"]).await;
    report(kubectl, kind, name).await;

    let keep = ["example.com/keep", "example.com/keep-too"];
    patch(kubectl, kind, name, &finalizers(&keep), &[]).await;
    run(kubectl, &["delete", kind, name, "--wait=false"]).await;
    // Also while the object is being deleted.
    run(kubectl, &["label", kind, name, "team-"]).await;
    patch(kubectl, kind, name, &finalizers(&keep[..1]), &[]).await;
    report(kubectl, kind, name).await;
    let going = get(kubectl, kind, name).await;
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(going["metadata"]["annotations"]["example.com/note"], "b");
    assert_eq!(going["spec"], before["spec"]);
    patch(kubectl, kind, name, &finalizers(&[]), &[]).await;
    assert_eq!(get(kubectl, kind, name).await, Value::Null);
}

#[tokio::test]
async fn deletion_finalizers_status_and_labels_are_never_refused() {
    let (lab, mut webhook) = lab(&[("MISSING_NETWORKS", "deny")]).await;
    let kubectl = lab.kubectl();
    for name in ["up", "bereft", "down", "bereft-and-down"] {
        make(&kubectl, name).await;
    }

    for kind in KINDS {
        passes(&kubectl, kind, "up").await;
    }

    for name in ["bereft", "bereft-and-down"] {
        for kind in &KINDS[1..] {
            run(&kubectl, &["delete", kind, name]).await;
        }
    }
    run(&kubectl, &["delete", "storageclass", "fast-ssd"]).await;
    // Wait until the webhook's cache has the deletions: a new Machine with the same references is refused then.
    let wanted = "template: bereft\n\
                  disks: [{name: root, size: 1Gi, storageClass: fast-ssd}]\n\
                  networks: [{name: eth0, networkName: bereft}]";
    wait::until("the webhook to have seen the deletions", async || {
        let create = ["create", "--dry-run=server", "-f", "-"];
        let output = kubectl.run_with(&create, machine("new", wanted)).await?;
        let reported = output.stderr.matches("Not found: ").count();
        Ok(if reported == 3 {
            Ok(())
        } else {
            Err(output.to_string())
        })
    })
    .await
    .unwrap();
    passes(&kubectl, "machine", "bereft").await;

    webhook.kill();
    // A write that changes the desired state calls the webhook, and fails without its answer.
    let stopped = json!({"spec": {"powerState": "Stopped"}}).to_string();
    let change = ["patch", "machine", "down", "--type=merge", "-p", &stopped];
    let refused = kubectl.run(&change).await.unwrap().refused().unwrap();
    assert!(refused.contains("failed calling webhook"), "{refused}");
    passes(&kubectl, "machine", "bereft-and-down").await;
    for kind in KINDS {
        passes(&kubectl, kind, "down").await;
    }
}

/// Whether the webhook refused the command because of this code.
async fn assert_refused(kubectl: &Kubectl, arguments: &[&str], input: &str, code: &str) {
    let output = kubectl.run_with(arguments, input).await.unwrap();
    let refused = output.refused().unwrap();
    assert!(refused.contains(code), "{arguments:?}: {refused}");
}

#[tokio::test]
async fn a_deletion_timestamp_hides_no_change_of_the_spec() {
    let (lab, _webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();

    // A user sends the timestamp with a new object.
    let forged = machine("forged", "template: no-such-template").replace(
        "  namespace: default\n",
        "  namespace: default\n  deletionTimestamp: \"2026-01-01T00:00:00Z\"\n  finalizers: [example.com/keep]\n",
    );
    for apply in [
        ["apply", "--server-side", "-f", "-"].as_slice(),
        &["create", "-f", "-"],
    ] {
        assert_refused(&kubectl, apply, &forged, "[TemplateNotFound]").await;
    }
    assert_eq!(get(&kubectl, "machine", "forged").await, Value::Null);

    // The Machine is paused, so that its controller would keep it, and its deletion waits for a finalizer.
    let made = kubectl.run_with(
        &["apply", "-f", "-"],
        machine("held", "template: small\ndisks: [{name: root, size: 1Gi}]"),
    );
    made.await.unwrap().ok().unwrap();
    let paused = "machine.vitistack.io/paused=true";
    run(&kubectl, &["annotate", "machine", "held", paused]).await;
    let keep = json!({"metadata": {"finalizers": ["example.com/keep"]}});
    patch(&kubectl, "machine", "held", &keep, &[]).await;
    run(&kubectl, &["delete", "machine", "held", "--wait=false"]).await;
    let before = get(&kubectl, "machine", "held").await;
    assert!(before["metadata"]["deletionTimestamp"].is_string());

    for (path, value, code) in [
        (
            "/spec/normalized/memory/size",
            json!("1Ei"),
            "[NormalizedEdited]",
        ),
        (
            "/spec/normalized/disks/0/size",
            json!("1Ei"),
            "[NormalizedEdited]",
        ),
        ("/spec/disks/0/size", json!("1Ei"), "[DiskTooLarge]"),
    ] {
        let edit = json!([{"op": "replace", "path": path, "value": value}]).to_string();
        let patch = ["patch", "machine", "held", "--type=json", "-p", &edit];
        assert_refused(&kubectl, &patch, "", code).await;
    }
    // The block is written again: the controller could not act on a Machine without it.
    let remove = json!([{"op": "remove", "path": "/spec/normalized"}]).to_string();
    let remove = ["patch", "machine", "held", "--type=json", "-p", &remove];
    run(&kubectl, &remove).await;
    let after = get(&kubectl, "machine", "held").await;
    assert_eq!(after["spec"], before["spec"]);

    patch(
        &kubectl,
        "machine",
        "held",
        &json!({"metadata": {"finalizers": []}}),
        &[],
    )
    .await;
    assert_eq!(get(&kubectl, "machine", "held").await, Value::Null);
}
