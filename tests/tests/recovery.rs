//! A Machine that waits for an object continues because a watch reports the object, not because the reconcile interval
//! has passed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod environment;

use lab::{
    KubevirtCrds, Options, Scenario,
    objects::{ATTACHMENT, CLAIM, NETWORK, Objects, VM, condition, condition_message},
    storage_class,
};
use serde_json::{Value, json};

use environment::{Environment, machine, named};

/// Settings with a reconcile interval that no test reaches.
const NEVER: [(&str, &str); 1] = [("RECONCILE_INTERVAL", "1h")];

/// Waits until a condition of a Machine is False with this reason.
async fn failed(machines: &Objects, name: &str, kind: &str, reason: &str) {
    let failed = machines
        .until_condition(name, kind, "False", reason)
        .await
        .unwrap();
    assert_eq!(failed["status"]["phase"], "Failed", "{name}");
    assert_eq!(condition(&failed, "Ready")["reason"], reason, "{name}");
}

#[tokio::test]
async fn a_machine_continues_once_the_objects_it_names_exist() {
    let mut env = Environment::with(Options::default(), &NEVER).await;
    let machines = env.machines();

    env.machine_without_class("class").await;
    failed(&machines, "class", "StorageReady", "StorageClassNotFound").await;
    env.apply(&storage_class("fast-ssd", false, true)).await;
    machines.until_phase("class", "Running").await.unwrap();

    let eth0 = json!({"name": "eth0", "networkName": "prod"});
    let spec = json!({"template": "small", "networks": [eth0]});
    env.apply(&machine("network", &spec)).await;
    let (kind, reason) = ("NetworkReady", "NetworkConfigurationNotFound");
    failed(&machines, "network", kind, reason).await;
    let theirs = json!({"networkAttachmentDefinition": "theirs"});
    env.apply(&named(
        "vitistack.io/v1alpha1",
        "NetworkConfiguration",
        "prod",
        &theirs,
    ))
    .await;
    failed(&machines, "network", kind, "NetworkFailed").await;
    let config = json!({"config": "{}"});
    let attachment = named(
        "k8s.cni.cncf.io/v1",
        "NetworkAttachmentDefinition",
        "theirs",
        &config,
    );
    env.objects(ATTACHMENT).create(&attachment).await.unwrap();
    machines.until_phase("network", "Running").await.unwrap();
    assert!(env.objects(NETWORK).find("prod").await.unwrap().is_some());

    // First the Secret is missing, then its key.
    let reference = json!({"secretRef": {"name": "mine", "key": "data"}});
    let spec = json!({"template": "small", "cloudInit": reference});
    env.apply(&machine("secret", &spec)).await;
    let (kind, reason) = ("VirtualMachineReady", "CloudInitSecretNotFound");
    failed(&machines, "secret", kind, reason).await;
    let secret = |data: Value| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": data,
            "metadata": {"name": "mine", "namespace": "default"},
        })
    };
    env.apply(&secret(json!({"another": "#cloud-config\n"})))
        .await;
    env.barrier("later").await;
    failed(&machines, "secret", kind, reason).await;
    env.apply(&secret(json!({"data": "#cloud-config\n"}))).await;
    machines.until_phase("secret", "Running").await.unwrap();

    // A claim of another owner, created after the review.
    assert!(env.controller.stop().await.unwrap().success());
    env.apply(&machine("claim", &json!({"template": "small"})))
        .await;
    let spec = json!({
        "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "20Gi"}},
    });
    let claims = env.objects(CLAIM);
    let claim = named("v1", "PersistentVolumeClaim", "claim-root", &spec);
    claims.create(&claim).await.unwrap();
    env.controller.start_again().unwrap();
    failed(&machines, "claim", "StorageReady", "NameConflict").await;
    claims.delete("claim-root").await.unwrap();
    machines.until_phase("claim", "Running").await.unwrap();
}

#[tokio::test]
async fn a_machine_continues_once_kubevirt_and_multus_are_installed() {
    let options = Options {
        kubevirt: KubevirtCrds::Absent,
        multus: false,
        ..Options::default()
    };
    let mut env = Environment::with(options, &NEVER).await;
    let machines = env.machines();
    let bridge = json!({"bridge": "br0"});
    env.apply(&named(
        "vitistack.io/v1alpha1",
        "NetworkConfiguration",
        "prod",
        &bridge,
    ))
    .await;
    let eth0 = json!({"name": "eth0", "networkName": "prod"});
    let spec = json!({"template": "small", "networks": [eth0]});
    env.apply(&machine("web", &spec)).await;
    failed(&machines, "web", "NetworkReady", "NetworkFailed").await;
    let reported =
        machines.until_condition("web", "VirtualMachineReady", "False", "KubeVirtApiError");
    reported.await.unwrap();

    env.lab.install_multus().await.unwrap();
    let reported = machines.until_condition("web", "NetworkReady", "True", "NetworkConfigured");
    reported.await.unwrap();
    failed(&machines, "web", "VirtualMachineReady", "KubeVirtApiError").await;
    env.lab.install_kubevirt(KubevirtCrds::Thin).await.unwrap();
    env.simulator = env.lab.simulator(Scenario::Happy).await.unwrap();
    machines.until_phase("web", "Running").await.unwrap();
}

/// Changes made while a Machine is paused are applied when it is resumed, its deletion included.
#[tokio::test]
async fn a_paused_machine_is_only_observed() {
    let env = Environment::with(Options::default(), &NEVER).await;
    let machines = env.machines();
    env.apply(&machine("web", &json!({"template": "small"})))
        .await;
    machines.until_phase("web", "Running").await.unwrap();
    let paused = |paused: Value| json!({"metadata": {"annotations": {"machine.vitistack.io/paused": paused}}});
    machines.merge("web", &paused(json!("true"))).await.unwrap();
    machines
        .until_condition("web", "Paused", "True", "Paused")
        .await
        .unwrap();
    let before = env.objects(VM).get("web").await.unwrap();

    let off = json!({"spec": {"powerState": "Stopped"}});
    machines.merge("web", &off).await.unwrap();
    let paused_reason = machines.until_condition("web", "Ready", "False", "Paused");
    let seen = paused_reason.await.unwrap();
    assert_eq!(
        seen["status"]["observedGeneration"],
        seen["metadata"]["generation"]
    );
    env.barrier("later").await;
    let vm = env.objects(VM).get("web").await.unwrap();
    assert_eq!(vm["spec"], before["spec"]);
    // Status changes of KubeVirt are reported while the Machine is paused, too.
    env.simulator
        .set("default", "web", Scenario::Shows("Paused"));
    let reported = machines.until_condition("web", "Ready", "False", "GuestPaused");
    reported.await.unwrap();
    env.simulator.set("default", "web", Scenario::Happy);

    machines.merge("web", &paused(Value::Null)).await.unwrap();
    let stopped = machines
        .until_condition("web", "Ready", "True", "Stopped")
        .await
        .unwrap();
    assert_eq!(condition(&stopped, "Paused"), &Value::Null);

    machines.merge("web", &paused(json!("true"))).await.unwrap();
    machines
        .until_condition("web", "Paused", "True", "Paused")
        .await
        .unwrap();
    machines.delete("web").await.unwrap();
    let waits = machines
        .until_condition("web", "Ready", "False", "Deleting")
        .await
        .unwrap();
    let message = condition_message(&waits, "Ready").unwrap();
    assert!(message.contains("machine.vitistack.io/paused"), "{message}");
    assert!(env.objects(VM).find("web").await.unwrap().is_some());
    machines.merge("web", &paused(Value::Null)).await.unwrap();
    machines.until_gone("web").await.unwrap();
}
