//! Disks and CD-ROM drives of a Machine, and the images they are filled with.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::{AccessMode, DiskBus, ReclaimPolicy, VolumeMode};
use crate::api::{cel, schema};
use crate::bounds;

/// A disk of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.remove) || !self.remove || !(has(self.claimName) || has(self.shareable) || has(self.size) || has(self.storageClass) || has(self.accessMode) || has(self.volumeMode) || has(self.bus) || has(self.image) || has(self.reclaimPolicy) || has(self.selector) || has(self.serial) || has(self.volumeName))",
        "message": "a disk with remove: true takes no other field"
    },
    {
        "rule": "!(has(self.selector) && has(self.volumeName))",
        "message": "selector and volumeName exclude each other"
    },
    {
        "rule": "!has(self.image) || !(has(self.selector) || has(self.volumeName))",
        "message": "a disk with an image cannot bind an existing volume"
    },
    {
        "rule": "!has(self.claimName) || !(has(self.size) || has(self.storageClass) || has(self.accessMode) || has(self.volumeMode) || has(self.image) || has(self.reclaimPolicy) || has(self.selector) || has(self.volumeName))",
        "message": "claimName uses a claim as it is, so it excludes size, storageClass, accessMode, volumeMode, image, reclaimPolicy, selector and volumeName"
    },
    {
        "rule": "!has(self.shareable) || !self.shareable || has(self.claimName)",
        "message": "shareable needs claimName"
    },
    cel::not_reserved(),
    cel::bounded("size", bounds::CAPACITY_MIN, bounds::CAPACITY_MAX)
]))]
pub struct Disk {
    /// Access mode of the volume: ReadWriteOnce (default), ReadWriteMany (needed for live
    /// migration) or ReadOnlyMany. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AccessMode>")]
    pub access_mode: Option<String>,
    /// Bus that the disk is attached to in the guest: virtio (default), sata or scsi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DiskBus>")]
    pub bus: Option<String>,
    /// Name of an existing PersistentVolumeClaim in the Machine's namespace to use as the disk as it is, on
    /// KubeVirt only. The controller never creates, changes or deletes it. Excludes size, storageClass,
    /// accessMode, volumeMode, image, reclaimPolicy, selector and volumeName. Not in a MachineTemplate.
    /// Default: none, the disk gets a volume of its own. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub claim_name: Option<String>,
    /// Image that the new volume is filled with. Default: none, an empty disk. Cannot
    /// change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Name of the disk: a DNS label of at most 63 characters, unique among the disks and CD-ROM
    /// drives of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>", required)]
    pub name: Option<String>,
    /// What the controller does with the volume after the machine is deleted: Delete removes it, Retain
    /// keeps it with its data. Default: the webhook's setting --default-reclaim-policy, which is Delete
    /// unless the administrator changes it. The volume of a disk that leaves the spec is always kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ReclaimPolicy>")]
    pub reclaim_policy: Option<String>,
    /// Whether to leave out the template's disk of this name. Default false. If true, no other field
    /// except name may be set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remove: Option<bool>,
    /// Labels of an existing PersistentVolume to use as the disk, on KubeVirt only. Excludes image and
    /// volumeName. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<VolumeSelector>,
    /// Serial number that the guest sees: 1 to 20 letters, digits and the characters _ . + -, unique among the
    /// disks of the machine. On the bus virtio, a Linux guest has the disk as /dev/disk/by-id/virtio-<serial>.
    /// Default: the name of the disk; of a name with more than 20 characters the first 13, - and 6 hexadecimal
    /// digits of its SHA-256 digest. A disk of a machine that was created before serial numbers were supported
    /// has none until this field is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::DiskSerial>")]
    pub serial: Option<String>,
    /// Whether several Machines may have the disk at the same time: every one of them sets it, the claim is
    /// ReadWriteMany, and the guests have a file system for it. Only with claimName. Default false: one running machine has the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shareable: Option<bool>,
    /// Capacity of the disk: a quantity in bytes such as 20Gi, from 1Mi to 64Ti. Required here or in the
    /// template, except for a disk on an existing claim, and with image.name: the default is then the larger of the
    /// template's and minDiskSize of the MachineImage.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<String>,
    /// Name of the StorageClass that provisions the disk; on libvirt, the name of a storage class that
    /// a LibvirtHost offers. Absent: the cluster's default class. The value default: the class of that
    /// name if it exists, else the cluster's default class. Empty: no class, allowed only together with
    /// selector or volumeName. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::StorageClassName>")]
    pub storage_class: Option<String>,
    /// Mode of the volume: Filesystem (default, the disk is a file in it) or Block (the disk is the raw
    /// device). Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VolumeMode>")]
    pub volume_mode: Option<String>,
    /// On KubeVirt: name of an existing PersistentVolume that the disk's claim binds. Excludes image and selector. In a
    /// Machine on libvirt: name of an existing qcow2 volume to use as the disk as it is, in the pool that the LibvirtHost
    /// offers to the namespace for that (spec.existingVolumes). The controller never creates, changes or deletes it.
    /// Excludes size, storageClass, accessMode, volumeMode, selector, image, reclaimPolicy and shareable. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub volume_name: Option<String>,
}

/// Selects a PersistentVolume by its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.matchLabels) && self.matchLabels.size() > 0",
        "message": "matchLabels must have a label"
    }
]))]
pub struct VolumeSelector {
    /// Labels, 1 to 64, that the volume must all have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// Source of the content of a disk or CD-ROM: exactly one of name, url, persistentVolumeClaim and volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "[has(self.name), has(self.url), has(self.persistentVolumeClaim), has(self.volume)].filter(x, x).size() == 1",
        "message": "an image has exactly one of name, url, persistentVolumeClaim and volume"
    },
    {
        "rule": "!has(self.checksum) || has(self.url)",
        "message": "checksum needs url"
    },
    {
        "rule": "!has(self.secretRef) || (has(self.url) && self.url.startsWith('https://'))",
        "message": "secretRef needs a url that begins with https://"
    }
]))]
pub struct Image {
    /// Checksum of the file at url: sha256: and 64 lower-case hexadecimal digits. Default: the download
    /// is not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Checksum>")]
    pub checksum: Option<String>,
    /// Name of a MachineImage. Its source when the disk or drive was added is used for good: a later change of the
    /// MachineImage does not change the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub name: Option<String>,
    /// Name of a PersistentVolumeClaim in the Machine's namespace to clone, on KubeVirt only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub persistent_volume_claim: Option<String>,
    /// Secret with the credentials for url, on libvirt only; url then begins with https://. Default: the image
    /// is fetched without credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ImageSecretRef>,
    /// URL of the image, at most 1024 characters: https://, http:// or, on KubeVirt only, docker://.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ImageUrl>")]
    pub url: Option<String>,
    /// Name of a volume in the imagePool of the LibvirtHost, on libvirt only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::FreeText>")]
    pub volume: Option<String>,
}

/// A Secret in the Machine's namespace with the credentials of an image server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSecretRef {
    /// Name of the Secret in the Machine's namespace. It has the key token for a bearer token, or the keys
    /// username and password for basic authentication.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>", required)]
    pub name: Option<String>,
}

/// A CD-ROM drive of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    cel::not_reserved(),
    cel::bounded("size", bounds::CAPACITY_MIN, bounds::CAPACITY_MAX)
]))]
pub struct Cdrom {
    /// Name of the drive: a DNS label of at most 63 characters, unique among the disks and CD-ROM drives
    /// of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>", required)]
    pub name: Option<String>,
    /// Image in the drive. Default: none, an empty drive, which on KubeVirt needs the feature gate
    /// DeclarativeHotplugVolumes, enabled by default since 1.9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Capacity of the volume that the image is imported into: a quantity in bytes, from 1Mi to 64Ti.
    /// Required on KubeVirt with an image from url or persistentVolumeClaim. Default with image.name: minDiskSize of
    /// the MachineImage.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<String>,
    /// Name of the StorageClass of that volume. Default: the cluster's default class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CdromClassName>")]
    pub storage_class: Option<String>,
}
