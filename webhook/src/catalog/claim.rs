//! A PersistentVolumeClaim as the watch decodes it: its metadata and its size.

use common::catalog::amount;
use common::quantity::Bytes;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A claim: its metadata and its size.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
pub struct Claim {
    pub(super) metadata: ObjectMeta,
    /// Requested bytes; 0 if they cannot be read.
    #[serde(default, rename = "spec", deserialize_with = "size")]
    pub(super) size: u64,
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let spec = Value::deserialize(deserializer)?;
    let text = spec.pointer("/resources/requests/storage");
    let size: Option<Bytes> = text.and_then(|text| text.as_str()?.parse().ok());
    Ok(size.map(amount).unwrap_or_default())
}
