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
