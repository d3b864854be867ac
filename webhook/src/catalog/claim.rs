//! A PersistentVolumeClaim as the watch decodes it: its metadata, its size and whether it is shared.

use common::catalog::amount;
use common::names;
use common::quantity::Bytes;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use runtime::metadata::{Kept, kept};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A claim: its metadata, its size and whether it is shared.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
pub struct Claim {
    /// With the labels that say which disk it is of.
    #[serde(deserialize_with = "kept::<_, Labels>")]
    pub(super) metadata: ObjectMeta,
    /// What rules read of its spec.
    #[serde(default, rename = "spec", deserialize_with = "storage")]
    pub(super) storage: ClaimStorage,
}

/// The labels that [`Claims`](common::catalog::Claims) reads.
enum Labels {}

impl Kept for Labels {
    fn keeps_label(key: &str) -> bool {
        [
            names::LABEL_MACHINE,
            names::LABEL_MANAGED_BY,
            names::LABEL_DISK,
        ]
        .contains(&key)
    }

    fn keeps_annotation(_: &str) -> bool {
        false
    }
}

/// The size of a claim, and whether it is shared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClaimStorage {
    /// Requested bytes; 0 if they cannot be read.
    pub(super) size: u64,
    /// Whether its access modes have ReadWriteMany.
    pub(super) is_shared: bool,
}

fn storage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClaimStorage, D::Error> {
    let spec = Value::deserialize(deserializer)?;
    let text = spec.pointer("/resources/requests/storage");
    let size: Option<Bytes> = text.and_then(|text| text.as_str()?.parse().ok());
    let modes = spec.get("accessModes").and_then(Value::as_array);
    Ok(ClaimStorage {
        size: size.map(amount).unwrap_or_default(),
        is_shared: modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteMany")),
    })
}
