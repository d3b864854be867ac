//! Addresses on a network segment, and names of claims of a namespace, which only one Machine can have.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use common::mac::Mac;
use lab::{
    Lab, Options, ProgramUnderTest,
    objects::{CLAIM, VM, cluster_uid, condition, namespace},
    wait,
};
use serde_json::{Value, json};

mod environment;
use environment::{Environment, machine};

const TAKEN: &str = "52:54:00:00:00:01";

fn network(namespace: &str, name: &str, bridge: &str) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"bridge": bridge},
    })
}

fn on_prod(mac: &str) -> Value {
    let nic = json!({"name": "eth0", "networkName": "prod", "macAddress": mac});
    json!({"template": "small", "networks": [nic]})
}

fn with_disk(name: &str) -> Value {
    json!({"template": "small", "disks": [{"name": name, "size": "1Gi", "reclaimPolicy": "Retain"}]})
}

/// The error of kubectl for a Machine that is refused, once the webhook's cache has the conflicting object.
async fn refused(lab: &Lab, object: &Value) -> String {
    let kubectl = lab.kubectl();
    wait::until(
        "the webhook to have the conflicting object in its cache",
        async || {
            let dry = ["apply", "--dry-run=server", "-f", "-"];
            let output = kubectl.run_with(&dry, object.to_string()).await?;
            Ok(output.refused())
        },
    )
    .await
    .unwrap();
    kubectl.apply(object).await.unwrap().refused().unwrap()
}

fn invalid(machine: &str, fault: &str) -> String {
    format!("The Machine \"{machine}\" is invalid: {fault}\n")
}

/// Checks that a change is forbidden with exactly this fault.
fn assert_forbidden(reported: &str, fault: &str) {
    let end = format!(
        "admission webhook \"mutate.machines.vitistack.io\" denied the request: 1 fault:\n* {fault}\n"
    );
    assert!(
        reported.contains("Error from server (Forbidden): "),
        "{reported}"
    );
    assert!(reported.ends_with(&end), "{reported}");
}

/// Waits until the webhook's catalog is complete and has this number of objects of a kind.
async fn counts(webhook: &mut ProgramUnderTest, kind: &str, objects: usize) {
    let lines = [
        format!("machine_webhook_catalog_objects{{kind=\"{kind}\"}} {objects}"),
        format!("machine_webhook_catalog_age_seconds{{kind=\"{kind}\"}} 0"),
    ];
    wait::until("the catalog's gauges", async || {
        let metrics = webhook.metrics().await?;
        let all = lines
            .iter()
            .all(|line| metrics.lines().any(|reported| reported == line));
        Ok(if all { Ok(()) } else { Err(metrics) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_address_in_use_is_refused_on_its_segment_in_every_namespace() {
    let mut env = Environment::new().await;
    env.apply(&namespace("test", &json!({}))).await;
    for namespace in ["default", "test"] {
        env.apply(&network(namespace, "prod", "br0")).await;
        env.apply(&network(namespace, "far", "br9")).await;
    }
    env.apply(&machine("db", &on_prod(TAKEN))).await;
    let fault = format!(
        "spec.networks[0].macAddress: Duplicate value: \"{TAKEN}\": Machine 'db' has this address on 'prod'; choose another, or leave it out for a stable one [MacInUse]"
    );
    let twin = machine("web", &on_prod(TAKEN));
    assert_eq!(refused(&env.lab, &twin).await, invalid("web", &fault));

    // The bridge is the same segment in every namespace. What is in another namespace is confidential.
    let mut elsewhere = twin.clone();
    elsewhere["metadata"]["namespace"] = "test".into();
    let unnamed = format!(
        "spec.networks[0].macAddress: Duplicate value: \"{TAKEN}\": a Machine of another namespace has this address on the same network segment; choose another, or leave it out for a stable one [MacInUse]"
    );
    let reported = refused(&env.lab, &elsewhere).await;
    assert_eq!(reported, invalid("web", &unnamed));
    elsewhere["spec"]["networks"][0]["networkName"] = "far".into();
    env.apply(&elsewhere).await;
    env.apply(&machine("web", &on_prod("52:54:00:00:00:02")))
        .await;
    assert_forbidden(&refused(&env.lab, &twin).await, &fault);

    // A Machine without an address in its spec has a derived one, which also conflicts.
    let mut own = on_prod(TAKEN);
    own["networks"][0]
        .as_object_mut()
        .unwrap()
        .remove("macAddress");
    env.apply(&machine("derived", &own)).await;
    counts(&mut env.webhook, "machines", 4).await;
    let cluster = cluster_uid(env.lab.client()).await.unwrap();
    let mac = Mac::derived(&cluster, "default", "derived", "eth0");
    let reported = refused(&env.lab, &machine("copy", &on_prod(&mac.to_string()))).await;
    assert!(
        reported.contains("Machine 'derived' has this address on 'prod'"),
        "{reported}"
    );

    env.machines().delete("db").await.unwrap();
    env.machines().until_gone("db").await.unwrap();
    counts(&mut env.webhook, "machines", 3).await;
    env.apply(&twin).await;
}

#[tokio::test]
async fn a_foreign_claim_is_refused_and_a_retained_one_is_adopted() {
    let env = Environment::new().await;
    let (machines, claims) = (env.machines(), env.objects(CLAIM));
    env.apply(&machine("a-b", &with_disk("c"))).await;
    machines.until_phase("a-b", "Running").await.unwrap();
    let kept = claims.get("a-b-c").await.unwrap()["metadata"]["uid"].clone();

    let other = machine("a", &with_disk("b-c"));
    let fault = "spec.disks[0].name: Duplicate value: \"b-c\": its claim 'a-b-c' would be that of disk 'c' of Machine 'a-b'; choose another name for the disk or for the Machine [NameInUse]";
    assert_eq!(refused(&env.lab, &other).await, invalid("a", fault));

    // The Machine was deleted, and its claim was retained.
    machines.delete("a-b").await.unwrap();
    machines.until_gone("a-b").await.unwrap();
    let fault = "spec.disks[0].name: Duplicate value: \"b-c\": its claim 'a-b-c' was kept from Machine 'a-b'; choose another name for the disk or for the Machine, or delete that claim [NameInUse]";
    assert_eq!(refused(&env.lab, &other).await, invalid("a", fault));
    env.apply(&machine("a-b", &with_disk("c"))).await;
    machines.until_phase("a-b", "Running").await.unwrap();
    let back = claims.get("a-b-c").await.unwrap();
    assert_eq!(back["metadata"]["uid"], kept);

    let foreign = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "web-data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    env.apply(&foreign).await;
    let web = machine("web", &with_disk("data"));
    let fault = "spec.disks[0].name: Duplicate value: \"data\": its claim 'web-data' exists and was not made for a Machine; choose another name for the disk or for the Machine, or delete that claim [NameInUse]";
    assert_eq!(refused(&env.lab, &web).await, invalid("web", fault));
    claims.delete("web-data").await.unwrap();
    claims.until_gone("web-data").await.unwrap();
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    machines.until_phase("web", "Running").await.unwrap();
    env.apply(&foreign).await;
    assert_forbidden(&refused(&env.lab, &web).await, fault);
}

/// Two replicas may each accept one of two Machines: neither has the other Machine in its cache.
#[tokio::test]
async fn of_two_conflicting_machines_that_were_both_admitted_the_older_one_continues() {
    let never = [("RECONCILE_INTERVAL", "1h")];
    let env = Environment::with(Options::default(), &never).await;
    let machines = env.machines();
    env.apply(&network("default", "prod", "br0")).await;
    let pair = [
        machine("first", &on_prod(TAKEN)),
        machine("second", &on_prod(TAKEN)),
        machine("a-b", &with_disk("c")),
        machine("a", &with_disk("b-c")),
    ];
    let mut together = Vec::new();
    for machine in &pair {
        together.push(env.accepted(machine).await);
    }
    env.lab.unregister_webhooks().await.unwrap();
    for (name, machine) in ["first", "second", "a-b", "a"].into_iter().zip(&together) {
        env.apply(machine).await;
        if ["first", "a-b"].contains(&name) {
            machines.until_phase(name, "Running").await.unwrap();
        }
    }

    let second = machines.until_condition("second", "NetworkReady", "False", "NetworkFailed");
    let second = second.await.unwrap();
    let fault = format!(
        "network card 'eth0' has the address {TAKEN}, and so has the older Machine 'first' on NetworkConfiguration 'prod': change macAddress of one of them in spec.networks; the Machine continues automatically then"
    );
    assert_eq!(condition(&second, "NetworkReady")["message"], fault);
    assert_eq!(condition(&second, "Ready")["reason"], "NetworkFailed");
    assert!(env.objects(VM).find("second").await.unwrap().is_none());
    let a = machines.until_condition("a", "StorageReady", "False", "NameConflict");
    assert_eq!(
        condition(&a.await.unwrap(), "StorageReady")["message"],
        "PersistentVolumeClaim 'a-b-c' belongs to disk 'c' of Machine 'a-b': give disk 'b-c' another name, or delete that claim; it is left untouched"
    );
    assert_eq!(
        machines.get("first").await.unwrap()["status"]["phase"],
        "Running"
    );

    // Both continue because of a watch event: the reconcile interval is an hour.
    machines.delete("first").await.unwrap();
    machines.until_phase("second", "Running").await.unwrap();
    machines.delete("a-b").await.unwrap();
    machines.until_gone("a-b").await.unwrap();
    env.objects(CLAIM).delete("a-b-c").await.unwrap();
    machines.until_phase("a", "Running").await.unwrap();
}
