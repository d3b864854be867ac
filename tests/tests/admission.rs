//! Accepted Machines: the block that they get, and that nothing else in them changes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use kube::api::{DeleteParams, Patch, PatchParams};
use lab::{Kubectl, Lab, Options, ProgramUnderTest, install, paths, wait};
use serde_json::{Value, json};

mod machines;
use machines::{api, machine};

async fn lab() -> (Lab, ProgramUnderTest) {
    machines::lab(&[]).await
}

async fn spec(lab: &Lab, name: &str) -> Value {
    let machine = api(lab.client(), "Machine").get(name).await.unwrap();
    machine.data["spec"].clone()
}

/// Name, size and class of each disk of a block.
fn disks(block: &Value) -> Vec<[&str; 3]> {
    let disks = block["disks"].as_array().unwrap().iter();
    disks
        .map(|disk| ["name", "size", "storageClass"].map(|field| disk[field].as_str().unwrap()))
        .collect()
}

async fn apply(kubectl: &Kubectl, text: &str) -> String {
    let output = kubectl.run_with(&["apply", "-f", "-"], text).await;
    output.unwrap().ok().unwrap()
}

fn examples() -> String {
    paths::repository()
        .join("manifests/examples")
        .display()
        .to_string()
}

#[tokio::test]
async fn the_examples_get_the_documented_blocks() {
    let (lab, _webhook) = lab().await;
    let kubectl = lab.kubectl();
    let output = kubectl.run(&["apply", "-f", &examples()]).await.unwrap();
    assert_eq!(output.code, 0, "{output}");

    let basic = spec(&lab, "basic-vm").await;
    assert_eq!(basic["normalized"]["cpu"]["cores"], 2);
    assert_eq!(basic["normalized"]["memory"]["size"], "4Gi");
    // The template names "default"; the cluster's default class is "standard".
    assert_eq!(disks(&basic["normalized"]), [["root", "40Gi", "standard"]]);

    let custom = spec(&lab, "custom-vm").await;
    assert_eq!(custom["normalized"]["cpu"]["cores"], 4);
    assert_eq!(custom["normalized"]["memory"]["size"], "8Gi");
    assert_eq!(
        disks(&custom["normalized"]),
        [["root", "20Gi", "standard"], ["data", "100Gi", "fast-ssd"]]
    );

    let overridden = "template: medium\nresources: {cpu: {cores: 4}, memory: {size: 8Gi}}";
    apply(&kubectl, &machine("medium-vm", overridden)).await;
    let medium = spec(&lab, "medium-vm").await;
    assert_eq!(medium["normalized"]["cpu"]["cores"], 4);
    assert_eq!(medium["normalized"]["memory"]["size"], "8Gi");
    assert_eq!(disks(&medium["normalized"]), [["root", "40Gi", "standard"]]);

    let cloud_init = spec(&lab, "cloud-init-vm").await;
    let text = cloud_init["normalized"].to_string();
    assert!(!text.contains("ssh-rsa"), "no user data in the block");
}

#[tokio::test]
async fn the_webhook_never_changes_fields_of_the_user() {
    let (lab, _webhook) = lab().await;
    let kubectl = lab.kubectl();
    // Different spellings of values, which normalization must not replace.
    let text = machine(
        "web",
        "\
template: small
bootOrder: []
resources:
  memory: {size: 2048Mi}
disks:
- {size: 20.5Gi, name: root, storageClass: default}
networks:
- {name: eth0, macAddress: 02-AA-bb-00-00-01}
domain: {machine: {type: q35}}
nodeSelector: {}",
    );
    assert_eq!(
        apply(&kubectl, &text).await,
        "machine.vitistack.io/web created\n"
    );
    let created = api(lab.client(), "Machine").get("web").await.unwrap();
    let mut stored = created.data["spec"].clone();
    assert!(
        stored
            .as_object_mut()
            .unwrap()
            .remove("normalized")
            .is_some()
    );
    assert_eq!(stored, install::parse(&text).unwrap()[0]["spec"]);

    // Applying it again changes nothing, and shows no difference.
    assert_eq!(
        apply(&kubectl, &text).await,
        "machine.vitistack.io/web unchanged\n"
    );
    let again = api(lab.client(), "Machine").get("web").await.unwrap();
    assert_eq!(created, again);
    let difference = kubectl.run_with(&["diff", "-f", "-"], &text).await.unwrap();
    assert_eq!(difference.code, 0, "{difference}");

    let text = text.replace("name: web", "name: server-side");
    let apply = ["apply", "--server-side", "-f", "-"];
    let output = kubectl.run_with(&apply, &text).await.unwrap();
    output.ok().unwrap();
    let diff = ["diff", "--server-side", "-f", "-"];
    let difference = kubectl.run_with(&diff, &text).await.unwrap();
    assert_eq!(difference.code, 0, "{difference}");
}

#[tokio::test]
async fn other_field_managers_keep_the_block() {
    let (lab, _webhook) = lab().await;
    let machines = api(lab.client(), "Machine");
    let manifest = |spec: Value| {
        json!({
            "apiVersion": "vitistack.io/v1alpha1",
            "kind": "Machine",
            "metadata": {"name": "web"},
            "spec": spec,
        })
    };
    let sent = async |manager: &str, spec: Value| {
        let patch = manifest(spec);
        let params = PatchParams::apply(manager);
        machines
            .patch("web", &params, &Patch::Apply(&patch))
            .await
            .unwrap()
    };
    let first = sent("flux", json!({"template": "small"})).await;
    let block = &first.data["spec"]["normalized"];
    assert_eq!(block["cpu"]["cores"], 1);

    let second = sent("someone", json!({"nodeSelector": {"zone": "a"}})).await;
    let spec = &second.data["spec"];
    assert_eq!(spec["template"], "small");
    assert_eq!(spec["normalized"]["nodeSelector"], json!({"zone": "a"}));
    assert_eq!(spec["normalized"]["disks"], block["disks"]);

    // The first manager applies the same spec again: none of its fields and no part of the block is removed.
    let third = sent("flux", json!({"template": "small"})).await;
    assert_eq!(&third.data["spec"], spec);
    assert_eq!(third.metadata.generation, second.metadata.generation);

    // The update is a patch of one field, without the rest of the Machine.
    let label = json!({"metadata": {"labels": {"team": "a"}}});
    let labelled = machines
        .patch("web", &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();
    assert_eq!(&labelled.data["spec"], spec);
    assert_eq!(labelled.metadata.generation, second.metadata.generation);
}

#[tokio::test]
async fn a_network_applied_together_with_its_machine_is_found() {
    // With `deny` a missing network is an error, so that the test fails if it is not found.
    let (lab, _webhook) = machines::lab(&[("MISSING_NETWORKS", "deny")]).await;
    let folder = lab.path("set");
    std::fs::create_dir(&folder).unwrap();
    let network = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": "prod", "namespace": "default"},
        "spec": {"bridge": "br-prod"},
    });
    std::fs::write(folder.join("1-network.json"), network.to_string()).unwrap();
    let web = machine(
        "web",
        "template: small\nbootOrder: [network]\nnetworks: [{name: eth0, networkName: prod}]",
    );
    std::fs::write(folder.join("2-machine.yaml"), web).unwrap();
    let set = folder.display().to_string();
    let output = lab.kubectl().run(&["apply", "-f", &set]).await.unwrap();
    assert_eq!(output.code, 0, "{output}");
    assert_eq!(
        output.stderr,
        "Warning: normalized to template small; 1 vCPU, 2Gi; root 20Gi on standard; NIC eth0 on prod\n"
    );
}

#[tokio::test]
async fn any_write_adds_the_block_to_a_machine_stored_without_one() {
    let (lab, _webhook) = lab().await;
    let kubectl = lab.kubectl();
    lab.unregister_webhooks().await.unwrap();
    for name in ["labelled", "annotated", "changed"] {
        apply(&kubectl, &machine(name, "template: small")).await;
        assert_eq!(spec(&lab, name).await, json!({"template": "small"}));
    }
    lab.register_webhooks().await.unwrap();
    // The webhook writes its CA into the new configurations.
    wait::until("the webhook to be called again", async || {
        let probe = machine("probe", "template: smal");
        let output = kubectl.run_with(&["create", "-f", "-"], probe).await?;
        Ok(if output.stderr.contains("[TemplateNotFound]") {
            Ok(())
        } else {
            Err(output)
        })
    })
    .await
    .unwrap();

    for arguments in [
        ["label", "machine", "labelled", "team=a"],
        ["annotate", "machine", "annotated", "note=a"],
    ] {
        kubectl.run(&arguments).await.unwrap().ok().unwrap();
    }
    apply(&kubectl, &machine("changed", "template: medium")).await;
    for (name, cores) in [("labelled", 1), ("annotated", 1), ("changed", 2)] {
        assert_eq!(
            spec(&lab, name).await["normalized"]["cpu"]["cores"],
            cores,
            "{name}"
        );
    }
}

#[tokio::test]
async fn templates_and_networks_are_reviewed_too() {
    let (lab, _webhook) = lab().await;
    let kubectl = lab.kubectl();
    let template = |name: &str, size: &str| {
        format!(
            "apiVersion: vitistack.io/v1alpha1\nkind: MachineTemplate\nmetadata: {{name: {name}}}\nspec: {{resources: {{cpu: {{cores: 3}}, memory: {{size: {size}}}}}}}\n"
        )
    };
    let create = ["create", "-f", "-"];
    let output = kubectl.run_with(&create, template("small", "3GB")).await;
    let reported = output.unwrap().refused().unwrap();
    assert_eq!(
        reported
            .lines()
            .skip(1)
            .collect::<Vec<_>>()
            .join("\n")
            .trim(),
        "* metadata.name: Forbidden: small, medium and large are built in; choose another name [TemplateNameReserved]\n* spec.resources.memory.size: Invalid value: \"3GB\": has the unknown unit \"GB\"; use a number and a unit such as '3G' [InvalidQuantity]"
    );
    let output = kubectl.run_with(&create, template("web", "3Gi")).await;
    output.unwrap().ok().unwrap();
    // Created a moment ago: the webhook reads what its watch has not delivered yet.
    apply(&kubectl, &machine("web", "template: web")).await;
    let stored = spec(&lab, "web").await;
    assert_eq!(
        stored["normalized"]["template"]["source"],
        "MachineTemplate"
    );
    assert_eq!(stored["normalized"]["cpu"]["cores"], 3);

    // A changed template changes no existing Machine.
    let output = kubectl
        .run_with(&["apply", "-f", "-"], template("web", "4Gi"))
        .await;
    output.unwrap().ok().unwrap();
    assert_eq!(spec(&lab, "web").await, stored);
    let refresh = "machine.vitistack.io/refresh-template=now";
    let output = kubectl.run(&["annotate", "machine", "web", refresh]).await;
    output.unwrap().ok().unwrap();
    assert_eq!(
        spec(&lab, "web").await["normalized"]["memory"]["size"],
        "4Gi"
    );

    let network = |vlan: u32| {
        format!(
            "apiVersion: vitistack.io/v1alpha1\nkind: NetworkConfiguration\nmetadata: {{name: prod, namespace: default}}\nspec: {{vlan: {vlan}, bridge: br0}}\n"
        )
    };
    let output = kubectl.run_with(&create, network(4095)).await.unwrap();
    assert_eq!(
        output.refused().unwrap().trim(),
        "The NetworkConfiguration \"prod\" is invalid: spec.vlan: Invalid value: 4095: must be from 1 to 4094; leave it out for untagged [InvalidVlan]"
    );
    apply(&kubectl, &network(100)).await;
    let output = kubectl.run_with(&["apply", "-f", "-"], network(200)).await;
    let reported = output.unwrap().refused().unwrap();
    assert!(
        reported.starts_with("Error from server (Forbidden)"),
        "{reported}"
    );
    assert!(reported.contains("* spec.vlan: Forbidden: "), "{reported}");
    assert!(reported.contains("[SegmentChanged]"), "{reported}");
    let networks = api(lab.client(), "NetworkConfiguration");
    networks
        .delete("prod", &DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn kubectl_explain_describes_the_fields() {
    let lab = Lab::with(Options {
        operator: true,
        ..Options::bare()
    })
    .await
    .unwrap();
    let kubectl = lab.kubectl();
    let explain = ["explain", "machine.spec.disks.storageClass"];
    // The API server publishes the schema of new kinds a moment after it serves them.
    let text = wait::until("the schema of the kind", async || {
        let output = kubectl.run(&explain).await?;
        Ok(output.ok())
    })
    .await
    .unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("FIELD: storageClass <string>"), "{text}");
    assert!(
        text.contains("Absent: the cluster's default class."),
        "{text}"
    );
}

/// What a backup tool does: it saves the Machine as it is stored, and creates it again.
#[tokio::test]
async fn a_restored_machine_keeps_the_backend_and_the_storage_class_of_its_block() {
    let (mut lab, mut webhook) = lab().await;
    let kubectl = lab.kubectl();
    apply(&kubectl, &machine("web", "template: small")).await;
    let get = ["get", "machine", "web", "-o", "json"];
    let saved = kubectl.run(&get).await.unwrap().ok().unwrap();
    let mut saved: Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(
        disks(&saved["spec"]["normalized"]),
        [["root", "20Gi", "standard"]]
    );
    let delete = ["delete", "machine", "web"];
    kubectl.run(&delete).await.unwrap().ok().unwrap();
    let metadata = saved["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| ["name", "namespace", "labels"].contains(&field.as_str()));

    // Another class becomes the default one, and libvirt the default backend.
    for (class, is_default) in [("standard", "false"), ("fast-ssd", "true")] {
        let annotation = format!("storageclass.kubernetes.io/is-default-class={is_default}");
        let annotate = [
            "annotate",
            "--overwrite",
            "storageclass",
            class,
            &annotation,
        ];
        kubectl.run(&annotate).await.unwrap().ok().unwrap();
    }
    webhook.stop().await.unwrap();
    drop(webhook);
    let _webhook = lab
        .webhook(&[("DEFAULT_BACKEND", "libvirt")])
        .await
        .unwrap();
    let new = "template: small\nbackend: kubevirt";
    apply(&kubectl, &machine("new", new)).await;
    let new = spec(&lab, "new").await["normalized"].take();
    assert_eq!(disks(&new), [["root", "20Gi", "fast-ssd"]]);

    let create = ["create", "-f", "-"];
    let restored = kubectl.run_with(&create, saved.to_string()).await.unwrap();
    assert_eq!(restored.stderr, "");
    assert_eq!(restored.code, 0, "{restored}");
    assert_eq!(spec(&lab, "web").await, saved["spec"]);
    kubectl.run(&delete).await.unwrap().ok().unwrap();

    // A class that is gone is looked up again, and the answer says so.
    let delete_class = ["delete", "storageclass", "standard"];
    kubectl.run(&delete_class).await.unwrap().ok().unwrap();
    let changed = wait::until("the webhook to miss the class", async || {
        let dry = ["create", "--dry-run=server", "-f", "-", "-o", "json"];
        let output = kubectl.run_with(&dry, saved.to_string()).await?;
        let machine: Value = serde_json::from_str(&output.stdout)?;
        let root = disks(&machine["spec"]["normalized"])[0][2].to_owned();
        Ok(if root == "standard" {
            Err(root)
        } else {
            Ok((root, output.stderr))
        })
    });
    let (root, warning) = changed.await.unwrap();
    assert_eq!(root, "fast-ssd");
    assert_eq!(
        warning,
        "Warning: values of the spec.normalized that was sent differ, because they were looked up again: spec.normalized.disks[0].storageClass\n"
    );
}
