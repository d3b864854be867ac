//! Updates of existing Machines through kubectl: forbidden changes, and Machines with stored faults or missing
//! references, which can still be changed and deleted.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod machines;

use lab::{Kubectl, Lab, wait};
use machines::{api, lab, machine};
use serde_json::Value;

const APPLY: [&str; 3] = ["apply", "-f", "-"];

async fn apply(kubectl: &Kubectl, manifest: &str) -> String {
    let output = kubectl.run_with(&APPLY, manifest).await.unwrap();
    assert_eq!(output.code, 0, "{output}");
    output.stderr
}

/// The faults that an update is refused for.
async fn refused(kubectl: &Kubectl, manifest: &str) -> Vec<String> {
    let output = kubectl.run_with(&APPLY, manifest).await.unwrap();
    let stderr = output.refused().unwrap();
    assert!(
        stderr.contains("Error from server (Forbidden): "),
        "{stderr}"
    );
    let faults = stderr.lines().filter(|line| line.starts_with("* "));
    faults.map(ToOwned::to_owned).collect()
}

async fn spec(lab: &Lab, name: &str) -> Value {
    let stored = api(lab.client(), "Machine").get(name).await.unwrap();
    stored.data["spec"].clone()
}

#[tokio::test]
async fn a_forbidden_update_states_what_to_do_instead() {
    let (lab, _webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();
    apply(&kubectl, &machine("web", "template: medium")).await;
    let before = spec(&lab, "web").await;

    assert_eq!(
        refused(&kubectl, &machine("web", "template: small")).await,
        [
            "* spec.template: Forbidden: disk 'root' cannot shrink from 40Gi to 20Gi, because a volume never gives space back; keep it with 'size: 40Gi' for 'root' in spec.disks (disks[0].size of the template) [DiskShrunk]"
        ]
    );
    let everything = "\
template: medium
disks: [{name: root, size: 50Gi, storageClass: fast-ssd}]
domain: {firmware: {bootloader: {efi: true}}}";
    assert_eq!(
        refused(&kubectl, &machine("web", everything)).await,
        [
            "* spec.disks[0].storageClass: Forbidden: the storageClass of disk 'root' cannot change from \"standard\" to \"fast-ssd\", because its volume exists; set it to \"standard\", or take another disk [DiskChanged]",
            "* spec.disks[0].size: Forbidden: disk 'root' cannot grow from 40Gi to 50Gi: storage class \"standard\" does not allow volume expansion; set it to 40Gi, and add another disk for more space [DiskCannotGrow]",
            "* spec.domain.firmware.bootloader.efi: Forbidden: cannot change from false to true while the machine runs; set 'powerState: Stopped' before or in the same update, or leave it at false [StopFirst]",
        ]
    );
    assert_eq!(before, spec(&lab, "web").await);

    // Do what the refusals suggested.
    let smaller = machine("web", "template: small\ndisks: [{name: root, size: 40Gi}]");
    assert_eq!(
        apply(&kubectl, &smaller).await,
        "Warning: spec.template: resources.cpu.cores changes from 2 to 1 at the next restart [RestartRequired]\n\
         Warning: spec.template: resources.memory.size changes from 4Gi to 2Gi at the next restart [RestartRequired]\n"
    );
    let stopped = "\
template: small
powerState: Stopped
disks: [{name: root, size: 40Gi}]
domain: {firmware: {bootloader: {efi: true}}}";
    assert_eq!(apply(&kubectl, &machine("web", stopped)).await, "");
    let block = &spec(&lab, "web").await["normalized"];
    assert_eq!(block["firmware"]["type"], "efi");
    assert_eq!(block["disks"][0]["size"], "40Gi");
}

/// The objects that a Machine refers to may be deleted; the Machine can still be edited and deleted.
#[tokio::test]
async fn a_machine_whose_referenced_objects_were_deleted_can_still_be_edited() {
    let (lab, _webhook) = lab(&[("MISSING_NETWORKS", "deny")]).await;
    let kubectl = lab.kubectl();
    let templates = "\
apiVersion: vitistack.io/v1alpha1
kind: MachineTemplate
metadata: {name: short-lived}
spec: {resources: {memory: {size: 1Gi}}}
---
apiVersion: vitistack.io/v1alpha1
kind: NetworkConfiguration
metadata: {name: prod-network, namespace: default}
spec: {bridge: br0}";
    apply(&kubectl, templates).await;
    let uses = "\
template: short-lived
disks: [{name: root, size: 1Gi, storageClass: fast-ssd}]
networks: [{name: eth0, networkName: prod-network}]";
    apply(&kubectl, &machine("web", uses)).await;
    for what in [
        ["machinetemplate", "short-lived"],
        ["storageclass", "fast-ssd"],
        ["networkconfiguration", "prod-network"],
    ] {
        let [kind, name] = what;
        let output = kubectl.run(&["delete", kind, name]).await.unwrap();
        output.ok().unwrap();
    }
    // Wait until the webhook has seen the deletions: a new Machine is refused for all three references.
    wait::until("the webhook to have seen the deletions", async || {
        let create = ["create", "--dry-run=server", "-f", "-"];
        let output = kubectl.run_with(&create, &machine("new", uses)).await?;
        let missing = [
            "TemplateNotFound",
            "StorageClassNotFound",
            "NetworkConfigurationNotFound",
        ];
        let all = missing.iter().all(|code| output.stderr.contains(code));
        Ok(if all { Ok(()) } else { Err(output.to_string()) })
    })
    .await
    .unwrap();

    let edited = format!("{uses}\npowerState: Stopped\nresources: {{cpu: {{cores: 3}}}}");
    assert_eq!(apply(&kubectl, &machine("web", &edited)).await, "");
    let block = &spec(&lab, "web").await["normalized"];
    assert_eq!(block["cpu"]["cores"], 3);
    assert_eq!(block["memory"]["size"], "1Gi");
    assert_eq!(block["disks"][0]["storageClass"], "fast-ssd");
    // The webhook checks later changes against the deleted storage class.
    let grown = edited.replace("size: 1Gi", "size: 2Gi");
    assert_eq!(
        refused(&kubectl, &machine("web", &grown)).await,
        [
            "* spec.disks[0].size: Forbidden: disk 'root' cannot grow from 1Gi to 2Gi: storage class \"fast-ssd\" does not exist any more, so its volumes cannot be expanded; set it to 1Gi, and add another disk for more space [DiskCannotGrow]"
        ]
    );
    for change in [
        &["label", "machine", "web", "team=a"][..],
        &["annotate", "machine", "web", "note=b"],
        &["delete", "machine", "web", "--wait=false"],
    ] {
        kubectl.run(change).await.unwrap().ok().unwrap();
    }
    let left = api(lab.client(), "Machine").get_opt("web").await.unwrap();
    assert_eq!(left, None);
}

/// `kubectl delete --wait=false` and `kubectl apply` of another manifest, as in a pipeline.
#[tokio::test]
async fn the_manifest_of_the_next_machine_waits_until_the_deleted_one_is_gone() {
    let (lab, _webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();
    apply(&kubectl, &machine("web", "template: medium")).await;
    let finalizer = r#"{"metadata": {"finalizers": ["example.org/backup"]}}"#;
    let patch = ["patch", "machine", "web", "--type=merge", "-p"];
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap().ok().unwrap();
    run(&[&patch[..], &[finalizer]].concat()).await;
    run(&["delete", "machine", "web", "--wait=false"]).await;

    let smaller = machine("web", "template: small");
    assert_eq!(
        refused(&kubectl, &smaller).await,
        [
            "* metadata.name: Forbidden: the Machine is being deleted, and this change is refused on an existing Machine; apply the manifest again once the Machine is gone, which creates another one [MachineDeleting]"
        ]
    );
    let stopped = machine("web", "template: medium\npowerState: Stopped");
    assert_eq!(
        apply(&kubectl, &stopped).await,
        "Warning: Detected changes to resource web which is currently being deleted.\n",
        "what fits is accepted, and kubectl warns by itself"
    );

    run(&[&patch[..], &[r#"{"metadata": {"finalizers": null}}"#]].concat()).await;
    apply(&kubectl, &smaller).await;
    assert_eq!(
        spec(&lab, "web").await["normalized"]["disks"][0]["size"],
        "20Gi"
    );
}

/// Faults that were stored without the webhook can be repaired one by one.
#[tokio::test]
async fn faults_stored_without_the_webhook_are_repaired_one_by_one() {
    let (mut lab, webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();
    drop(webhook);
    lab.unregister_webhooks().await.unwrap();
    let faulty = "template: smal\ndisks: [{name: root, size: 1Gi, storageClass: fast-sdd}]";
    wait::until("the webhook not to be called any more", async || {
        let output = kubectl.run_with(&APPLY, machine("web", faulty)).await?;
        Ok(output.ok())
    })
    .await
    .unwrap();
    let _webhook = lab.webhook(&[]).await.unwrap();

    // Both faults were there before: another change is no reason to refuse it.
    let stderr = apply(
        &kubectl,
        &machine("web", &format!("{faulty}\npowerState: Stopped")),
    )
    .await;
    let reported: Vec<&str> = stderr.lines().collect();
    assert_eq!(
        reported,
        [
            "Warning: not new, so accepted: spec.template: Not found: \"smal\": did you mean 'small'? known templates: small, large and medium [TemplateNotFound]",
            "Warning: not new, so accepted: spec.disks[0].storageClass: Not found: \"fast-sdd\": did you mean 'fast-ssd'? known storage classes: fast-ssd, standard and replicated [StorageClassNotFound]",
            "Warning: until these faults are fixed, the Machine stays as it is",
        ]
    );
    assert_eq!(spec(&lab, "web").await["normalized"], Value::Null);
    // One fault is repaired, and a new one added.
    let worse = "template: small\npowerState: Stopped\ndisks: [{name: root, size: 1Gi, storageClass: fast-sdd, bus: ide}]";
    assert_eq!(
        refused(&kubectl, &machine("web", worse)).await,
        [
            "* spec.disks[0].bus: Unsupported value: \"ide\": supported values: \"virtio\", \"sata\", \"scsi\" [UnsupportedBus]"
        ]
    );
    let one_left = worse.replace(", bus: ide", "");
    assert!(
        apply(&kubectl, &machine("web", &one_left))
            .await
            .contains("not new")
    );
    let corrected = one_left.replace("fast-sdd", "fast-ssd");
    assert!(
        !apply(&kubectl, &machine("web", &corrected))
            .await
            .contains("not new")
    );
    assert_eq!(
        spec(&lab, "web").await["normalized"]["disks"][0]["storageClass"],
        "fast-ssd"
    );
}
