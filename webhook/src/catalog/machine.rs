//! A Machine as the watch decodes it: its name and its block, nothing else.

use common::api::normalized::Normalized;
use common::catalog::Usage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A Machine: its name and its block.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = common::api::Machine)]
pub struct Machine {
    /// Name, namespace and resourceVersion only.
    #[serde(deserialize_with = "identity")]
    metadata: ObjectMeta,
    /// `None` if there is no block or this release cannot read it. The error is not passed on: one
    /// object that cannot be decoded would stop the watch for all others.
    #[serde(default, rename = "spec", deserialize_with = "block")]
    pub(super) block: Option<Normalized>,
}

impl Machine {
    /// What the Machine uses of the quota of its namespace.
    pub fn usage(&self) -> Usage {
        self.block.as_ref().map(Usage::of).unwrap_or_default()
    }
}

fn identity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Identity {
        name: Option<String>,
        namespace: Option<String>,
        resource_version: Option<String>,
    }
    let identity = Identity::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: identity.name,
        namespace: identity.namespace,
        resource_version: identity.resource_version,
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
