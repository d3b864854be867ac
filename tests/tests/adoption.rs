//! An upgrade from release 0.1.0 with a running Machine on KubeVirt: nothing is written but its status, and the guest
//! goes on.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use common::render::{Identity, digest, kubevirt::types::VirtualMachineSpec};
use lab::{
    Lab, Options, Scenario,
    objects::{
        ATTACHMENT, CLAIM, INSTANCE, Kind, MACHINE, NETWORK, SECRET, VM, cluster_uid, condition,
    },
};
use serde_json::{Value, json};

use environment::{Environment, summaries};

/// A running Machine with block version 1, and all its objects, as that release wrote them.
const OBJECTS: &str =
    include_str!("../../controller/kubevirt/src/plan/tests/adoption/release-0.1.0.json");
/// The annotation with the digest of what was rendered.
const RENDERED: &str = "machine.vitistack.io/rendered";
/// What of the former objects depends on the uid of the Machine, and the MAC address, which depends on the cluster.
const FORMER_UID: &str = "uid-of-web";
const FORMER_MAC: &str = "46:cc:6d:50:f0:8c";

/// Creates an object as that release had made it, and returns it as it is stored. The API server chooses another uid.
async fn create(lab: &Lab, kind: Kind, object: Value) -> Value {
    let objects = lab.objects(kind, "default");
    objects.create_recorded(object).await.unwrap()
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}

fn rendered(vm: &Value) -> String {
    let spec: VirtualMachineSpec = serde_json::from_value(vm["spec"].clone()).unwrap();
    digest(&spec)
}

/// The identity of the Machine in a cluster.
fn identity<'a>(cluster: &'a str, uid: &'a str) -> Identity<'a> {
    Identity {
        cluster,
        namespace: "default",
        name: "web",
        uid,
    }
}

/// Stores all objects of that release, as long as nothing of this one runs.
async fn store(lab: &Lab) {
    let former: Value = serde_json::from_str(OBJECTS).unwrap();
    let vm = &former["virtualMachine"];
    let by_release = &vm["metadata"]["annotations"][RENDERED];
    assert_eq!(*by_release, rendered(vm), "the digest is that of the spec");

    let mut network = former["networks"]["prod"].clone();
    network["metadata"]["finalizers"] = json!(["machine.vitistack.io/in-use"]);
    let network = create(lab, NETWORK, network).await;
    let web = former["machine"].clone();
    let status = json!({"status": web["status"]});
    let web = create(lab, MACHINE, web).await;
    let machines = lab.objects(MACHINE, "default");
    machines.merge_status("web", &status).await.unwrap();

    let cluster = cluster_uid(lab.client()).await.unwrap();
    let (before, now) = (identity("", FORMER_UID), identity(&cluster, uid(&web)));
    let named = |object: &Value| -> Value {
        let text = object.to_string();
        let text = text.replace("uid-of-prod", uid(&network));
        let text = text.replace(FORMER_UID, now.uid);
        let text = [Identity::firmware_uuid, Identity::firmware_serial]
            .iter()
            .fold(text, |text, of| {
                text.replace(&of(&before).to_string(), &of(&now).to_string())
            });
        let text = text.replace(FORMER_MAC, &now.mac("eth0").to_string());
        serde_json::from_str(&text).unwrap()
    };
    let attachment = named(&former["attachments"]["prod"]);
    create(lab, ATTACHMENT, attachment).await;
    for claim in ["web-root", "web-data"] {
        let claim = named(&former["claims"][claim]);
        create(lab, CLAIM, claim).await;
    }
    let mut secret = named(&former["secret"]);
    secret["stringData"] = json!({"userdata": former["machine"]["spec"]["cloudInit"]["userData"]});
    create(lab, SECRET, secret).await;
    let mut vm = named(vm);
    vm["metadata"]["annotations"][RENDERED] = rendered(&vm).into();
    create(lab, VM, vm).await;
}

/// The metadata that its owner writes, and the spec.
fn written(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "annotations": metadata["annotations"], "labels": metadata["labels"],
        "ownerReferences": metadata["ownerReferences"], "spec": object["spec"],
        "data": object["data"], "uid": metadata["uid"],
    })
}

#[tokio::test]
async fn a_running_machine_of_release_0_1_0_is_adopted_without_a_write() {
    let mut lab = Lab::with(Options::default()).await.unwrap();
    store(&lab).await;
    let simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let instances = lab.objects(INSTANCE, "default");
    let runs = |it: &Value| it["status"]["phase"] == "Running";
    let guest = instances.until("web", "to run", runs).await.unwrap();

    let objects = [
        (MACHINE, "web"),
        (VM, "web"),
        (INSTANCE, "web"),
        (CLAIM, "web-root"),
        (CLAIM, "web-data"),
        (SECRET, "web-cloudinit"),
        (NETWORK, "prod"),
        (ATTACHMENT, "prod"),
    ];
    let now = async |lab: &Lab| {
        let mut all = vec![];
        for (kind, name) in objects {
            all.push(written(
                &lab.objects(kind, "default").get(name).await.unwrap(),
            ));
        }
        all
    };
    let before = now(&lab).await;
    let mark = lab.log_position().await.unwrap();
    let webhook = lab.webhook(&[]).await.unwrap();
    let controller = lab.controller(&[]).await.unwrap();
    let env = Environment {
        simulator,
        controller,
        webhook,
        lab,
    };
    let machines = env.machines();
    // Another address than that of the former status.
    let addresses = addresses(&guest);
    let reported = machines.until("web", "the address of the guest", |web| {
        let is_ready = condition(web, "Ready")["status"] == "True";
        is_ready && web["status"]["ipAddresses"] == addresses
    });
    let web = reported.await.unwrap();
    assert_eq!(web["status"].get("pendingChanges"), None, "{web}");
    env.barrier("later").await;

    assert_eq!(now(&env.lab).await, before);
    let writes = env.writes_since(mark).await;
    let mut others = summaries(&writes);
    let statuses = [
        "machines/status default/web",
        "networkconfigurations/status default/prod",
    ];
    let is_status = |it: &String| statuses.iter().any(|status| it.ends_with(status));
    others.retain(|it| !it.contains("later") && !is_status(it));
    assert_eq!(others, [""; 0], "nothing but the status is written");

    // What was stored is accepted again, and the Machine is reconciled as any other.
    let label = json!({"metadata": {"labels": {"upgraded": "yes"}}});
    machines.merge("web", &label).await.unwrap();
    assert_eq!(machines.get("web").await.unwrap()["spec"], web["spec"]);
    machines.delete("web").await.unwrap();
    machines.until_gone("web").await.unwrap();
    instances.until_gone("web").await.unwrap();
    let claims = env.objects(CLAIM);
    claims.until_gone("web-root").await.unwrap();
    let kept = claims.get("web-data").await.unwrap();
    assert_eq!(kept["metadata"]["deletionTimestamp"], Value::Null);
}

/// The addresses that the instance reports.
fn addresses(instance: &Value) -> Value {
    let cards = instance["status"]["interfaces"].as_array().unwrap();
    let addresses = cards
        .iter()
        .filter_map(|card| card["ipAddresses"].as_array());
    addresses.flatten().cloned().collect()
}
