//! Objects that a tenant has filled with metadata.

use kube::Resource as _;
use serde_json::{Value, json};

use super::decode;
use crate::catalog::{Claim, Machine, Network};

/// Of a claim of a tenant with 50,000 labels only those of a disk are in memory, also before its row is made.
#[test]
fn what_a_tenant_writes_into_the_metadata_of_an_object_is_not_decoded() {
    let many: Value = (0..50_000)
        .map(|it| (format!("x/{it}"), json!("")))
        .collect();
    let mut labels = many.clone();
    labels["vitistack.io/machine"] = json!("web");
    let metadata = json!({
        "namespace": "prod", "name": "web-data", "labels": labels, "annotations": many,
        "finalizers": ["a/b"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "u"}],
        "managedFields": [{"manager": "kubectl", "fieldsV1": many}],
    });
    let mut identity = json!({
        "namespace": "prod", "name": "web-data", "labels": {}, "annotations": {},
        "finalizers": [], "ownerReferences": [],
    });
    let network: Network = decode(json!({"metadata": metadata, "spec": {}}));
    assert_eq!(json!(network.meta()), identity);
    let machine: Machine = decode(json!({"metadata": metadata}));
    assert_eq!(json!(machine.meta()), identity);
    identity["labels"] = json!({"vitistack.io/machine": "web"});
    let claim: Claim = decode(json!({"metadata": metadata}));
    assert_eq!(json!(claim.meta()), identity);
}
