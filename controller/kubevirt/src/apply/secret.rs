//! The Secret for cloud-init, as it is sent to the API server.

use common::render::kubevirt::types;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;

/// The Secret in the API server's form.
pub(super) fn encoded(desired: &types::Secret) -> core::Secret {
    let metadata = &desired.metadata;
    let owners = metadata
        .owner_references
        .iter()
        .map(|owner| OwnerReference {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: Some(owner.controller),
            block_owner_deletion: None,
        });
    let data = desired.data.iter();
    core::Secret {
        metadata: ObjectMeta {
            name: Some(metadata.name.clone()),
            namespace: Some(metadata.namespace.clone()),
            uid: metadata.uid.clone(),
            labels: Some(metadata.labels.clone()),
            annotations: Some(metadata.annotations.clone()),
            owner_references: Some(owners.collect()),
            ..ObjectMeta::default()
        },
        data: Some(
            data.map(|(key, content)| (key.clone(), ByteString(content.clone())))
                .collect(),
        ),
        ..core::Secret::default()
    }
}

/// Every key that a Secret of ours can have. The patch removes those that are not desired.
const SECRET_KEYS: [&str; 5] = [
    "userdata",
    "networkdata",
    "user-data",
    "network-config",
    "meta-data",
];

/// The change of a Secret that makes it the desired one.
pub(super) fn secret_patch(desired: &types::Secret) -> serde_json::Value {
    let mut data: serde_json::Map<_, _> = SECRET_KEYS
        .iter()
        .map(|key| ((*key).to_owned(), serde_json::Value::Null))
        .collect();
    for (key, content) in &desired.data {
        data.insert(key.clone(), json!(ByteString(content.clone())));
    }
    json!({
        "metadata": {"uid": desired.metadata.uid, "annotations": desired.metadata.annotations},
        "data": data,
    })
}
