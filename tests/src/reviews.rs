//! Admission reviews as an API server sends them.

use serde_json::{Value, json};

/// A Machine of the namespace `default`.
pub fn machine(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    })
}

/// The review of an object's creation.
pub fn creation(uid: &str, object: &Value) -> Value {
    review(uid, "CREATE", object, &Value::Null)
}

/// A review of a Machine.
pub fn review(uid: &str, operation: &str, object: &Value, old: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": {"group": "vitistack.io", "version": "v1alpha1", "kind": "Machine"},
            "resource": {"group": "vitistack.io", "version": "v1alpha1", "resource": "machines"},
            "requestKind": {"group": "vitistack.io", "version": "v1alpha1", "kind": "Machine"},
            "requestResource": {"group": "vitistack.io", "version": "v1alpha1", "resource": "machines"},
            "name": object["metadata"]["name"],
            "namespace": object["metadata"]["namespace"],
            "operation": operation,
            "userInfo": {"username": "developer", "groups": ["system:authenticated"]},
            "object": object,
            "oldObject": old,
            "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    })
}
