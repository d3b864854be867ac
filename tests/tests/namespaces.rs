//! The label of a namespace that decides how missing networks are treated, and the webhook entry that it selects.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, GroupVersionKind, Patch, PatchParams},
    core::ApiResource,
};
use lab::{Kubectl, Lab, Output, ProgramUnderTest, objects::namespace, wait};
use serde_json::{Value, json};

mod machines;

const LABEL: &str = "vitistack.io/missing-networks";

/// Namespaces with the value of their label.
const NAMESPACES: [(&str, Option<&str>); 4] = [
    ("denying", Some("deny")),
    ("warning", Some("warn")),
    ("unlabelled", None),
    ("misspelled", Some("denied")),
];

async fn lab(settings: &[(&str, &str)]) -> (Lab, ProgramUnderTest) {
    let (lab, webhook) = machines::lab(settings).await;
    for (name, label) in NAMESPACES {
        let labels = json!(label.map(|value| json!({LABEL: value})));
        lab.apply(&namespace(name, &labels)).await.unwrap();
    }
    (lab, webhook)
}

/// Creates a Machine with a network that does not exist, and a network of a similar name.
async fn create(kubectl: &Kubectl, namespace: &str) -> Output {
    let network = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "NetworkConfiguration",
        "metadata": {"name": "prod", "namespace": namespace},
        "spec": {"bridge": "br-prod"},
    });
    let apply = ["apply", "-f", "-"];
    let made = kubectl.run_with(&apply, network.to_string()).await;
    made.unwrap().ok().unwrap();
    let machine = machines::machine(
        "web",
        "template: small\nbootOrder: [network]\nnetworks: [{name: eth0, networkName: prd}]",
    )
    .replace("namespace: default", &format!("namespace: {namespace}"));
    let create = ["create", "-f", "-"];
    kubectl.run_with(&create, machine).await.unwrap()
}

fn assert_refused(output: Output) {
    assert_eq!(
        output.refused().unwrap(),
        "The Machine \"web\" is invalid: spec.networks[0].networkName: Not found: \"prd\": \
         did you mean 'prod'? known NetworkConfigurations: prod [NetworkConfigurationNotFound]\n"
    );
}

fn assert_warned(output: &Output) {
    assert_eq!(output.code, 0, "{output}");
    assert_eq!(
        output.stderr,
        "Warning: spec.networks[0].networkName: NetworkConfiguration 'prd' does not exist yet; \
         did you mean 'prod'? [NetworkConfigurationNotFound]\n\
         Warning: normalized to template small; 1 vCPU, 2Gi; root 20Gi on standard; NIC eth0 on prd\n"
    );
}

/// The number of reviews of a stage that the webhook has answered.
async fn answered(webhook: &mut ProgramUnderTest, stage: &str) -> u64 {
    let metrics = webhook.metrics().await.unwrap();
    let reviews = metrics.lines().filter(|line| {
        line.starts_with("machine_webhook_reviews_total{")
            && line.contains(&format!("stage=\"{stage}\""))
    });
    let counts = reviews.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    counts.sum()
}

#[tokio::test]
async fn the_namespace_label_overrides_the_setting() {
    for setting in ["warn", "deny"] {
        let (lab, _webhook) = lab(&[("MISSING_NETWORKS", setting)]).await;
        for (namespace, label) in NAMESPACES {
            let output = create(&lab.kubectl(), namespace).await;
            let decided = label.filter(|label| ["deny", "warn"].contains(label));
            match decided.unwrap_or(setting) {
                "deny" => assert_refused(output),
                _ => assert_warned(&output),
            }
        }
    }
}

#[tokio::test]
async fn a_namespace_label_makes_missing_networks_an_error() {
    let (lab, _webhook) = lab(&[]).await;
    let kubectl = lab.kubectl();
    let label = format!("{LABEL}=deny");
    let labelled = kubectl
        .run(&["label", "namespace", "unlabelled", &label])
        .await;
    labelled.unwrap().ok().unwrap();
    // The API server selects webhook entries by its own watch of namespaces, which may be late.
    wait::until("the label to take effect", async || {
        let dry = ["create", "--dry-run=server", "-f", "-"];
        let probe = machines::machine(
            "probe",
            "template: small\nnetworks: [{name: a, networkName: b}]",
        )
        .replace("namespace: default", "namespace: unlabelled");
        let output = kubectl.run_with(&dry, probe).await?;
        Ok(output.refused())
    })
    .await
    .unwrap();
    assert_refused(create(&kubectl, "unlabelled").await);
}

#[tokio::test]
async fn each_object_is_reviewed_by_exactly_one_webhook() {
    let (lab, mut webhook) = lab(&[]).await;
    let kind =
        |kind| ApiResource::from_gvk(&GroupVersionKind::gvk("vitistack.io", "v1alpha1", kind));
    let objects = |kind: &str, spec: Value| {
        let object = json!({
            "apiVersion": "vitistack.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": "web"},
            "spec": spec,
        });
        serde_json::from_value::<DynamicObject>(object).unwrap()
    };
    let (machines, networks) = (kind("Machine"), kind("NetworkConfiguration"));
    let mut writes = vec![(
        Api::<DynamicObject>::all_with(lab.client().clone(), &kind("MachineTemplate")),
        objects(
            "MachineTemplate",
            json!({"resources": {"memory": {"size": "2Gi"}}}),
        ),
    )];
    for (namespace, _) in NAMESPACES {
        let api = |kind| Api::namespaced_with(lab.client().clone(), namespace, kind);
        writes.push((
            api(&machines),
            objects("Machine", json!({"template": "small"})),
        ));
        writes.push((
            api(&networks),
            objects("NetworkConfiguration", json!({"bridge": "br0"})),
        ));
    }
    for (api, object) in writes {
        let before = (
            answered(&mut webhook, "mutate").await,
            answered(&mut webhook, "validate").await,
        );
        let parameters = PatchParams::apply("test");
        let patch = Patch::Apply(&object);
        api.patch(&object.name_any(), &parameters, &patch)
            .await
            .unwrap();
        let after = (
            answered(&mut webhook, "mutate").await,
            answered(&mut webhook, "validate").await,
        );
        assert_eq!(after, (before.0 + 1, before.1 + 1), "{object:?}");
    }
}
