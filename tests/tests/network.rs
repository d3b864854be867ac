//! Networks of Machines: waited for, made, never taken over, held while they are in use.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod stage;

use lab::{
    objects::{ATTACHMENT, EVENT, NETWORK, VM, condition},
    wait,
};
use serde_json::{Value, json};

use stage::{Stage, machine, summaries};

fn network(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    })
}

fn on(network: &str) -> Value {
    json!({"template": "small", "networks": [{"name": "eth0", "networkName": network}]})
}

#[tokio::test]
async fn a_machine_waits_for_its_network() {
    let stage = Stage::new().await;
    let machines = stage.machines();
    stage.apply(&machine("web", &on("prod"))).await;
    let reason = "NetworkConfigurationNotFound";
    let waits = machines.told("web", "NetworkReady", "False", reason);
    let waits = waits.await.unwrap();
    assert_eq!(waits["status"]["phase"], "Failed");
    assert_eq!(condition(&waits, "Ready")["reason"], reason);
    let message = condition(&waits, "Ready")["message"].as_str().unwrap();
    assert!(message.contains("NetworkConfiguration 'prod' not found in namespace default"));
    assert!(stage.objects(VM).find("web").await.unwrap().is_none());

    let made = network("prod", &json!({"bridge": "br0", "vlan": 100}));
    stage.apply(&made).await;
    machines.in_phase("web", "Running").await.unwrap();
    machines
        .told("web", "NetworkReady", "True", "NetworkConfigured")
        .await
        .unwrap();

    let attachment = stage.objects(ATTACHMENT).get("prod").await.unwrap();
    let owner = &attachment["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], "NetworkConfiguration");
    let config = attachment["spec"]["config"].as_str().unwrap();
    let config: Value = serde_json::from_str(config).unwrap();
    assert_eq!(
        (&config["bridge"], &config["vlan"]),
        (&json!("br0"), &json!(100))
    );
    let vm = stage.objects(VM).get("web").await.unwrap();
    let networks = &vm["spec"]["template"]["spec"]["networks"];
    assert_eq!(networks[0]["multus"]["networkName"], "default/prod");

    // What can change of a network reaches its attachment.
    let changed = network("prod", &json!({"bridge": "br0", "vlan": 100, "mtu": 9000}));
    stage.apply(&changed).await;
    stage
        .objects(ATTACHMENT)
        .until("prod", "to have the MTU", |attachment| {
            let config = attachment["spec"]["config"].as_str();
            config.is_some_and(|config| config.contains("9000"))
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn an_attachment_of_somebody_else_is_used_only_when_it_is_named() {
    let stage = Stage::new().await;
    let machines = stage.machines();
    let foreign = json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {"config": "{}"},
    });
    let attachments = stage.objects(ATTACHMENT);
    attachments.create(&foreign).await.unwrap();
    let before = attachments.get("theirs").await.unwrap();

    stage
        .apply(&network("theirs", &json!({"bridge": "br0"})))
        .await;
    stage.apply(&machine("blocked", &on("theirs"))).await;
    let told = machines.told("blocked", "NetworkReady", "False", "NetworkFailed");
    let told = told.await.unwrap();
    let message = condition(&told, "NetworkReady")["message"]
        .as_str()
        .unwrap();
    assert!(
        message.contains("'theirs' exists and is not ours"),
        "{message}"
    );

    let named = json!({"networkAttachmentDefinition": "theirs"});
    stage.apply(&network("named", &named)).await;
    stage.apply(&machine("web", &on("named"))).await;
    machines.in_phase("web", "Running").await.unwrap();
    assert_eq!(attachments.get("theirs").await.unwrap(), before);
}

const IN_USE: &str = "machine.vitistack.io/in-use";

fn is_held(network: &Value) -> bool {
    network["metadata"]["finalizers"] == json!([IN_USE])
}

async fn delete(stage: &Stage, name: &str) {
    let delete = ["delete", "networkconfiguration", name, "--wait=false"];
    stage
        .lab
        .kubectl()
        .run(&delete)
        .await
        .unwrap()
        .ok()
        .unwrap();
}

/// Waits until the event that a deletion waits has this note.
async fn waits_for(stage: &Stage, network: &str, machines: &str) {
    let expected = format!(
        "the deletion waits for the Machines that use this network: {machines}; delete them, or take it out of their spec.networks and restart them; the network is deleted then"
    );
    let events = stage.objects(EVENT);
    wait::until(&format!("{network} to wait for {machines}"), async || {
        let events = events.list().await?;
        let about = events
            .iter()
            .filter(|event| event["regarding"]["name"] == network && event["reason"] == "InUse");
        let notes: Vec<_> = about.map(|event| event["note"].clone()).collect();
        Ok(if notes.contains(&json!(expected)) {
            Ok(())
        } else {
            Err(notes)
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_network_in_use_stays_until_nobody_uses_it() {
    let mut stage = Stage::new().await;
    let (machines, networks) = (stage.machines(), stage.objects(NETWORK));
    let prod = network("prod", &json!({"bridge": "br0"}));
    for (name, bridge) in [("prod", "br0"), ("idle", "br1")] {
        stage
            .apply(&network(name, &json!({"bridge": bridge})))
            .await;
    }
    for name in ["web", "db"] {
        stage.apply(&machine(name, &on("prod"))).await;
        machines.in_phase(name, "Running").await.unwrap();
    }
    networks.until("prod", "to be held", is_held).await.unwrap();
    let idle = networks.get("idle").await.unwrap();
    assert_eq!(idle["metadata"]["finalizers"], Value::Null);

    delete(&stage, "prod").await;
    waits_for(&stage, "prod", "db, web").await;
    // What is not in use goes at once.
    delete(&stage, "idle").await;
    networks.gone("idle").await.unwrap();

    // A Machine that is gone does not hold it, nor a controller that is not there.
    machines.delete("db").await.unwrap();
    machines.gone("db").await.unwrap();
    waits_for(&stage, "prod", "web").await;
    assert!(stage.controller.stop().await.unwrap().success());
    let mark = stage.lab.mark().await.unwrap();
    stage.controller.start_again().unwrap();
    stage.barrier("later").await;
    let written = stage.writes_since(mark).await;
    let written: Vec<_> = written
        .into_iter()
        .filter(|event| event.resource == "networkconfigurations")
        .collect();
    assert!(written.is_empty(), "{:?}", summaries(&written));
    assert!(is_held(&networks.get("prod").await.unwrap()));
    assert!(
        stage
            .objects(ATTACHMENT)
            .find("prod")
            .await
            .unwrap()
            .is_some()
    );

    machines.delete("web").await.unwrap();
    machines.gone("web").await.unwrap();
    networks.gone("prod").await.unwrap();

    // The same again, from a file: both come back, and hold each other as before.
    stage.apply(&machine("web", &on("prod"))).await;
    stage.apply(&prod).await;
    machines.in_phase("web", "Running").await.unwrap();
    networks.until("prod", "to be held", is_held).await.unwrap();

    // A Machine goes while nobody acts; who acts then lets the network go.
    delete(&stage, "prod").await;
    assert!(stage.controller.stop().await.unwrap().success());
    machines.delete("web").await.unwrap();
    stage.controller.start_again().unwrap();
    machines.gone("web").await.unwrap();
    networks.gone("prod").await.unwrap();
}

/// The spec lets go of a network at once, the guest when it is restarted.
#[tokio::test]
async fn a_network_is_held_by_a_guest_that_is_on_it() {
    let stage = Stage::new().await;
    let (machines, networks) = (stage.machines(), stage.objects(NETWORK));
    for (name, bridge) in [("prod", "br0"), ("test", "br1")] {
        stage
            .apply(&network(name, &json!({"bridge": bridge})))
            .await;
    }
    stage.apply(&machine("web", &on("prod"))).await;
    machines.in_phase("web", "Running").await.unwrap();
    networks.until("prod", "to be held", is_held).await.unwrap();
    stage.apply(&machine("web", &on("test"))).await;
    networks.until("test", "to be held", is_held).await.unwrap();
    let pending = machines.told("web", "RestartRequired", "True", "RestartRequired");
    pending.await.unwrap();
    delete(&stage, "prod").await;
    waits_for(&stage, "prod", "web").await;
    assert!(is_held(&networks.get("prod").await.unwrap()));

    let restart = json!({"machine.vitistack.io/restart-requested": "other network"});
    let restart = json!({"metadata": {"annotations": restart}});
    machines.merge("web", &restart).await.unwrap();
    networks.gone("prod").await.unwrap();
    machines
        .told("web", "Ready", "True", "Running")
        .await
        .unwrap();
    assert!(is_held(&networks.get("test").await.unwrap()));

    // With the guest's network gone from the spec, too, nobody is left.
    let none = json!({"spec": {"networks": [{"name": "eth0"}]}});
    machines.merge("web", &none).await.unwrap();
    let restart = json!({"machine.vitistack.io/restart-requested": "no network"});
    let restart = json!({"metadata": {"annotations": restart}});
    machines.merge("web", &restart).await.unwrap();
    let free = |network: &Value| network["metadata"]["finalizers"].is_null();
    networks.until("test", "to be let go", free).await.unwrap();
}
