//! A `PersistentVolumeClaim`, with only the fields that the controller reads.

use common::quantity::Bytes;
use controller_core::objects::lenient;
use controller_core::{cacheable, resource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::conditions::{ForeignCondition, read};

/// A `PersistentVolumeClaim`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Claim {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: ClaimSpec,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) status: ClaimStatus,
}
resource!(
    Claim,
    "PersistentVolumeClaim",
    "",
    "v1",
    "persistentvolumeclaims",
    NamespaceResourceScope
);
cacheable!(Claim);

/// Desired state of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClaimSpec {
    pub(crate) access_modes: Vec<String>,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) volume_mode: Option<String>,
    pub(crate) resources: ClaimResources,
    /// Name of the PersistentVolume, once the claim is bound.
    pub(crate) volume_name: Option<String>,
}

/// Resources of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimResources {
    pub(crate) requests: ClaimAmount,
}

/// An amount of storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimAmount {
    #[serde(deserialize_with = "lenient")]
    pub(crate) storage: Option<Bytes>,
}

/// Observed state of a claim; Kubernetes and the storage write it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimStatus {
    pub(crate) phase: String,
    pub(crate) capacity: ClaimAmount,
    #[serde(deserialize_with = "read")]
    pub(crate) conditions: Vec<ForeignCondition>,
}

impl Claim {
    /// Whether several nodes can write to the claim.
    pub(crate) fn is_shared(&self) -> bool {
        self.spec
            .access_modes
            .iter()
            .any(|mode| mode == "ReadWriteMany")
    }

    /// Uid of the DataVolume that owns the claim. The garbage collector deletes the claim with it.
    pub(crate) fn data_volume(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        let mut importers = owners.filter(|owner| {
            owner.kind == "DataVolume" && owner.api_version.starts_with("cdi.kubevirt.io/")
        });
        importers.next().map(|owner| owner.uid.as_str())
    }
}
