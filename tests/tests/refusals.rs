//! Refused Machines: the answer of each command and API call that can create or change them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use kube::{
    Api, Client, Error,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::Status,
};
use lab::{Output, install};
use serde_json::{Value, json};

mod machines;
use machines::{api, lab, machine};

const GOOD: &str = "template: small";

/// A spec with independent faults in values and in references.
const FAULTY: &str = "\
template: small
powerState: 'On'
resources:
  cpu:
    cores: 0
disks:
- name: cache
  size: 1Gi
  storageClass: fast-sdd
- name: data
  size: '20'
networks:
- name: eth0
  model: vmxnet3
  macAddress: 01:00:5e:00:00:01
bootOrder: [disk, floppy]";

/// Reason, field and text of each cause in the answer to [`FAULTY`].
const CAUSES: [(&str, &str, &str); 7] = [
    (
        "FieldValueNotSupported",
        "spec.powerState",
        r#"Unsupported value: "On": supported values: "Running", "Stopped"; did you mean 'Running'? [UnsupportedPowerState]"#,
    ),
    (
        "FieldValueInvalid",
        "spec.resources.cpu.cores",
        "Invalid value: 0: must be from 1 to 255 [InvalidCpuCount]",
    ),
    (
        "FieldValueNotFound",
        "spec.disks[0].storageClass",
        r#"Not found: "fast-sdd": did you mean 'fast-ssd'? known storage classes: fast-ssd, standard and replicated [StorageClassNotFound]"#,
    ),
    (
        "FieldValueInvalid",
        "spec.disks[1].size",
        r#"Invalid value: "20": is 20 bytes, because it has no unit; did you mean '20Gi'? [UnitMissing]"#,
    ),
    (
        "FieldValueNotSupported",
        "spec.networks[0].model",
        r#"Unsupported value: "vmxnet3": supported values: "virtio", "e1000", "e1000e", "rtl8139" [UnsupportedNicModel]"#,
    ),
    (
        "FieldValueInvalid",
        "spec.networks[0].macAddress",
        r#"Invalid value: "01:00:5e:00:00:01": is a multicast address, which no network card can have; the nearest unicast address is '02:00:5e:00:00:01' [MacNotUnicast]"#,
    ),
    (
        "FieldValueNotSupported",
        "spec.bootOrder[1]",
        r#"Unsupported value: "floppy": supported values: "disk", "cdrom", "network" [UnsupportedBootDevice]"#,
    ),
];

/// The bullets that kubectl shows for [`CAUSES`].
fn bullets() -> Vec<String> {
    CAUSES
        .iter()
        .map(|(_, field, text)| format!("* {field}: {text}"))
        .collect()
}

/// The value at the path of a fault, such as `spec.disks[0].size`.
fn at<'v>(object: &'v Value, field: &str) -> &'v Value {
    let steps = field.split(['.', '[']);
    steps.fold(object, |value, step| match step.strip_suffix(']') {
        Some(index) => &value[index.parse::<usize>().unwrap()],
        None => &value[step],
    })
}

/// The lines of an error from the first one with a bullet on.
fn reported(stderr: &str) -> Vec<&str> {
    let lines = stderr.lines().skip_while(|line| !line.starts_with("* "));
    lines.filter(|line| !line.is_empty()).collect()
}

fn assert_created_nothing(output: Output) {
    let stderr = output.refused().unwrap();
    assert_eq!(
        stderr.lines().next(),
        Some("The Machine \"web\" is invalid: ")
    );
    assert_eq!(reported(&stderr), bullets());
}

fn assert_forbidden(output: Output) {
    let stderr = output.refused().unwrap();
    assert!(
        stderr.starts_with("Error from server (Forbidden): "),
        "{stderr}"
    );
    let faults = "admission webhook \"mutate.machines.vitistack.io\" denied the request: 7 faults:";
    assert!(stderr.contains(faults), "{stderr}");
    assert_eq!(reported(&stderr), bullets());
}

/// The status of a refused request.
#[expect(clippy::panic, reason = "a test that is not refused has failed")]
fn refusal(answer: kube::Result<DynamicObject>) -> Box<Status> {
    match answer {
        Err(Error::Api(status)) => status,
        other => panic!("not refused: {other:?}"),
    }
}

/// The status with which the API server refuses a creation.
async fn create(client: &Client, machine: &str, dry_run: bool) -> Box<Status> {
    let object: DynamicObject =
        serde_json::from_value(install::parse(machine).unwrap().remove(0)).unwrap();
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    refusal(api(client, "Machine").create(&params, &object).await)
}

async fn merge(client: &Client, name: &str, patch: &Value, dry_run: bool) -> Box<Status> {
    let params = PatchParams {
        dry_run,
        ..PatchParams::default()
    };
    let machines: Api<DynamicObject> = api(client, "Machine");
    refusal(machines.patch(name, &params, &Patch::Merge(patch)).await)
}

fn causes(status: &Status) -> Vec<(String, String, String)> {
    let details = status.details.as_ref().unwrap();
    assert_eq!(
        (details.group.as_str(), details.kind.as_str()),
        ("vitistack.io", "Machine")
    );
    let causes = details.causes.iter();
    causes
        .map(|cause| {
            (
                cause.reason.clone(),
                cause.field.clone(),
                cause.message.clone(),
            )
        })
        .collect()
}

fn expected() -> Vec<(String, String, String)> {
    CAUSES
        .iter()
        .map(|&(reason, field, text)| (reason.into(), field.into(), text.into()))
        .collect()
}

#[tokio::test]
async fn a_creation_is_refused_with_every_fault_by_every_command() {
    let (lab, _webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();
    let faulty = machine("web", FAULTY);
    for args in [
        &["create", "-f", "-"][..],
        &["create", "--dry-run=server", "-f", "-"],
        &["apply", "-f", "-"],
        &["apply", "--dry-run=server", "-f", "-"],
        &["apply", "--server-side", "-f", "-"],
        &["apply", "--server-side", "--dry-run=server", "-f", "-"],
    ] {
        let output = kubectl.run_with(args, &faulty).await.unwrap();
        assert_created_nothing(output);
    }
    for dry_run in [true, false] {
        let status = create(lab.client(), &faulty, dry_run).await;
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
        assert_eq!(status.details.as_ref().unwrap().name, "web");
        assert_eq!(causes(&status), expected());
    }
    // Each field path exists in the object and has the reported value.
    let object: Value = install::parse(&faulty).unwrap().remove(0);
    for (_, field, _) in CAUSES {
        assert!(!at(&object, field).is_null(), "{field}");
    }
    let absent = kubectl.run(&["get", "machine", "web"]).await.unwrap();
    assert!(absent.refused().unwrap().contains("NotFound"));
}

#[tokio::test]
async fn a_refused_update_is_forbidden_and_leaves_the_machine_unchanged() {
    let (lab, _webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();
    let apply = ["apply", "-f", "-"];
    let good = kubectl.run_with(&apply, machine("web", GOOD)).await;
    good.unwrap().ok().unwrap();
    let machines = api(lab.client(), "Machine");
    let before = machines.get("web").await.unwrap();

    let faulty = machine("web", FAULTY);
    for args in [
        &["apply", "-f", "-"][..],
        &["apply", "--dry-run=server", "-f", "-"],
        // These commands delete the object and create it again if they are answered 422.
        &["apply", "--force", "-f", "-"],
        &["replace", "-f", "-"],
        &["apply", "--server-side", "--force-conflicts", "-f", "-"],
    ] {
        assert_forbidden(kubectl.run_with(args, &faulty).await.unwrap());
    }
    let spec = install::parse(&faulty).unwrap().remove(0)["spec"].take();
    let patch = json!({ "spec": spec });
    let output = kubectl
        .run(&[
            "patch",
            "machine",
            "web",
            "--type=merge",
            "-p",
            &patch.to_string(),
        ])
        .await;
    assert_forbidden(output.unwrap());
    for dry_run in [true, false] {
        let status = merge(lab.client(), "web", &patch, dry_run).await;
        assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
        assert_eq!(causes(&status), expected());
        // Flux recreates the object if the message contains this text.
        assert!(!status.message.contains("immutable"));
    }

    // kubectl edit: the editor adds a fault to the stored object.
    let editor = "sed -i 's/^  template: small$/  template: smal/'".to_owned();
    let edited = kubectl.clone().edited_by(editor);
    let output = edited.run(&["edit", "machine", "web"]).await.unwrap();
    let stderr = output.refused().unwrap();
    let fault = "spec.template: Not found: \"smal\": did you mean 'small'? known templates: small, large and medium [TemplateNotFound]";
    assert!(stderr.contains(fault), "{stderr}");

    let after = machines.get("web").await.unwrap();
    assert_eq!(before, after, "a refused write changed the Machine");
}

/// Server-side apply fails for these before a webhook is called. For other requests the webhook reports them together
/// with all other faults.
#[tokio::test]
async fn the_api_server_itself_refuses_what_it_cannot_merge() {
    let (lab, _webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();
    let typed = "Error from server: failed to create typed patch object (default/db; vitistack.io/v1alpha1, Kind=Machine): ";
    for (spec, own, ours) in [
        (
            "template: small\nresources: {cpu: {cores: four}}",
            ".spec.resources.cpu.cores: expected numeric (int or float), got string",
            "The Machine \"db\" is invalid: spec.resources.cpu.cores: Invalid value: \"four\": must be a whole number, without quotes [WrongType]",
        ),
        (
            "template: small\ndisks: [{name: data, size: 1Gi}, {name: data, size: 2Gi}]",
            ".spec.disks: duplicate entries for key [name=\"data\"]",
            "The Machine \"db\" is invalid: spec.disks[1].name: Duplicate value: \"data\": spec.disks[0].name is the same; each needs its own name [DuplicateDiskName]",
        ),
        (
            "template: small\ntemplte: small",
            ".spec.templte: field not declared in schema",
            "Error from server (BadRequest): error when creating \"STDIN\": Machine in version \"v1alpha1\" cannot be handled as a Machine: strict decoding error: unknown field \"spec.templte\"",
        ),
    ] {
        let input = machine("db", spec);
        let server_side = ["apply", "--server-side", "-f", "-"];
        let output = kubectl.run_with(&server_side, &input).await.unwrap();
        assert_eq!(output.refused().unwrap().trim(), format!("{typed}{own}"));
        let output = kubectl.run_with(&["apply", "-f", "-"], &input).await;
        assert_eq!(output.unwrap().refused().unwrap().trim(), ours);
    }
}

#[tokio::test]
async fn a_missing_reference_is_answered_with_the_names_that_exist() {
    let (mut lab, webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();
    let create = ["create", "-f", "-"];
    for (spec, reported) in [
        (
            "template: smal",
            "spec.template: Not found: \"smal\": did you mean 'small'? known templates: small, large and medium [TemplateNotFound]",
        ),
        (
            "template: small\ndisks: [{name: data, size: 1Gi, storageClass: replicate}]",
            "spec.disks[0].storageClass: Not found: \"replicate\": did you mean 'replicated'? known storage classes: replicated, standard and fast-ssd [StorageClassNotFound]",
        ),
        (
            "template: small\nnetworks: [{name: eth0, model: virtoi}]",
            "spec.networks[0].model: Unsupported value: \"virtoi\": supported values: \"virtio\", \"e1000\", \"e1000e\", \"rtl8139\"; did you mean 'virtio'? [UnsupportedNicModel]",
        ),
    ] {
        let output = kubectl
            .run_with(&create, machine("web", spec))
            .await
            .unwrap();
        let reported = format!("The Machine \"web\" is invalid: {reported}");
        assert_eq!(output.refused().unwrap().trim(), reported);
    }

    lab.apply(&json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": "prod-network", "namespace": "default"},
        "spec": {"bridge": "br-prod", "vlan": 100},
    }))
    .await
    .unwrap();
    let near = machine(
        "near",
        "template: small\nnetworks: [{name: eth0, networkName: prod-netwrk}]",
    );
    let output = kubectl.run_with(&create, &near).await.unwrap();
    assert_eq!(output.code, 0, "{output}");
    let warning = "Warning: spec.networks[0].networkName: NetworkConfiguration 'prod-netwrk' does not exist yet; did you mean 'prod-network'? [NetworkConfigurationNotFound]";
    assert_eq!(output.stderr.lines().next(), Some(warning));

    drop(webhook);
    let _denying = lab.webhook(&[("MISSING_NETWORKS", "deny")]).await.unwrap();
    let other = near.replace("near", "other");
    let output = kubectl.run_with(&create, &other).await.unwrap();
    assert_eq!(
        output.refused().unwrap().trim(),
        "The Machine \"other\" is invalid: spec.networks[0].networkName: Not found: \"prod-netwrk\": did you mean 'prod-network'? known NetworkConfigurations: prod-network [NetworkConfigurationNotFound]",
    );
}

#[tokio::test]
async fn a_block_edited_by_hand_is_refused() {
    let (lab, _webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();
    let apply = ["apply", "-f", "-"];
    let good = kubectl.run_with(&apply, machine("web", GOOD)).await;
    good.unwrap().ok().unwrap();
    for (patch, reported) in [
        (
            json!({"cpu": {"cores": 7}}),
            "spec.normalized.cpu.cores: Forbidden: is written by the webhook; delete spec.normalized from your file and edit spec.resources.cpu.cores [NormalizedEdited]",
        ),
        (
            json!({"powerState": "Stopped"}),
            "spec.normalized.powerState: Forbidden: is written by the webhook; delete spec.normalized from your file and edit spec.powerState [NormalizedEdited]",
        ),
    ] {
        let patch = json!({"spec": {"normalized": patch}});
        let status = merge(lab.client(), "web", &patch, false).await;
        assert_eq!(status.code, 403);
        let (_, message) = status.message.split_once("\n* ").unwrap();
        assert_eq!(message, reported);
    }
    // A changed spec with an old block gets a new block, and a warning.
    let file = lab.path("with-block.yaml");
    let stale = machine(
        "web",
        "template: small\npowerState: Stopped\nnormalized: {cpu: {cores: 7}}",
    );
    fs::write(&file, stale).unwrap();
    let path = file.display().to_string();
    let output = kubectl.run(&["apply", "-f", &path]).await.unwrap();
    assert_eq!(output.code, 0, "{output}");
    let warning = "Warning: the spec.normalized that was sent is ignored: it follows from the rest of the spec\n";
    assert_eq!(output.stderr, warning);
    let stored = api(lab.client(), "Machine").get("web").await.unwrap();
    let block = &stored.data["spec"]["normalized"];
    assert_eq!(
        (&block["cpu"]["cores"], &block["powerState"]),
        (&json!(1), &json!("Stopped"))
    );
}
