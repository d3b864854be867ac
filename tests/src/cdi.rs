//! CRDs of CDI's `DataVolume` and `StorageProfile` with the fields that the operator uses.
//!
//! Written for the lab from CDI's API. Unknown fields are pruned, or rejected with strict field validation, as by
//! CDI's own CRD.

use serde_json::{Value, json};

/// The CDI that is installed in a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cdi {
    /// None.
    Absent,
    /// A version before v1.65, which has no checksums.
    WithoutChecksums,
    /// A current version.
    Current,
}

impl Cdi {
    pub(crate) fn objects(self) -> Vec<Value> {
        match self {
            Self::Absent => vec![],
            Self::WithoutChecksums => vec![data_volumes(false), storage_profiles()],
            Self::Current => vec![data_volumes(true), storage_profiles()],
        }
    }
}

fn data_volumes(checksums: bool) -> Value {
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "datavolumes.cdi.kubevirt.io"},
        "spec": {
            "group": "cdi.kubevirt.io",
            "scope": "Namespaced",
            "names": {
                "kind": "DataVolume", "listKind": "DataVolumeList",
                "plural": "datavolumes", "singular": "datavolume", "shortNames": ["dv", "dvs"],
            },
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Phase", ".status.phase"),
                    column("Progress", ".status.progress"),
                ],
                "schema": {"openAPIV3Schema": object(&["spec"], &json!({
                    "apiVersion": text(), "kind": text(), "metadata": {"type": "object"},
                    "spec": spec(checksums), "status": status(),
                }))},
            }],
        },
    })
}

fn storage_profiles() -> Value {
    let properties = object(
        &[],
        &json!({"accessModes": list(&text()), "volumeMode": text()}),
    );
    let known = object(&[], &json!({"claimPropertySets": list(&properties)}));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "storageprofiles.cdi.kubevirt.io"},
        "spec": {
            "group": "cdi.kubevirt.io",
            "scope": "Cluster",
            "names": {
                "kind": "StorageProfile", "listKind": "StorageProfileList",
                "plural": "storageprofiles", "singular": "storageprofile",
            },
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": object(&["spec"], &json!({
                    "apiVersion": text(), "kind": text(), "metadata": {"type": "object"},
                    "spec": known, "status": known,
                }))},
            }],
        },
    })
}

fn spec(checksums: bool) -> Value {
    let mut http = object(
        &["url"],
        &json!({
            "url": text(), "secretRef": text(), "certConfigMap": text(),
            "extraHeaders": list(&text()), "secretExtraHeaders": list(&text()),
        }),
    );
    if checksums {
        http["properties"]["checksum"] = text();
    }
    let registry = json!({
        "url": text(), "imageStream": text(), "pullMethod": text(), "secretRef": text(),
        "certConfigMap": text(),
    });
    let source = object(
        &[],
        &json!({
            "http": http,
            "registry": object(&[], &registry),
            "pvc": object(&["namespace", "name"], &json!({"namespace": text(), "name": text()})),
            "blank": {"type": "object"},
            "upload": {"type": "object"},
        }),
    );
    let claim = object(
        &[],
        &json!({
            "accessModes": list(&text()), "volumeMode": text(), "storageClassName": text(),
            "volumeName": text(),
            "resources": object(&[], &json!({"requests": {
                "type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true},
            }})),
            "selector": object(&[], &json!({"matchLabels": {
                "type": "object", "additionalProperties": text(),
            }})),
        }),
    );
    let spec = json!({
        "source": source,
        "sourceRef": object(&["kind", "name"], &json!({
            "kind": text(), "namespace": text(), "name": text(),
        })),
        "pvc": claim, "storage": claim, "contentType": text(),
        "priorityClassName": text(), "preallocation": {"type": "boolean"},
    });
    object(&[], &spec)
}

fn status() -> Value {
    let condition = json!({
        "type": text(), "status": text(), "reason": text(), "message": text(),
        "lastTransitionTime": text(), "lastHeartbeatTime": text(),
    });
    object(
        &[],
        &json!({
            "phase": text(), "progress": text(), "claimName": text(),
            "restartCount": {"type": "integer"},
            "conditions": list(&object(&["type", "status"], &condition)),
        }),
    )
}

fn object(required: &[&str], properties: &Value) -> Value {
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn text() -> Value {
    json!({"type": "string"})
}

fn list(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}
