//! Parts that a Machine on KubeVirt needs fail, one after the other, while its guest runs.

use lab::{
    Binary, Lab, OPERATOR_NAMESPACE, Scenario,
    fault_proxy::{FaultProxy, Scope},
    objects::{ATTACHMENT, CLASS, MACHINE, Objects, condition, namespace},
    reviews, storage_class,
};
use serde_json::{Value, json};

use crate::{invariants, late, lifecycle::SETTINGS};

const NAMESPACE: &str = "parts";

/// Creates a Machine, and waits until it runs: the controller has acted on everything that came before.
async fn run(lab: &Lab, name: &str, spec: &Value) {
    let mut machine = reviews::machine(name, spec);
    machine["metadata"]["namespace"] = json!(NAMESPACE);
    lab.apply(&machine).await.unwrap();
    let machines = lab.objects(MACHINE, NAMESPACE);
    let ready = machines.until_condition(name, "Ready", "True", "Running");
    ready.await.unwrap();
}

/// Triggers a pass of the Machine `web`.
async fn touch(machines: &Objects, after: &str) {
    let label = json!({"metadata": {"labels": {"after": after}}});
    machines.merge("web", &label).await.unwrap();
}

#[tokio::test]
async fn a_class_a_network_or_a_node_that_fails_costs_no_claim_and_starts_no_second_guest() {
    let mut lab = Lab::start().await.unwrap();
    let _webhook = lab.webhook(&[]).await.unwrap();
    let simulator = lab.simulator(Scenario::Happy).await.unwrap();
    let account = Binary::Controller.account();
    let client = lab.account_client(OPERATOR_NAMESPACE, account);
    let client = client.await.unwrap();
    let check = invariants::of(&lab, NAMESPACE);
    let scope = Scope {
        namespace: Some(NAMESPACE.to_owned()),
        ..Scope::default()
    };
    let proxy = FaultProxy::start(client, scope, check);
    let proxy = proxy.await.unwrap();
    let kubeconfig = proxy.kubeconfig();
    let _controller = lab
        .start_controller_at(&kubeconfig, &SETTINGS)
        .await
        .unwrap();
    let network = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "NetworkConfiguration",
        "metadata": {"name": "lan", "namespace": NAMESPACE}, "spec": {"bridge": "br-lan"},
    });
    for object in [&namespace(NAMESPACE, &json!({})), &network] {
        lab.apply(object).await.unwrap();
    }
    let spec = json!({
        "template": "small",
        "disks": [{"name": "data", "size": "1Gi", "storageClass": "fast-ssd"}],
        "networks": [{"name": "lan", "networkName": "lan"}],
    });
    run(&lab, "web", &spec).await;
    let before = late::in_use(&lab, NAMESPACE).await.unwrap();
    assert_eq!(before.len(), 4, "{before:?}");
    let machines = lab.objects(MACHINE, NAMESPACE);
    let unchanged = async |part: &str| {
        touch(&machines, part).await;
        run(
            &lab,
            &format!("after-{part}"),
            &json!({"template": "small"}),
        )
        .await;
        let now = late::in_use(&lab, NAMESPACE).await.unwrap();
        assert_eq!(now, before, "{part}");
        let shared = invariants::shared_claims(&lab, NAMESPACE).await.unwrap();
        assert_eq!(shared, [""; 0], "{part}");
    };

    lab.objects(CLASS, "").delete("fast-ssd").await.unwrap();
    unchanged("class").await;
    lab.apply(&storage_class("fast-ssd", false, true))
        .await
        .unwrap();

    let attachments = lab.objects(ATTACHMENT, NAMESPACE);
    let attachment = attachments.list().await.unwrap().remove(0);
    let attachment = attachment["metadata"]["name"].as_str().unwrap().to_owned();
    attachments.delete(&attachment).await.unwrap();
    unchanged("network").await;
    let made = attachments.until(&attachment, "to be there again", |_| true);
    made.await.unwrap();

    // The node does not report: KubeVirt does not know whether the guest runs.
    simulator.set(NAMESPACE, "web", Scenario::Shows("Unknown"));
    let is_unknown = |web: &Value| condition(web, "Ready")["status"] != "True";
    machines
        .until("web", "to be no longer ready", is_unknown)
        .await
        .unwrap();
    unchanged("node").await;
    simulator.set(NAMESPACE, "web", Scenario::Happy);
    let ready = machines.until_condition("web", "Ready", "True", "Running");
    ready.await.unwrap();
    unchanged("repair").await;
    assert_eq!(proxy.violations(), [""; 0]);
}
