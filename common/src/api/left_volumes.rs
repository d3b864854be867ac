//! What deleted Machines left on a libvirt host, as the status of the LibvirtHost lists it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lenient::or_absent;
use super::schema;
use crate::bounds;
use crate::quantity::Bytes;

/// A Machine that was deleted while its host did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tombstone {
    /// Namespace and name of the Machine, separated by a slash.
    #[schemars(length(max = 2 * bounds::NAME_MAX + 1))]
    pub machine: String,
    /// metadata.uid of the Machine.
    #[schemars(length(min = 1, max = bounds::NAME_MAX))]
    pub uid: String,
    /// Time of the deletion: RFC 3339 in UTC, such as 2026-11-28T09:00:00Z.
    #[schemars(with = "schema::Timestamp")]
    pub since: String,
    /// Volumes to delete, at most 64. Absent: not known yet; the controller reads them from the metadata
    /// of the domain before it removes that.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::DISKS_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub volumes: Option<Vec<TombstoneVolume>>,
}

/// A volume of a Machine that was deleted while its host did not answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TombstoneVolume {
    /// Name of the libvirt storage pool.
    #[schemars(with = "schema::LibvirtName")]
    pub pool: String,
    /// Name of the volume; of a copied one without the number of the attempt.
    #[schemars(length(max = bounds::OBJECT_NAME_MAX))]
    pub volume: String,
    /// Capacity of the volume: a quantity in bytes. It counts in the quota of the Machine's namespace.
    /// Absent if it is not known that the host has the volume.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<Bytes>,
}

/// A volume that is kept of a Machine which was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeptVolume {
    /// Namespace and name of the Machine, separated by a slash.
    #[schemars(length(max = 2 * bounds::NAME_MAX + 1))]
    pub machine: String,
    /// metadata.uid of the Machine.
    #[schemars(length(min = 1, max = bounds::NAME_MAX))]
    pub uid: String,
    /// Name of the disk.
    #[schemars(with = "schema::Label")]
    pub disk: String,
    /// Name of the libvirt storage pool.
    #[schemars(with = "schema::LibvirtName")]
    pub pool: String,
    /// Name of the volume.
    #[schemars(length(max = bounds::OBJECT_NAME_MAX))]
    pub volume: String,
    /// Capacity of the volume: a quantity in bytes. It counts in the quota of the Machine's namespace.
    /// Absent if the pool could not be read.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<Bytes>,
}
