//! The block `spec.normalized`: what an intent resolved to. Think of `Cargo.lock`.
//!
//! Written by the webhook only, a pure function of the intent and the pins it holds itself
//! (template content, storage classes, backend). Typed throughout: a value that decodes is right.
//!
//! Fields stand in the order of their keys, here and in what is pinned of a template: so the text of a
//! block is the one in which an API server sends it back, and can be compared as such.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::{
    AccessMode, Backend, DiskBus, FirmwareType, MachineType, NicModel, PowerState, ReclaimPolicy,
    TemplateSource, VolumeMode,
};
use super::machine::Image;
use super::schema;
use super::template::TemplateContent;
use crate::bounds;
use crate::mac::Mac;
use crate::quantity::Bytes;

/// Version of the block's layout and semantics that this release writes. It reads all earlier ones.
pub const BLOCK_VERSION: u32 = if cfg!(feature = "next-version") { 2 } else { 1 };

/// What the intent resolved to. Written by the admission webhook; the controller reads nothing else
/// of a spec but cloudInit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Normalized {
    /// What runs the machine.
    pub backend: Backend,
    /// CD-ROM drives.
    #[schemars(length(max = bounds::CDROMS_MAX))]
    pub cdroms: Vec<NormalizedCdrom>,
    /// CPU topology.
    pub cpu: NormalizedCpu,
    /// Disks in the order the guest sees them.
    #[schemars(length(max = bounds::DISKS_MAX))]
    pub disks: Vec<NormalizedDisk>,
    /// Features of the virtual hardware.
    pub features: NormalizedFeatures,
    /// Firmware.
    pub firmware: Firmware,
    /// Whether a shutdown from inside the guest leaves the machine stopped.
    pub guest_shutdown_stops: bool,
    /// Digest of the intent this block belongs to.
    #[schemars(length(max = bounds::DIGEST_MAX))]
    pub intent_hash: String,
    /// Machine type.
    pub machine_type: MachineType,
    /// Guest memory.
    pub memory: NormalizedMemory,
    /// Network cards in the order the guest sees them.
    #[schemars(length(max = bounds::NETWORKS_MAX))]
    pub networks: Vec<NormalizedNetwork>,
    /// Labels of the nodes or hosts the machine may run on.
    #[schemars(with = "BTreeMap<String, schema::LabelValue>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub node_selector: BTreeMap<String, String>,
    /// Whether the machine is powered on.
    pub power_state: PowerState,
    /// The template as it was when it was expanded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplatePin>,
    /// Version of this block's layout and semantics.
    #[schemars(range(min = 1))]
    pub version: u32,
}

/// The template a machine was expanded from, as it was then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplatePin {
    /// The template's content then.
    pub content: Arc<TemplateContent>,
    /// Name of the template.
    #[schemars(length(max = bounds::NAME_MAX))]
    pub name: String,
    /// Text of the refresh annotation when the template was last expanded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub refresh: Option<String>,
    /// Where the content came from.
    pub source: TemplateSource,
}

/// CPU topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedCpu {
    /// Cores per socket.
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub cores: u32,
    /// Sockets the machine can grow to without a restart.
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub max_sockets: u32,
    /// Sockets.
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub sockets: u32,
    /// Threads per core.
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub threads: u32,
}

impl NormalizedCpu {
    /// vCPUs of the machine: the product of the topology.
    pub fn vcpus(&self) -> u32 {
        self.sockets
            .saturating_mul(self.cores)
            .saturating_mul(self.threads)
    }
}

/// Guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedMemory {
    /// Memory the machine can grow to without a restart.
    #[schemars(with = "schema::QuantityText")]
    pub max_size: Bytes,
    /// Memory the guest sees.
    #[schemars(with = "schema::QuantityText")]
    pub size: Bytes,
}

/// Firmware of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Firmware {
    /// Whether only signed code boots. Present exactly with efi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
    /// BIOS or UEFI.
    #[serde(rename = "type")]
    pub kind: FirmwareType,
}

/// Features of the virtual hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedFeatures {
    /// ACPI.
    pub acpi: bool,
    /// APIC.
    pub apic: bool,
    /// Enlightenments for Windows guests.
    pub hyperv: bool,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedDisk {
    /// Access mode of the volume.
    pub access_mode: AccessMode,
    /// Place in the boot order, from 1. Absent: not booted from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// Bus the guest sees the disk on.
    pub bus: DiskBus,
    /// What the disk is filled with at first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Name of the disk.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// What becomes of the volume when the disk or the machine is deleted.
    pub reclaim_policy: ReclaimPolicy,
    /// Labels of an existing PersistentVolume to bind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub selector: Option<BTreeMap<String, String>>,
    /// Capacity.
    #[schemars(with = "schema::QuantityText")]
    pub size: Bytes,
    /// Name of the StorageClass; empty for no class.
    #[schemars(with = "schema::StorageClassName")]
    pub storage_class: String,
    /// Mode of the volume.
    pub volume_mode: VolumeMode,
    /// Name of an existing PersistentVolume to bind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::OBJECT_NAME_MAX))]
    pub volume_name: Option<String>,
}

/// A CD-ROM drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedCdrom {
    /// Place in the boot order, from 1. Absent: not booted from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// What is in the drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Name of the drive.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// Capacity of the volume the image is imported into.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<Bytes>,
    /// Name of the StorageClass of that volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::StorageClassName>")]
    pub storage_class: Option<String>,
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedNetwork {
    /// Place in the boot order, from 1. Absent: not booted from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// MAC address as the user gave it. Absent: the controller derives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::MacText>")]
    pub mac_address: Option<Mac>,
    /// Model of the card.
    pub model: NicModel,
    /// Name of the card.
    #[schemars(with = "schema::NicName")]
    pub name: String,
    /// NetworkConfiguration the card is attached to. Absent: the pod or default network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>")]
    pub network_name: Option<String>,
}
