//! Disks and Machines that a user must not lose by mistake: what kubectl prints, and what the API server refuses.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use common::api::crd_files;
use lab::{
    Kubectl,
    objects::{self, CLAIM, INSTANCE, MACHINE, SECRET, VM, condition_message},
    pages::{Quotes, page, section},
    wait,
};
use serde_json::{Value, json};

mod environment;
mod machines;

use environment::{Environment, machine};

const LABEL: &str = "vitistack.io/deletion-protection";

/// What kubectl prints to standard error while a command succeeds.
async fn warnings(kubectl: &Kubectl, arguments: &[&str], input: &str) -> String {
    let output = kubectl.run_with(arguments, input).await.unwrap();
    assert_eq!(output.code, 0, "{output}");
    output.stderr
}

async fn refused(kubectl: &Kubectl, arguments: &[&str]) -> String {
    let output = kubectl.run(arguments).await.unwrap();
    output.refused().unwrap()
}

async fn run(kubectl: &Kubectl, arguments: &[&str]) {
    kubectl.run(arguments).await.unwrap().ok().unwrap();
}

/// Fails unless the section of the page on Machines quotes this.
fn assert_quoted(output: &str) {
    let page = page("machines").unwrap();
    let quotes = Quotes::of(section(&page, "Deletion").unwrap());
    assert!(quotes.contain(output), "the page does not quote:\n{output}");
}

const WEB: &str = "template: small\npowerState: Stopped\ndisks:\n- {name: data, size: 10Gi}\n- {name: kept, size: 1Gi, reclaimPolicy: Retain}";

#[tokio::test]
async fn kubectl_shows_what_becomes_of_the_disks_before_it_happens() {
    let (lab, mut webhook) = machines::lab(&[]).await;
    let kubectl = lab.kubectl();
    let apply = ["apply", "-f", "-"];
    warnings(&kubectl, &apply, &machines::machine("web", WEB)).await;

    // A renamed disk, and a template that has no disks of the names.
    let renamed = machines::machine("web", &WEB.replace("name: data", "name: date"));
    assert_eq!(
        warnings(
            &kubectl,
            &["apply", "--dry-run=server", "-f", "-"],
            &renamed
        )
        .await,
        "Warning: spec.disks: 'data' (10Gi) leaves the spec, its volume is kept; \
         to delete it: kubectl delete pvc -n default web-data [DiskKept]\n"
    );

    let destroys = |disk: &str, size: &str| {
        format!(
            "Warning: Machine default/web: its deletion destroys disk '{disk}' ({size}, \
             PersistentVolumeClaim web-{disk}); reclaimPolicy: Retain keeps it\n"
        )
    };
    let expected = destroys("root", "20Gi") + &destroys("data", "10Gi");
    let collection = "/apis/vitistack.io/v1alpha1/namespaces/default/machines?dryRun=All";
    let dry = ["delete", "machine", "web", "--dry-run=server"];
    let output = kubectl.run(&dry).await.unwrap();
    assert_quoted(&format!(
        "$ kubectl {}\n{}{}",
        dry.join(" "),
        output.stderr,
        output.stdout
    ));
    for delete in [
        &dry[..],
        &["delete", "machines", "--all", "--dry-run=server"],
        &["delete", "--raw", collection],
    ] {
        assert_eq!(warnings(&kubectl, delete, "").await, expected, "{delete:?}");
    }
    assert_eq!(
        lab.objects(MACHINE, "default").list().await.unwrap().len(),
        1
    );

    // Nothing to warn of: every disk is kept.
    let spec =
        "resources: {memory: {size: 1Gi}}\ndisks: [{name: root, size: 1Gi, reclaimPolicy: Retain}]";
    warnings(&kubectl, &apply, &machines::machine("all-kept", spec)).await;
    let delete = ["delete", "machine", "all-kept"];
    assert_eq!(warnings(&kubectl, &delete, "").await, "");

    // Without the webhook the deletion goes on.
    webhook.kill();
    let delete = ["delete", "machine", "web"];
    assert_eq!(warnings(&kubectl, &delete, "").await, "");
    assert!(
        lab.objects(MACHINE, "default")
            .list()
            .await
            .unwrap()
            .is_empty()
    );
}

/// User data that is too long for a VirtualMachine, so that the Machine has a Secret, and a TPM, so that KubeVirt makes a
/// claim for its content.
fn protected(name: &str) -> Value {
    let data = format!("#cloud-config\n# {}\n", "long ".repeat(1_000));
    let spec = json!({
        "template": "small", "deletionProtection": true, "cloudInit": {"userData": data},
        "domain": {"devices": {"tpm": {"persistent": true}}},
    });
    machine(name, &spec)
}

async fn set_protection(env: &Environment, namespace: &str, protection: bool) {
    let patch = json!({"spec": {"deletionProtection": protection}});
    let machines = env.lab.objects(MACHINE, namespace);
    machines.merge("web", &patch).await.unwrap();
}

/// The name of the claim that KubeVirt made for the content of the TPM.
async fn state_claim(env: &Environment, namespace: &str) -> String {
    let claims = env.lab.objects(CLAIM, namespace).list().await.unwrap();
    let is_state = |claim: &&Value| claim["metadata"]["labels"]["persistent-state-for"] == "web";
    let claim = claims.iter().find(is_state).unwrap();
    claim["metadata"]["name"].as_str().unwrap().to_owned()
}

/// A running, protected Machine whose objects all have the label, with the policies in effect.
async fn with_protected_machine(namespace: &str) -> Environment {
    let env = Environment::new().await;
    env.apply(&objects::namespace(namespace, &json!({}))).await;
    let mut web = protected("web");
    web["metadata"]["namespace"] = json!(namespace);
    env.apply(&web).await;
    let machines = env.lab.objects(MACHINE, namespace);
    machines.until_phase("web", "Running").await.unwrap();
    let is_marked = |object: &Value| object["metadata"]["labels"][LABEL] == "true";
    let state = state_claim(&env, namespace).await;
    for (kind, name) in [
        (VM, "web"),
        (CLAIM, "web-root"),
        (CLAIM, &state),
        (SECRET, "web-cloudinit"),
    ] {
        let objects = env.lab.objects(kind, namespace);
        objects
            .until(name, "to have the label", is_marked)
            .await
            .unwrap();
    }
    let kubectl = env.lab.kubectl();
    for object in ["machine/web", "pvc/web-root"] {
        let delete = ["delete", "-n", namespace, object, "--dry-run=server"];
        wait::until("the policies to be in effect", async || {
            let output = kubectl.run(&delete).await?;
            Ok((output.code != 0).then_some(()).ok_or(output.to_string()))
        })
        .await
        .unwrap();
    }
    env
}

/// The Machine's spec says nothing about protection: its block has it from the template.
#[tokio::test]
async fn a_machine_that_only_its_template_protects_is_not_deleted() {
    let env = with_protected_machine("default").await;
    let template = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachineTemplate",
        "metadata": {"name": "guarded"},
        "spec": {"resources": {"memory": {"size": "1Gi"}}, "deletionProtection": true},
    });
    env.apply(&template).await;
    env.apply(&machine("db", &json!({"template": "guarded"})))
        .await;
    let db = env.machines().until_phase("db", "Running").await.unwrap();
    assert!(db["spec"]["deletionProtection"].is_null());
    assert_eq!(db["spec"]["normalized"]["deletionProtection"], true);
    let kubectl = env.lab.kubectl();
    let delete = ["delete", "machine", "db", "--wait=false"];
    let force = [&delete[..], &["--force", "--grace-period=0"]].concat();
    let collection = "/apis/vitistack.io/v1alpha1/namespaces/default/machines";
    for arguments in [&delete[..], &force, &["delete", "--raw", collection]] {
        let text = refused(&kubectl, arguments).await;
        assert!(
            text.contains("(Forbidden)") || text.contains("is protected"),
            "{text}"
        );
    }
    let kept = env.machines().get("db").await.unwrap();
    assert!(kept["metadata"]["deletionTimestamp"].is_null());
    // The spec of the Machine has precedence.
    let unprotected = json!({"spec": {"deletionProtection": false}});
    env.machines().merge("db", &unprotected).await.unwrap();
    run(&kubectl, &delete).await;
    env.machines().until_gone("db").await.unwrap();
}

#[tokio::test]
async fn the_api_server_refuses_every_deletion_of_a_protected_machine_and_of_what_it_has() {
    let env = with_protected_machine("default").await;
    let kubectl = env.lab.kubectl();
    let machines = env.machines();
    let before = machines.get("web").await.unwrap()["metadata"]["uid"].clone();

    let message = "Machine default/web is protected: to delete it, set spec.deletionProtection to false first";
    let delete = ["delete", "machine", "web", "--wait=false"];
    let force = [&delete[..], &["--force", "--grace-period=0"]].concat();
    let all = ["delete", "machines", "--all", "--wait=false"];
    for arguments in [&delete[..], &force, &all] {
        let text = refused(&kubectl, arguments).await;
        assert!(text.contains("(Forbidden)"), "{text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
    }
    let text = refused(&kubectl, &["delete", "machine", "web"]).await;
    assert_quoted(&format!("$ kubectl delete machine web\n{text}"));
    let replace = ["replace", "--force", "-f", "-"];
    let replaced = kubectl
        .run_with(&replace, protected("web").to_string())
        .await;
    let text = replaced.unwrap().refused().unwrap();
    assert!(text.contains(message), "{text}");
    // A collection takes the Machines that are not protected.
    env.barrier("free").await;
    let collection = "/apis/vitistack.io/v1alpha1/namespaces/default/machines";
    let text = refused(&kubectl, &["delete", "--raw", collection]).await;
    assert!(text.contains(message), "{text}");
    machines.until_gone("free").await.unwrap();

    let because =
        "because its Machine web is protected: set spec.deletionProtection of the Machine to false";
    let state = format!("pvc/{}", state_claim(&env, "default").await);
    for object in ["vm/web", "pvc/web-root", &state, "secret/web-cloudinit"] {
        let text = refused(&kubectl, &["delete", object, "--wait=false"]).await;
        assert!(text.contains(because), "{object}: {text}");
    }
    // KubeVirt removes the former claim of a guest that has migrated, and no disk.
    let by_kubevirt = |object| {
        let user = "--as=system:serviceaccount:kubevirt:kubevirt-controller";
        let rights = "--as-group=system:masters";
        ["delete", object, "--dry-run=server", user, rights]
    };
    run(&kubectl, &by_kubevirt(&state)).await;
    let text = refused(&kubectl, &by_kubevirt("pvc/web-root")).await;
    assert!(text.contains(because), "{text}");
    let web = machines.get("web").await.unwrap();
    assert_eq!(web["metadata"]["uid"], before);
    assert!(web["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(web["status"]["phase"], "Running");

    // Without the protection it goes at once, with its disk.
    set_protection(&env, "default", false).await;
    run(&kubectl, &["delete", "machine", "web"]).await;
    env.objects(CLAIM).until_gone("web-root").await.unwrap();
    env.objects(SECRET)
        .until_gone("web-cloudinit")
        .await
        .unwrap();
}

#[tokio::test]
async fn deleting_a_namespace_takes_no_protected_machine_and_no_part_of_it() {
    let env = with_protected_machine("tenant").await;
    let kubectl = env.lab.kubectl();
    let label = format!("{LABEL}=true");
    run(&kubectl, &["label", "namespace", "tenant", &label]).await;
    let delete = ["delete", "namespace", "tenant", "--wait=false"];
    let text = refused(&kubectl, &delete).await;
    assert!(text.contains("Namespace tenant has the label"), "{text}");
    run(
        &kubectl,
        &["label", "namespace", "tenant", &format!("{LABEL}-")],
    )
    .await;
    run(&kubectl, &delete).await;

    // The namespace controller has tried, and reports what it could not delete.
    let failed = ["get", "namespace", "tenant", "-o", "json"];
    wait::until("the namespace to report what stays", async || {
        let text = kubectl.run(&failed).await?.ok()?;
        let conditions = serde_json::from_str::<Value>(&text)?["status"]["conditions"].to_string();
        Ok(conditions
            .contains("is protected")
            .then_some(())
            .ok_or(conditions))
    })
    .await
    .unwrap();
    let state = state_claim(&env, "tenant").await;
    for (kind, name) in [
        (MACHINE, "web"),
        (VM, "web"),
        (CLAIM, "web-root"),
        (CLAIM, &state),
        (SECRET, "web-cloudinit"),
    ] {
        let object = env.lab.objects(kind, "tenant").get(name).await.unwrap();
        assert!(object["metadata"]["deletionTimestamp"].is_null(), "{name}");
    }
    set_protection(&env, "tenant", false).await;
    wait::until("the namespace to be gone", async || {
        let output = kubectl.run(&failed).await?;
        Ok((output.code != 0).then_some(()).ok_or(output.stdout))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_protected_machine_that_was_deleted_without_the_policy_is_held() {
    let env = with_protected_machine("default").await;
    let (kubectl, machines) = (env.lab.kubectl(), env.machines());
    let binding = "validatingadmissionpolicybinding";
    run(
        &kubectl,
        &["delete", binding, "machine-deletion-protection"],
    )
    .await;
    let delete = ["delete", "machine", "web", "--wait=false"];
    wait::until("the policy to end", async || {
        let output = kubectl.run(&delete).await?;
        Ok((output.code == 0).then_some(()).ok_or(output.to_string()))
    })
    .await
    .unwrap();
    let held = machines
        .until_condition("web", "Ready", "False", "DeletionProtected")
        .await
        .unwrap();
    let message = condition_message(&held, "Ready").unwrap();
    assert!(
        message.contains("set spec.deletionProtection to false to let the deletion continue"),
        "{message}"
    );
    env.barrier("later").await;
    for (kind, name) in [(VM, "web"), (INSTANCE, "web"), (CLAIM, "web-root")] {
        let object = env.objects(kind).get(name).await.unwrap();
        assert!(object["metadata"]["deletionTimestamp"].is_null(), "{name}");
    }
    set_protection(&env, "default", false).await;
    machines.until_gone("web").await.unwrap();
    env.objects(CLAIM).until_gone("web-root").await.unwrap();
}

#[tokio::test]
async fn a_crd_of_ours_is_deleted_only_with_the_annotation() {
    let (lab, _webhook) = machines::lab(&[]).await;
    let kubectl = lab.kubectl();
    let names: Vec<_> = crd_files()
        .unwrap()
        .into_iter()
        .map(|crd| {
            crd.definition["metadata"]["name"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert!(names.len() >= 4, "{names:?}");
    let delete = |name: &str| ["delete", "crd", name, "--dry-run=server"].map(str::to_owned);
    wait::until("the policy to be in effect", async || {
        let command = delete(&names[0]);
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let output = kubectl.run(&command).await?;
        Ok((output.code != 0).then_some(()).ok_or(output.to_string()))
    })
    .await
    .unwrap();
    for name in &names {
        let text = refused(&kubectl, &["delete", "crd", name]).await;
        let command = format!("kubectl annotate crd {name} vitistack.io/allow-deletion=true");
        assert!(text.contains(&command), "{text}");
        let words: Vec<_> = command.split(' ').skip(1).collect();
        run(&kubectl, &words).await;
        run(&kubectl, &["delete", "crd", name, "--dry-run=server"]).await;
    }
    // CRDs of others are none of its business.
    run(&kubectl, &["delete", "crd", "datavolumes.cdi.kubevirt.io"]).await;
}
