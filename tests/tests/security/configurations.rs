//! The account of machine-webhook may change nothing of its webhook configurations but `caBundle`. The roles allow it to
//! patch them; a policy of the API server refuses the rest.

use std::collections::BTreeSet;

use axum::http::Request;
use certs::{CA_LIFETIME, Ca};
use k8s_openapi::ByteString;
use kube::Client;
use lab::{Binary, Lab, OPERATOR_NAMESPACE, Options, WEBHOOK_CONFIGURATION, wait};
use serde_json::{Value, json};
use time::OffsetDateTime;

/// Every message of the policy starts with this text.
const REFUSED: &str = "machine-webhook may change only caBundle";

/// A change of the first entry or of the metadata that the policy refuses: its name, and its JSON Patch.
fn refused_changes() -> Vec<(&'static str, Value)> {
    let replace = |field: &str, value: Value| json!([{"op": "add", "path": format!("/webhooks/0/{field}"), "value": value}]);
    let service = json!({"name": "machine-webhook", "namespace": "attacker", "path": "/mutate"});
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"],
    });
    let label = json!({"matchLabels": {"a": "b"}});
    let condition = json!([{"name": "never", "expression": "false"}]);
    let mut changes: Vec<_> = [
        ("name", json!("other.machines.vitistack.io")),
        ("rules", json!([rule])),
        ("failurePolicy", json!("Ignore")),
        ("matchPolicy", json!("Exact")),
        ("namespaceSelector", label.clone()),
        ("objectSelector", label),
        ("sideEffects", json!("NoneOnDryRun")),
        ("timeoutSeconds", json!(30)),
        ("admissionReviewVersions", json!(["v1", "v1beta1"])),
        ("matchConditions", condition),
        ("reinvocationPolicy", json!("Never")),
    ]
    .into_iter()
    .map(|(field, value)| (field, replace(field, value)))
    .collect();
    changes.extend([
        (
            "url",
            replace("clientConfig/url", json!("https://192.0.2.1/mutate")),
        ),
        (
            "service",
            replace("clientConfig", json!({"service": service})),
        ),
        (
            "an entry less",
            json!([{"op": "remove", "path": "/webhooks/0"}]),
        ),
        (
            "another order",
            json!([{"op": "move", "from": "/webhooks/0", "path": "/webhooks/1"}]),
        ),
        (
            "labels",
            json!([{"op": "add", "path": "/metadata/labels/a", "value": "b"}]),
        ),
        (
            "annotations",
            json!([{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}]),
        ),
        (
            "finalizers",
            json!([{"op": "add", "path": "/metadata/finalizers", "value": ["a.example/b"]}]),
        ),
        (
            "ownerReferences",
            json!([{"op": "add", "path": "/metadata/ownerReferences", "value": [
                {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "b"},
            ]}]),
        ),
    ]);
    changes
}

/// Sends a JSON Patch of a webhook configuration as a dry run.
async fn patch(client: &Client, resource: &str, patch: &Value) -> Result<Value, kube::Error> {
    let request = Request::patch(format!(
        "/apis/admissionregistration.k8s.io/v1/{resource}/{WEBHOOK_CONFIGURATION}?dryRun=All"
    ));
    let request = request.header("content-type", "application/json-patch+json");
    let request = request.body(patch.to_string().into_bytes()).unwrap();
    client.request(request).await
}

/// Checks all changes of one kind of configuration.
async fn assert_held(lab: &Lab, webhook: &Client, resource: &str) {
    let changes = refused_changes();
    let (_, first) = &changes[0];
    wait::until("the policy to be in force", async || {
        Ok(match patch(webhook, resource, first).await {
            Err(error) if error.to_string().contains(REFUSED) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    })
    .await
    .unwrap();
    for (what, change) in changes {
        if what == "reinvocationPolicy" && resource.starts_with("validating") {
            continue;
        }
        let error = patch(webhook, resource, &change).await.unwrap_err();
        let kube::Error::Api(status) = &error else {
            panic!("{what}: {error}");
        };
        assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
        assert!(status.message.contains(REFUSED), "{what}: {status:?}");
        // An administrator may change it.
        patch(lab.client(), resource, &change).await.unwrap();
    }
    let ca = Ca::generate("CA", OffsetDateTime::now_utc(), CA_LIFETIME).unwrap();
    let bundle = ByteString(ca.certificate_pem().as_bytes().to_vec());
    let bundles = (0..3).map(|index| {
        let path = format!("/webhooks/{index}/clientConfig/caBundle");
        json!({"op": "add", "path": path, "value": bundle})
    });
    let bundles: Value = bundles.collect();
    patch(webhook, resource, &bundles).await.unwrap();
}

/// Allows the account to delete its configurations: without that, an admission plugin that the lab enables refuses owner
/// references before policies are asked.
async fn allow_deletion(lab: &Lab, account: &str) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": "deletion"},
        "rules": [{
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            "verbs": ["delete"],
        }],
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "deletion"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "deletion"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": OPERATOR_NAMESPACE}],
    });
    for object in [role, binding] {
        lab.apply(&object).await.unwrap();
    }
}

/// The fields of a webhook, its client configuration included, as this API server documents them.
async fn known_fields(lab: &Lab, kind: &str) -> BTreeSet<String> {
    let path = "/openapi/v3/apis/admissionregistration.k8s.io/v1";
    let request = Request::get(path).body(Vec::new()).unwrap();
    let document: Value = lab.client().request(request).await.unwrap();
    let schemas = &document["components"]["schemas"];
    let fields = |name: &str| -> Vec<String> {
        let schema = &schemas[format!("io.k8s.api.admissionregistration.v1.{name}")];
        let properties = schema["properties"].as_object().unwrap();
        properties.keys().cloned().collect()
    };
    let mut known: BTreeSet<String> = fields(kind).into_iter().collect();
    assert!(known.remove("clientConfig"));
    known.extend(fields("WebhookClientConfig"));
    known
}

#[tokio::test]
async fn the_account_of_the_webhook_may_change_nothing_but_the_ca_bundle() {
    let options = Options {
        operator: true,
        ..Options::bare()
    };
    let lab = Lab::with(options).await.unwrap();
    lab.register_webhooks().await.unwrap();
    let account = Binary::Webhook.account();
    allow_deletion(&lab, account).await;
    let webhook = lab.account_client(OPERATOR_NAMESPACE, account).await;
    let webhook = webhook.unwrap();
    assert_held(&lab, &webhook, "mutatingwebhookconfigurations").await;
    assert_held(&lab, &webhook, "validatingwebhookconfigurations").await;

    // A field that a later Kubernetes adds has to be compared, too.
    let tried: BTreeSet<String> = refused_changes()
        .iter()
        .map(|(what, _)| (*what).to_owned())
        .collect();
    for kind in ["MutatingWebhook", "ValidatingWebhook"] {
        let known = known_fields(&lab, kind).await;
        let untried: Vec<_> = known.difference(&tried).collect();
        assert_eq!(untried, ["caBundle"], "{kind}");
    }
}
