//! The schema of KubeVirt's CRD as a JSON schema that refuses unknown fields.

use std::collections::BTreeMap;
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use super::fixtures::WEB;
use crate::api::normalized::Normalized;
use crate::render::CloudInitPlan;
use crate::render::kubevirt::{self, VirtualMachineInput};

/// The schema of `VirtualMachine` v1; `None`, with a printed reason, if KubeVirt's CRDs are not beside
/// the repository.
pub(super) fn virtual_machine() -> Option<Validator> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/kubevirt-crds/virtualmachines.kubevirt.io.yaml");
    let Ok(text) = std::fs::read_to_string(&file) else {
        println!("skipped: KubeVirt's CRDs are not at {}", file.display());
        return None;
    };
    let crd: Value = serde_saphyr::from_str(&text).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let served = versions
        .iter()
        .find(|version| version["name"] == "v1")
        .unwrap();
    let mut schema = served["schema"]["openAPIV3Schema"].clone();
    // A CRD declares metadata only as an object; its fields are defined by Kubernetes.
    schema["properties"]["metadata"] = json!({});
    close(&mut schema);
    Some(jsonschema::validator_for(&schema).unwrap())
}

/// The VirtualMachine of a block, which the schema accepts if it is known.
pub(super) fn accepted(block: &Normalized) -> Value {
    accepted_with(block, &BTreeMap::new())
}

/// As [`accepted`], with annotations of the Machine that its guest has, too.
pub(super) fn accepted_with(block: &Normalized, annotations: &BTreeMap<String, String>) -> Value {
    let vm = kubevirt::virtual_machine(&VirtualMachineInput {
        machine: WEB,
        block,
        cloud_init: &CloudInitPlan::default(),
        labels: &BTreeMap::new(),
        annotations,
        attachments: &BTreeMap::new(),
        secret_revisions: &BTreeMap::new(),
    });
    let vm = serde_json::to_value(vm).unwrap();
    if let Some(validator) = virtual_machine() {
        let errors: Vec<_> = validator.iter_errors(&vm).map(|e| e.to_string()).collect();
        assert_eq!(errors, [""; 0], "{vm:#}");
    }
    vm
}

/// Translates Kubernetes' extensions to plain JSON schema: objects refuse unknown fields unless they
/// preserve them, and int-or-string becomes a list of types.
fn close(schema: &mut Value) {
    let Value::Object(schema) = schema else {
        return;
    };
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        schema.insert("type".into(), json!(["integer", "string"]));
        schema.remove("anyOf");
    }
    let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if schema.contains_key("properties") && !open {
        schema.insert("additionalProperties".into(), Value::Bool(false));
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(close);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key) {
            close(inner);
        }
    }
    without_formats(schema);
}

/// Removes formats such as `int32`, which JSON schema does not define.
fn without_formats(schema: &mut Map<String, Value>) {
    schema.remove("format");
}

#[test]
fn the_schema_refuses_unknown_fields_and_wrong_types() {
    let Some(validator) = virtual_machine() else {
        return;
    };
    let vm = |devices: Value| {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "spec": {"template": {"spec": {"domain": {"devices": devices}}}},
        })
    };
    assert!(validator.is_valid(&vm(json!({"rng": {}}))));
    assert!(!validator.is_valid(&vm(json!({"rnd": {}}))));
    assert!(!validator.is_valid(&vm(json!({"disks": [{"name": 1}]}))));
    assert!(
        !validator.is_valid(&vm(json!({"disks": [{"disk": {}}]}))),
        "name is required"
    );
}
