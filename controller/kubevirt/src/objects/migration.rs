//! A VirtualMachineInstanceMigration that a user of the Machine requested.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::guests::MigrationState;
use controller_core::objects::{lenient, metadata};
use controller_core::{cacheable, resource};

/// A `VirtualMachineInstanceMigration`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GuestMigration {
    #[serde(default, deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) status: GuestMigrationStatus,
}
resource!(
    GuestMigration,
    "VirtualMachineInstanceMigration",
    "kubevirt.io",
    "v1",
    "virtualmachineinstancemigrations",
    NamespaceResourceScope
);
cacheable!(GuestMigration);

/// Status of a migration; KubeVirt writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GuestMigrationStatus {
    pub(crate) phase: String,
    /// A copy of that of the instance (KubeVirt 1.1 and later).
    #[serde(deserialize_with = "lenient")]
    pub(crate) migration_state: Option<MigrationState>,
}
