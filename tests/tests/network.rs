//! Networks of Machines: waited for, created, never adopted from another owner, and kept while they are in use.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    objects::{ATTACHMENT, EVENT, NETWORK, VM, condition, condition_message},
    wait,
};
use serde_json::{Value, json};

use environment::{Environment, machine, summaries};

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
    let env = Environment::new().await;
    let machines = env.machines();
    env.apply(&machine("web", &on("prod"))).await;
    let reason = "NetworkConfigurationNotFound";
    let waits = machines.until_condition("web", "NetworkReady", "False", reason);
    let waits = waits.await.unwrap();
    assert_eq!(waits["status"]["phase"], "Failed");
    assert_eq!(condition(&waits, "Ready")["reason"], reason);
    let message = condition_message(&waits, "Ready").unwrap();
    assert!(message.contains("NetworkConfiguration 'prod' not found in namespace default"));
    assert!(env.objects(VM).find("web").await.unwrap().is_none());

    let made = network("prod", &json!({"bridge": "br0", "vlan": 100}));
    env.apply(&made).await;
    machines.until_phase("web", "Running").await.unwrap();
    machines
        .until_condition("web", "NetworkReady", "True", "NetworkConfigured")
        .await
        .unwrap();

    let attachment = env.objects(ATTACHMENT).get("prod").await.unwrap();
    let owner = &attachment["metadata"]["ownerReferences"][0];
    assert_eq!(owner["kind"], "NetworkConfiguration");
    let config = attachment["spec"]["config"].as_str().unwrap();
    let config: Value = serde_json::from_str(config).unwrap();
    assert_eq!(
        (&config["bridge"], &config["vlan"]),
        (&json!("br0"), &json!(100))
    );
    let vm = env.objects(VM).get("web").await.unwrap();
    let networks = &vm["spec"]["template"]["spec"]["networks"];
    assert_eq!(networks[0]["multus"]["networkName"], "default/prod");

    // A changed network changes its attachment, and so does nobody else.
    let changed = network("prod", &json!({"bridge": "br0", "vlan": 100, "mtu": 9000}));
    env.apply(&changed).await;
    let attachments = env.objects(ATTACHMENT);
    let has_mtu = |attachment: &Value| {
        let config = attachment["spec"]["config"].as_str();
        config.is_some_and(|config| config.contains("9000"))
    };
    let updated = attachments.until("prod", "to have the MTU", has_mtu);
    updated.await.unwrap();
    let restored = async || {
        let events = env.objects(EVENT).list().await.unwrap();
        let restored = events.iter().filter(|it| it["reason"] == "Restored");
        let notes = restored.filter_map(|it| it["note"].as_str().map(str::to_owned));
        notes.collect::<Vec<_>>()
    };
    assert_eq!(restored().await, [""; 0]);
    let theirs = json!({"spec": {"config": "{}"}});
    attachments.merge("prod", &theirs).await.unwrap();
    let again = attachments.until("prod", "to have the MTU again", has_mtu);
    again.await.unwrap();
    let part = "restored spec.config of NetworkAttachmentDefinition prod, changed by ";
    wait::until("the event that names the change", async || {
        let notes = restored().await;
        let found = notes.iter().any(|note| note.starts_with(part));
        Ok(if found { Ok(()) } else { Err(notes) })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_attachment_of_another_owner_is_used_only_if_a_network_names_it() {
    let env = Environment::new().await;
    let machines = env.machines();
    let foreign = json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {"config": "{}"},
    });
    let attachments = env.objects(ATTACHMENT);
    attachments.create(&foreign).await.unwrap();
    let before = attachments.get("theirs").await.unwrap();

    env.apply(&network("theirs", &json!({"bridge": "br0"})))
        .await;
    env.apply(&machine("blocked", &on("theirs"))).await;
    let reported = machines.until_condition("blocked", "NetworkReady", "False", "NetworkFailed");
    let reported = reported.await.unwrap();
    let message = condition_message(&reported, "NetworkReady").unwrap();
    assert!(
        message.contains("'theirs' exists and is not ours"),
        "{message}"
    );

    let named = json!({"networkAttachmentDefinition": "theirs"});
    env.apply(&network("named", &named)).await;
    env.apply(&machine("web", &on("named"))).await;
    machines.until_phase("web", "Running").await.unwrap();
    assert_eq!(attachments.get("theirs").await.unwrap(), before);
}

const IN_USE: &str = "machine.vitistack.io/in-use";

fn is_in_use(network: &Value) -> bool {
    network["metadata"]["finalizers"] == json!([IN_USE])
}

async fn delete(env: &Environment, name: &str) {
    let delete = ["delete", "networkconfiguration", name, "--wait=false"];
    env.lab.kubectl().run(&delete).await.unwrap().ok().unwrap();
}

/// Waits until the event that a deletion waits has this note.
async fn waits_for(env: &Environment, network: &str, machines: &str) {
    let expected = format!(
        "the deletion waits for the Machines that use this network: {machines}; delete them, or take it out of their spec.networks and restart them; the network is deleted then"
    );
    let events = env.objects(EVENT);
    let event = events.until_event(network, "InUse", &expected).await;
    assert_eq!(event.unwrap()["note"], expected);
}

#[tokio::test]
async fn a_network_is_deleted_once_no_machine_uses_it() {
    let mut env = Environment::new().await;
    let (machines, networks) = (env.machines(), env.objects(NETWORK));
    let prod = network("prod", &json!({"bridge": "br0"}));
    for (name, bridge) in [("prod", "br0"), ("idle", "br1")] {
        env.apply(&network(name, &json!({"bridge": bridge}))).await;
    }
    for name in ["web", "db"] {
        env.apply(&machine(name, &on("prod"))).await;
        machines.until_phase(name, "Running").await.unwrap();
    }
    networks
        .until("prod", "to be in use", is_in_use)
        .await
        .unwrap();
    let idle = networks.get("idle").await.unwrap();
    assert_eq!(idle["metadata"]["finalizers"], Value::Null);

    delete(&env, "prod").await;
    waits_for(&env, "prod", "db and web").await;
    // A network that is not in use is deleted at once.
    delete(&env, "idle").await;
    networks.until_gone("idle").await.unwrap();

    // A deleted Machine no longer uses the network, and a restart of the controller changes nothing.
    machines.delete("db").await.unwrap();
    machines.until_gone("db").await.unwrap();
    waits_for(&env, "prod", "web").await;
    assert!(env.controller.stop().await.unwrap().success());
    let mark = env.lab.log_position().await.unwrap();
    env.controller.start_again().unwrap();
    env.barrier("later").await;
    let written = env.writes_since(mark).await;
    let written: Vec<_> = written
        .into_iter()
        .filter(|event| event.resource == "networkconfigurations")
        .collect();
    assert!(written.is_empty(), "{:?}", summaries(&written));
    assert!(is_in_use(&networks.get("prod").await.unwrap()));
    assert!(
        env.objects(ATTACHMENT)
            .find("prod")
            .await
            .unwrap()
            .is_some()
    );

    machines.delete("web").await.unwrap();
    machines.until_gone("web").await.unwrap();
    networks.until_gone("prod").await.unwrap();

    // Both are applied again, and the network is in use as before.
    env.apply(&machine("web", &on("prod"))).await;
    env.apply(&prod).await;
    machines.until_phase("web", "Running").await.unwrap();
    networks
        .until("prod", "to be in use", is_in_use)
        .await
        .unwrap();

    // A Machine is deleted while no controller runs; the next one releases the network.
    delete(&env, "prod").await;
    assert!(env.controller.stop().await.unwrap().success());
    machines.delete("web").await.unwrap();
    env.controller.start_again().unwrap();
    machines.until_gone("web").await.unwrap();
    networks.until_gone("prod").await.unwrap();
}

/// A network that is removed from the spec is in use until the guest is restarted.
#[tokio::test]
async fn a_network_that_a_guest_uses_is_not_deleted() {
    let env = Environment::new().await;
    let (machines, networks) = (env.machines(), env.objects(NETWORK));
    for (name, bridge) in [("prod", "br0"), ("test", "br1")] {
        env.apply(&network(name, &json!({"bridge": bridge}))).await;
    }
    env.apply(&machine("web", &on("prod"))).await;
    machines.until_phase("web", "Running").await.unwrap();
    networks
        .until("prod", "to be in use", is_in_use)
        .await
        .unwrap();
    env.apply(&machine("web", &on("test"))).await;
    networks
        .until("test", "to be in use", is_in_use)
        .await
        .unwrap();
    let pending = machines.until_condition("web", "RestartRequired", "True", "RestartRequired");
    pending.await.unwrap();
    delete(&env, "prod").await;
    waits_for(&env, "prod", "web").await;
    assert!(is_in_use(&networks.get("prod").await.unwrap()));

    let request = "other network";
    machines.request_restart("web", request).await.unwrap();
    networks.until_gone("prod").await.unwrap();
    machines
        .until_condition("web", "Ready", "True", "Running")
        .await
        .unwrap();
    assert!(is_in_use(&networks.get("test").await.unwrap()));

    // Once the guest's network is removed from the spec, too, no user is left.
    let none = json!({"spec": {"networks": [{"name": "eth0"}]}});
    machines.merge("web", &none).await.unwrap();
    machines.request_restart("web", "no network").await.unwrap();
    let free = |network: &Value| network["metadata"]["finalizers"].is_null();
    networks
        .until("test", "to be released", free)
        .await
        .unwrap();
}
