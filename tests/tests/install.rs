//! The installed manifests in a real API server: dry run, webhook configurations, permissions.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use lab::{Binary, Lab, OPERATOR_NAMESPACE, Options, WEBHOOK_CONFIGURATION, paths};
use serde_json::{Value, json};

async fn lab() -> Lab {
    let options = Options {
        operator: true,
        ..Options::bare()
    };
    Lab::with(options).await.unwrap()
}

#[tokio::test]
async fn everything_is_accepted_by_the_api_server() {
    let lab = Lab::with(Options::bare()).await.unwrap();
    let folder = paths::repository().join("manifests/install");
    let kubectl = lab.kubectl();
    // The namespace first: without it, the dry run of the objects in it is refused.
    let namespace = folder.join("namespace.yaml").display().to_string();
    let create = ["create", "-f", namespace.as_str()];
    kubectl.run(&create).await.unwrap().ok().unwrap();
    let folder = folder.display().to_string();
    let dry = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-k",
        &folder,
    ];
    let output = kubectl.run(&dry).await.unwrap();
    assert_eq!(output.code, 0, "{output}");
    assert_eq!(output.stderr, "");
    let lines: Vec<_> = output.stdout.lines().collect();
    assert!(lines.contains(&"deployment.apps/machine-webhook serverside-applied (server dry run)"));

    let examples = paths::repository().join("manifests/examples/network-policies");
    let examples = examples.display().to_string();
    let output = kubectl.run(&[&dry[..4], &["-f", &examples]].concat()).await;
    let output = output.unwrap();
    assert_eq!(output.stderr, "");
    assert_eq!(output.stdout.lines().count(), 2, "{output}");
}

/// Both programs reach DNS and API servers only, and are reached at their ports only, whatever else is installed.
#[tokio::test]
async fn the_network_policies_restrict_both_directions() {
    let lab = Lab::with(Options::bare()).await.unwrap();
    let folder = paths::repository().join("manifests/install");
    let folder = folder.display().to_string();
    let rendered = ["kustomize", &folder];
    let rendered = lab.kubectl().run(&rendered).await.unwrap().ok().unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
    let is_policy = |object: &&Value| object["kind"] == "NetworkPolicy";
    let policies: Vec<_> = objects.iter().filter(is_policy).collect();
    assert_eq!(policies.len(), 2);
    for policy in policies {
        let spec = &policy["spec"];
        assert_eq!(
            spec["policyTypes"],
            json!(["Ingress", "Egress"]),
            "{policy}"
        );
        let ports = |rules: &Value| -> BTreeSet<String> {
            let rules = rules.as_array().unwrap().iter();
            let ports = rules.flat_map(|rule| rule["ports"].as_array().unwrap());
            ports.map(|port| port["port"].to_string()).collect()
        };
        let egress = ["53", "443", "6443"].map(str::to_owned);
        assert_eq!(ports(&spec["egress"]), egress.into(), "{policy}");
        let ingress = ports(&spec["ingress"]);
        assert!(!ingress.is_empty() && ingress.len() <= 3, "{policy}");
    }
}

/// The fields that both kinds of configurations have.
fn common(entry: &Value) -> Value {
    let fields = [
        "namespaceSelector",
        "rules",
        "matchConditions",
        "failurePolicy",
        "matchPolicy",
    ];
    let more = ["sideEffects", "timeoutSeconds", "admissionReviewVersions"];
    let fields = fields.iter().chain(&more);
    fields
        .map(|&field| (field.to_owned(), entry[field].clone()))
        .collect()
}

#[tokio::test]
async fn both_webhooks_are_registered_for_the_same_requests() {
    let lab = lab().await;
    lab.register_webhooks().await.unwrap();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(lab.client().clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(lab.client().clone());
    let mutating = mutating.get(WEBHOOK_CONFIGURATION).await.unwrap();
    let validating = validating.get(WEBHOOK_CONFIGURATION).await.unwrap();
    let mutating = json!(mutating.webhooks.unwrap());
    let validating = json!(validating.webhooks.unwrap());
    let (mutating, validating) = (mutating.as_array().unwrap(), validating.as_array().unwrap());

    let names: Vec<_> = mutating.iter().map(|entry| &entry["name"]).collect();
    let expected = [
        "mutate.machines.vitistack.io",
        "mutate.deny-missing-networks.vitistack.io",
        "mutate.warn-missing-networks.vitistack.io",
    ];
    assert_eq!(names, expected);
    let (warns, validating) = validating.split_last().unwrap();
    assert_eq!(validating.len(), mutating.len());
    assert_eq!(warns["name"], "warn-of-deletion.machines.vitistack.io");
    assert_eq!(warns["rules"][0]["operations"], json!(["DELETE"]));
    assert_eq!(warns["failurePolicy"], "Ignore");
    assert_eq!(warns["timeoutSeconds"], 1);
    let conditions = &mutating[0]["matchConditions"];
    assert_eq!(conditions.as_array().unwrap().len(), 2);
    for (mutating, validating) in mutating.iter().zip(validating) {
        let name = mutating["name"].as_str().unwrap();
        let name = name.replacen("mutate.", "validate.", 1);
        assert_eq!(validating["name"], name);
        let url = mutating["clientConfig"]["url"].as_str().unwrap();
        let url = url.replacen("/mutate", "/validate", 1);
        assert_eq!(validating["clientConfig"], json!({"url": url}));
        assert_eq!(common(mutating), common(validating));
        assert_eq!(&mutating["matchConditions"], conditions);
        assert_eq!(mutating["failurePolicy"], "Fail");
        assert_eq!(mutating["timeoutSeconds"], 3);
        assert_eq!(mutating["reinvocationPolicy"], "IfNeeded");
    }
}

async fn may(client: &Client, verb: &str, group: &str, resource: &str, name: &str) -> bool {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(OPERATOR_NAMESPACE.into()),
                verb: Some(verb.into()),
                group: Some(group.into()),
                resource: Some(resource.into()),
                subresource: Some(subresource.into()),
                name: Some(name.into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = reviews
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    answer.status.unwrap().allowed
}

#[tokio::test]
async fn each_program_has_only_the_permissions_of_its_role() {
    let lab = lab().await;
    let account = async |binary: Binary| {
        lab.account_client(OPERATOR_NAMESPACE, binary.account())
            .await
            .unwrap()
    };
    let webhook = account(Binary::Webhook).await;
    assert!(may(&webhook, "get", "", "secrets", "machine-webhook-ca").await);
    assert!(may(&webhook, "watch", "vitistack.io", "machinetemplates", "").await);
    assert!(may(&webhook, "watch", "vitistack.io", "machines", "").await);
    assert!(may(&webhook, "list", "", "persistentvolumeclaims", "").await);
    assert!(!may(&webhook, "delete", "", "persistentvolumeclaims", "web").await);
    assert!(may(&webhook, "get", "", "namespaces", "kube-system").await);
    assert!(may(&webhook, "watch", "vitistack.io", "machinepolicies", "").await);
    assert!(may(&webhook, "watch", "", "namespaces", "").await);
    assert!(!may(&webhook, "patch", "", "namespaces", "another").await);
    assert!(!may(&webhook, "get", "", "secrets", "another").await);
    assert!(!may(&webhook, "delete", "", "secrets", "machine-webhook-ca").await);
    assert!(may(&webhook, "create", "events.k8s.io", "events", "").await);
    assert!(!may(&webhook, "patch", "vitistack.io", "machines", "web").await);
    let group = "admissionregistration.k8s.io";
    let mutating = "mutatingwebhookconfigurations";
    assert!(may(&webhook, "patch", group, mutating, WEBHOOK_CONFIGURATION).await);
    assert!(!may(&webhook, "patch", group, mutating, "another").await);

    let controller = account(Binary::Controller).await;
    assert!(
        may(
            &controller,
            "patch",
            "vitistack.io",
            "machines/status",
            "web"
        )
        .await
    );
    assert!(
        may(
            &controller,
            "delete",
            "kubevirt.io",
            "virtualmachines",
            "web"
        )
        .await
    );
    assert!(!may(&controller, "create", "vitistack.io", "machines", "").await);
    assert!(!may(&controller, "delete", "vitistack.io", "machines", "web").await);
    assert!(!may(&controller, "patch", group, mutating, WEBHOOK_CONFIGURATION).await);
}
