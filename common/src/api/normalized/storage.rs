//! Disks and CD-ROM drives in the block.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::{AccessMode, DiskBus, OsFamily, ReclaimPolicy, VolumeMode};
use crate::api::machine::Image;
use crate::api::schema;
use crate::bounds;
use crate::quantity::Bytes;

/// A disk of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedDisk {
    /// Access mode of the volume.
    pub access_mode: AccessMode,
    /// Position in the boot order, from 1. Absent: the guest does not boot from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// Bus that the disk is attached to in the guest.
    pub bus: DiskBus,
    /// Whether KubeVirt plugs the disk into the guest after each start, and can unplug it while the guest runs; on KubeVirt
    /// only. Such a disk has no position in the boot order. Absent: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hotpluggable: bool,
    /// Image that the new volume is filled with; of a MachineImage, its name and its source when the disk was added.
    /// Absent: an empty disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// What else the MachineImage said when the disk was added. Present exactly if image has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pin: Option<ImagePin>,
    /// Name of the disk.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// What the controller does with the volume after the machine is deleted.
    pub reclaim_policy: ReclaimPolicy,
    /// Labels of an existing PersistentVolume to use as the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub selector: Option<BTreeMap<String, String>>,
    /// Serial number that the guest sees, by which it names the disk. Absent: none, as in blocks of version 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::DiskSerial>")]
    pub serial: Option<String>,
    /// Capacity of the disk: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub size: Bytes,
    /// Name of the StorageClass; empty for no class.
    #[schemars(with = "schema::StorageClassName")]
    pub storage_class: String,
    /// Mode of the volume.
    pub volume_mode: VolumeMode,
    /// Name of an existing PersistentVolume to use as the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::OBJECT_NAME_MAX))]
    pub volume_name: Option<String>,
}

/// A MachineImage beside the source that is part of the image: its content when the webhook resolved the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePin {
    /// CDI's DataSource that the volume is a clone of. Absent: the source is part of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source: Option<PinnedDataSource>,
    /// Whether machines that boot from the image have UEFI firmware by default. Absent: the image does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efi: Option<bool>,
    /// Smallest capacity of a volume that holds the image: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub min_disk_size: Bytes,
    /// Family of the operating system: linux or windows. Absent: the image does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<OsFamily>,
}

/// A DataSource of CDI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedDataSource {
    /// Name of the DataSource.
    #[schemars(with = "schema::ObjectName")]
    pub name: String,
    /// Namespace of the DataSource.
    #[schemars(with = "schema::Label")]
    pub namespace: String,
}

/// A disk of a machine on a claim, or on a volume of a libvirt host, that exists and is used as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExistingDisk {
    /// Position in the boot order, from 1. Absent: the guest does not boot from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// Bus that the disk is attached to in the guest.
    pub bus: DiskBus,
    /// Name of the PersistentVolumeClaim in the Machine's namespace; on KubeVirt only, where every such disk has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub claim_name: Option<String>,
    /// Name of the disk.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// Serial number that the guest sees, by which it names the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::DiskSerial>")]
    pub serial: Option<String>,
    /// Whether several machines may have the disk at the same time. Absent: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shareable: bool,
    /// Name of the volume in the pool with existing volumes that the host offers; on libvirt only, where every such disk
    /// has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub volume_name: Option<String>,
}

impl ExistingDisk {
    /// Name of the claim or volume that the disk is on.
    pub fn source(&self) -> &str {
        let source = self.claim_name.as_ref().or(self.volume_name.as_ref());
        source.map_or("", String::as_str)
    }
}

/// A disk of a block of either kind, as far as the guest sees it.
#[derive(Clone, Copy, Debug)]
pub enum AnyDisk<'a> {
    /// It has a volume of its own.
    Own(&'a NormalizedDisk),
    /// It is on an existing claim.
    Existing(&'a ExistingDisk),
}

impl<'a> AnyDisk<'a> {
    /// Name of the disk.
    pub fn name(self) -> &'a str {
        match self {
            Self::Own(disk) => &disk.name,
            Self::Existing(disk) => &disk.name,
        }
    }

    /// Bus of the disk.
    pub fn bus(self) -> DiskBus {
        match self {
            Self::Own(disk) => disk.bus,
            Self::Existing(disk) => disk.bus,
        }
    }

    /// Serial number of the disk.
    pub fn serial(self) -> Option<&'a str> {
        match self {
            Self::Own(disk) => disk.serial.as_deref(),
            Self::Existing(disk) => disk.serial.as_deref(),
        }
    }

    /// Position of the disk in the boot order.
    pub fn boot_order(self) -> Option<u32> {
        match self {
            Self::Own(disk) => disk.boot_order,
            Self::Existing(disk) => disk.boot_order,
        }
    }

    /// Whether KubeVirt plugs the disk into the running guest and out of it.
    pub fn is_hotpluggable(self) -> bool {
        match self {
            Self::Own(disk) => disk.hotpluggable,
            Self::Existing(_) => false,
        }
    }

    /// Whether several machines may have the disk at the same time.
    pub fn is_shareable(self) -> bool {
        match self {
            Self::Own(_) => false,
            Self::Existing(disk) => disk.shareable,
        }
    }
}

/// A CD-ROM drive of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedCdrom {
    /// Position in the boot order, from 1. Absent: the guest does not boot from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// Whether KubeVirt puts media into the drive of a running guest, and takes them out; on KubeVirt only. Such a drive
    /// has its position in the boot order also while it is empty. Absent: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hotpluggable: bool,
    /// Image in the drive; of a MachineImage, its name and its source when the image was put into the drive. Absent: an
    /// empty drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// What else the MachineImage said when the image was put into the drive. Present exactly if image has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pin: Option<ImagePin>,
    /// Name of the drive.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// Capacity of the volume that the image is imported into: a quantity in bytes. Absent without such
    /// a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<Bytes>,
    /// Name of the StorageClass of that volume. Absent without such a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::StorageClassName>")]
    pub storage_class: Option<String>,
}
