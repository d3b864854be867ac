//! Networks of Machines: waited for, made, never taken over.

mod stage;

use lab::objects::{ATTACHMENT, VM, condition};
use serde_json::{Value, json};

use stage::{Stage, machine};

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
