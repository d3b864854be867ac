//! A Machine as its watch decodes it: its name and its block, nothing else.

use common::api::normalized::Normalized;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A Machine.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = common::api::Machine)]
pub struct Machine {
    /// Name, namespace and version.
    #[serde(deserialize_with = "head")]
    metadata: ObjectMeta,
    /// What the Machine was resolved to. A block that this release cannot read is none: one object
    /// that does not decode would stop the watch for all others.
    #[serde(default, rename = "spec", deserialize_with = "block")]
    pub(super) block: Option<Normalized>,
}

fn head<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        name: Option<String>,
        namespace: Option<String>,
        resource_version: Option<String>,
    }
    let head = Head::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: head.name,
        namespace: head.namespace,
        resource_version: head.resource_version,
        ..ObjectMeta::default()
    })
}

fn block<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Normalized>, D::Error> {
    #[derive(Deserialize)]
    struct Spec {
        #[serde(default)]
        normalized: Value,
    }
    let spec = Option::<Spec>::deserialize(deserializer)?;
    Ok(spec.and_then(|spec| serde_json::from_value(spec.normalized).ok()))
}
