use common::api::MachinePolicy;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};

use super::*;
use crate::watch::WatchSink as _;

/// A cache with a namespace `prod` that has a quota.
fn cache() -> Cache {
    let policy = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "MachinePolicy",
        "metadata": {"name": "tenants"},
        "spec": {"namespaceSelector": {}, "quota": {"cpu": 10}},
    });
    let policy: MachinePolicy = serde_json::from_value(policy).unwrap();
    let namespace = json!({"metadata": {"name": "prod", "labels": {}}});
    let namespace: PartialObjectMeta<Namespace> = serde_json::from_value(namespace).unwrap();
    let cache = Cache::default();
    cache.policies.apply(policy);
    cache.namespaces.apply(namespace);
    cache
}

fn machine(labels: &Value, cores: u32) -> String {
    let machine = json!({
        "apiVersion": "vitistack.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "web", "namespace": "prod", "labels": labels},
        "spec": {"resources": {"cpu": {"cores": cores}, "memory": {"size": "2Gi"}}},
    });
    machine.to_string()
}

#[test]
fn an_update_is_recorded_only_if_it_changes_what_the_machine_uses() {
    let cache = cache();
    let overlay = Overlay::new(&cache);
    let cpu = |object: &str, old: Option<&str>| {
        let request = admission::Request {
            kind: ObjectKind::Machine,
            stage: Stage::Validate,
            namespace: "prod",
            object,
            old,
        };
        share(&request, &overlay).map(|(name, usage)| (name, usage.cpu))
    };
    let stored = machine(&json!({}), 2);
    let recorded = |cpu| Some(("web".to_owned(), cpu));
    assert_eq!(cpu(&stored, None), recorded(2));
    let labelled = machine(&json!({"app": "shop"}), 2);
    assert_eq!(cpu(&labelled, Some(&stored)), None);
    let grown = machine(&json!({}), 4);
    assert_eq!(cpu(&grown, Some(&stored)), recorded(4));
    assert_eq!(cpu(&stored, Some(&grown)), recorded(2));
}
