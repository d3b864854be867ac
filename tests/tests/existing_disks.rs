//! Disks on claims that exist: used as they are, by one guest at a time, and never written.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    objects::{CLAIM, INSTANCE, POD, VM, condition, condition_message},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine};

/// A claim that a user made, with labels and annotations of theirs.
fn claim(name: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name, "namespace": "default",
            "labels": {"app": "legacy"}, "annotations": {"owner": "ops"},
        },
        "spec": {
            "storageClassName": "standard", "accessModes": [mode],
            "resources": {"requests": {"storage": "5Gi"}},
        },
    })
}

fn on(claim: &str) -> Value {
    json!({"template": "small", "disks": [{"name": "old", "claimName": claim}]})
}

/// A pod that has the claim as a volume.
fn pod(claim: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "backup", "namespace": "default"},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "copy", "image": "registry.example.com/copy:1"}],
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// What the controller could have changed of a claim.
fn written(claim: &Value) -> Value {
    json!([claim["metadata"], claim["spec"]])
}

async fn bound(env: &Environment, name: &str, mode: &str) -> Value {
    env.bound_claim(&claim(name, mode)).await
}

/// The Machine, once its condition `StorageReady` says that the claim is in use, with this part in its message.
async fn waits_for_claim(env: &Environment, name: &str, part: &str) -> Value {
    let machines = env.machines();
    let held = machines.until_condition(name, "StorageReady", "False", "ClaimInUse");
    let held = held.await.unwrap();
    let message = condition_message(&held, "StorageReady").unwrap();
    assert!(message.contains(part), "{message}");
    held
}

/// The error of kubectl for a Machine, once the webhook knows the other object.
async fn refused(env: &Environment, object: &Value) -> String {
    let kubectl = env.lab.kubectl();
    wait::until("the webhook to know the other Machine", async || {
        let dry = ["apply", "--dry-run=server", "-f", "-"];
        let output = kubectl.run_with(&dry, object.to_string()).await?;
        Ok(output.refused())
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_machine_runs_with_an_existing_claim_and_its_deletion_leaves_the_claim_as_it_was() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    let before = bound(&env, "legacy-disk", "ReadWriteOnce").await;
    let mut spec = on("legacy-disk");
    spec["deletionProtection"] = true.into();
    env.apply(&machine("web", &spec)).await;
    let web = machines.until_phase("web", "Running").await.unwrap();
    let existing = &web["spec"]["normalized"]["existingDisks"];
    let expected = json!([{"bootOrder": 2, "bus": "virtio", "claimName": "legacy-disk", "name": "old", "serial": "old"}]);
    assert_eq!(*existing, expected);
    let volumes = &web["status"]["volumes"];
    assert_eq!(volumes[1]["claimName"], "legacy-disk");
    let guest = env.objects(INSTANCE).get("web").await.unwrap();
    let volumes = guest["spec"]["volumes"].as_array().unwrap();
    let claim = |volume: &Value| volume["persistentVolumeClaim"]["claimName"].clone();
    let used: Vec<_> = volumes.iter().map(claim).collect();
    assert_eq!(used, ["web-root", "legacy-disk"]);

    // Another Machine cannot have it, and no field beside the claim is accepted.
    let reported = refused(&env, &machine("other", &on("legacy-disk"))).await;
    let fault = "spec.disks[0].claimName: Duplicate value: \"legacy-disk\": Machine 'web' has a disk on it; name another claim, or remove the disk there first [ClaimInUse]";
    assert_eq!(
        reported,
        format!("The Machine \"other\" is invalid: {fault}\n")
    );
    let reported = refused(&env, &machine("other", &on("web-root"))).await;
    let part = "is the claim of disk 'root' of Machine 'web'";
    assert!(reported.contains(part), "{reported}");

    let unprotected = json!({"spec": {"deletionProtection": false}});
    machines.merge("web", &unprotected).await.unwrap();
    machines.delete("web").await.unwrap();
    machines.until_gone("web").await.unwrap();
    claims.until_gone("web-root").await.unwrap();
    let after = claims.get("legacy-disk").await.unwrap();
    assert_eq!(written(&after), written(&before));

    // The next Machine takes it.
    env.apply(&machine("next", &on("legacy-disk"))).await;
    machines.until_phase("next", "Running").await.unwrap();
}

#[tokio::test]
async fn a_guest_is_not_started_while_a_foreign_pod_has_its_claim() {
    let env = Environment::new().await;
    let machines = env.machines();
    let before = bound(&env, "legacy-disk", "ReadWriteOnce").await;
    env.apply(&pod("legacy-disk")).await;
    env.apply(&machine("web", &on("legacy-disk"))).await;
    let held = waits_for_claim(&env, "web", "is used by Pod 'backup'").await;
    assert_eq!(condition(&held, "Ready")["reason"], "ClaimInUse");
    assert!(env.objects(VM).find("web").await.unwrap().is_none());

    let kubectl = env.lab.kubectl();
    let delete = ["delete", "pod", "backup", "--force"];
    kubectl.run(&delete).await.unwrap().ok().unwrap();
    env.objects(POD).until_gone("backup").await.unwrap();
    machines.until_phase("web", "Running").await.unwrap();
    let after = env.objects(CLAIM).get("legacy-disk").await.unwrap();
    assert_eq!(written(&after), written(&before));
}

#[tokio::test]
async fn a_claim_that_appears_later_is_waited_for_and_a_shared_one_is_given_to_two_guests() {
    let env = Environment::new().await;
    let machines = env.machines();
    env.apply(&machine("web", &on("later"))).await;
    let waits = machines.until_condition("web", "StorageReady", "False", "ClaimNotFound");
    waits.await.unwrap();
    assert!(env.objects(CLAIM).find("later").await.unwrap().is_none());
    bound(&env, "later", "ReadWriteOnce").await;
    machines.until_phase("web", "Running").await.unwrap();

    bound(&env, "pool", "ReadWriteMany").await;
    let mut shared = on("pool");
    shared["disks"][0]["shareable"] = true.into();
    for name in ["one", "two"] {
        env.apply(&machine(name, &shared)).await;
        machines.until_phase(name, "Running").await.unwrap();
        let vm = env.objects(VM).get(name).await.unwrap();
        let disks = &vm["spec"]["template"]["spec"]["domain"]["devices"]["disks"];
        assert_eq!(disks[1]["shareable"], true);
    }
    let reported = refused(&env, &machine("three", &on("pool"))).await;
    assert!(reported.contains("[ClaimInUse]"), "{reported}");
}

/// A VirtualMachine of somebody else with the claim.
fn foreign(claim: &str, strategy: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {"runStrategy": strategy, "template": {"spec": {
            "domain": {"devices": {"disks": [{"name": "disk", "disk": {"bus": "virtio"}}]}},
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}],
        }}},
    })
}

#[tokio::test]
async fn a_claim_of_a_foreign_guest_of_a_medium_or_beyond_a_policy_is_not_taken() {
    let env = Environment::new().await;
    let machines = env.machines();
    let before = bound(&env, "legacy-disk", "ReadWriteOnce").await;
    env.apply(&foreign("legacy-disk", "Always")).await;
    let guests = env.objects(INSTANCE);
    let runs = |guest: &Value| guest["status"]["phase"] == "Running";
    guests.until("theirs", "to run", runs).await.unwrap();
    env.apply(&machine("web", &on("legacy-disk"))).await;
    waits_for_claim(&env, "web", "'theirs'").await;
    assert!(env.objects(VM).find("web").await.unwrap().is_none());
    // Halted by its owner, it no longer counts.
    let halted = json!({"spec": {"runStrategy": "Halted"}});
    env.objects(VM).merge("theirs", &halted).await.unwrap();
    machines.until_phase("web", "Running").await.unwrap();
    let after = env.objects(CLAIM).get("legacy-disk").await.unwrap();
    assert_eq!(written(&after), written(&before));

    // Not ReadWriteMany.
    bound(&env, "single", "ReadWriteOnce").await;
    let mut shared = on("single");
    shared["disks"][0]["shareable"] = true.into();
    let reported = refused(&env, &machine("other", &shared)).await;
    assert!(reported.contains("is not ReadWriteMany"), "{reported}");

    // The medium in a drive of another Machine.
    let drive = json!({"name": "iso", "size": "1Gi", "image": {"url": "https://images.example.com/setup.iso"}});
    env.apply(&machine(
        "installs",
        &json!({"template": "small", "cdroms": [drive]}),
    ))
    .await;
    machines.until_phase("installs", "Running").await.unwrap();
    let claims = env.objects(CLAIM).list().await.unwrap();
    let mut names = claims
        .iter()
        .filter_map(|claim| claim["metadata"]["name"].as_str());
    let medium = names
        .find(|name| name.starts_with("installs-iso-"))
        .unwrap();
    env.apply(&machine("thief", &on(medium))).await;
    let held = machines.until_condition("thief", "StorageReady", "False", "ClaimInUse");
    held.await.unwrap();
    assert!(env.objects(VM).find("thief").await.unwrap().is_none());

    env.apply(&json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachinePolicy", "metadata": {"name": "strict"},
        "spec": {"namespaceSelector": {}, "images": {"claims": false}},
    }))
    .await;
    bound(&env, "another", "ReadWriteOnce").await;
    let reported = refused(&env, &machine("late", &on("another"))).await;
    assert!(
        reported.contains("allows no disks on existing claims"),
        "{reported}"
    );
    // What was accepted before stays.
    let label = json!({"metadata": {"labels": {"edited": "yes"}}});
    machines.merge("web", &label).await.unwrap();
}
