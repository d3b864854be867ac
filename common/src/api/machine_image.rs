//! `MachineImage`: an image by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::{Choice as _, OsFamily};
use super::lenient::{or_absent, readable_items};
use super::machine::Image;
use super::normalized::{ImagePin, PinnedDataSource};
use super::status::Condition;
use super::{cel, schema};
use crate::bounds;

/// An image that Machines name in image.name. Written by the administrator. A change affects new disks only: existing
/// ones keep the source that the webhook recorded in the block of their Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "vitistack.io",
        version = "v1alpha1",
        kind = "MachineImage",
        plural = "machineimages",
        shortname = "mi",
        category = "vitistack",
        status = "MachineImageStatus",
        doc = "An image that Machines name in image.name.",
        printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
        printcolumn = r#"{"name":"Size","type":"string","jsonPath":".spec.minDiskSize","description":"Smallest disk that holds the image"}"#,
        printcolumn = r#"{"name":"Used by","type":"integer","jsonPath":".status.usedBy","description":"Machines that name the image"}"#,
        printcolumn = r#"{"name":"OS","type":"string","jsonPath":".spec.os","priority":1}"#,
        printcolumn = r#"{"name":"Deprecated","type":"string","jsonPath":".spec.deprecated","priority":1}"#,
        printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    cel::bounded("minDiskSize", bounds::CAPACITY_MIN, bounds::CAPACITY_MAX)
]))]
pub struct MachineImageSpec {
    /// Name of the user whom the image has for logins, for people: at most 1024 characters. Default: not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::FreeText>")]
    pub default_user: Option<String>,
    /// Why not to use the image any more and what to use instead: at most 1024 characters. The webhook warns the
    /// authors of new disks with this text. Default: not deprecated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::FreeText>")]
    pub deprecated: Option<String>,
    /// Firmware that the image needs: the default of Machines that boot from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<ImageFirmware>,
    /// Smallest capacity of a disk that holds the image, at least its virtual size: a quantity in bytes such as 3Gi,
    /// from 1Mi to 64Ti. On KubeVirt, the image is imported into a volume of this capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>", required)]
    pub min_disk_size: Option<String>,
    /// Family of the operating system in the image: linux or windows. Default: not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<OsFamily>")]
    pub os: Option<String>,
    /// Source of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<MachineImageSource>", required)]
    pub source: Option<MachineImageSource>,
}

/// Source of an image: exactly one of url, dataSource and volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "[has(self.url), has(self.dataSource), has(self.volume)].filter(x, x).size() == 1",
        "message": "the source of a MachineImage is exactly one of url, dataSource and volume"
    },
    {
        "rule": "!has(self.checksum) || (has(self.url) && !self.url.startsWith('docker://'))",
        "message": "checksum needs a url that begins with https:// or http://"
    },
    {
        "rule": "!has(self.url) || !self.url.startsWith('docker://') || self.url.matches('@sha256:[0-9a-f]{64}$')",
        "message": "a docker:// url of a MachineImage ends with the digest of its content: @sha256: and 64 hexadecimal digits"
    }
]))]
pub struct MachineImageSource {
    /// Checksum of the file at url: sha256: and 64 lower-case hexadecimal digits. Only beside a url that begins with
    /// https:// or http://. CDI verifies it since version 1.65. Default: the download is not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Checksum>")]
    pub checksum: Option<String>,
    /// DataSource of CDI to clone, on KubeVirt only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source: Option<DataSourceRef>,
    /// URL of the image, at most 1024 characters: https://, http:// or, on KubeVirt only, docker:// with the digest of
    /// the content, such as docker://registry.example.com/os/debian@sha256:….
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ImageUrl>")]
    pub url: Option<String>,
    /// Name of a volume in the imagePool of the LibvirtHosts, on libvirt only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::FreeText>")]
    pub volume: Option<String>,
}

/// A DataSource of CDI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataSourceRef {
    /// Name of the DataSource.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>", required)]
    pub name: Option<String>,
    /// Namespace of the DataSource.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>", required)]
    pub namespace: Option<String>,
}

/// Firmware that an image needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageFirmware {
    /// Whether Machines that boot from the image and do not set domain.firmware.bootloader.efi have UEFI firmware.
    /// Default: the image does not say, and the default of Machines holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efi: Option<bool>,
}

/// A MachineImage as the block of a Machine holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedImage {
    /// Name and source.
    pub image: Image,
    /// The digest or claim that it was resolved to, and what follows from it.
    pub pin: ImagePin,
}

impl PinnedImage {
    /// The MachineImage of a disk or CD-ROM drive of a block; `None` if its image is not one.
    pub fn of(image: Option<&Image>, pin: Option<&ImagePin>) -> Option<Self> {
        Some(Self {
            image: image.filter(|image| image.name.is_some())?.clone(),
            pin: pin?.clone(),
        })
    }

    /// Whether both are filled from the same source.
    pub fn has_source_of(&self, other: &Self) -> bool {
        self.image == other.image && self.pin.data_source == other.pin.data_source
    }
}

impl MachineImageSpec {
    /// What a block holds of a MachineImage of this name. `None` if the spec was written without admission and has no
    /// source or no size.
    pub fn pinned(&self, name: &str) -> Option<PinnedImage> {
        let source = self.source.as_ref()?;
        let data_source = source.data_source.as_ref().and_then(|reference| {
            Some(PinnedDataSource {
                name: reference.name.clone()?,
                namespace: reference.namespace.clone()?,
            })
        });
        if source.url.is_none() && source.volume.is_none() && data_source.is_none() {
            return None;
        }
        Some(PinnedImage {
            image: Image {
                checksum: source.checksum.clone(),
                name: Some(name.to_owned()),
                url: source.url.clone(),
                volume: source.volume.clone(),
                ..Image::default()
            },
            pin: ImagePin {
                data_source,
                efi: self.firmware.as_ref().and_then(|firmware| firmware.efi),
                min_disk_size: self.min_disk_size.as_ref()?.parse().ok()?,
                os: self.os.as_deref().and_then(OsFamily::parse),
            },
        })
    }
}

/// What the controller observed of an image. Written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineImageStatus {
    /// State of the image: Ready.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::CONDITIONS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Imports of the present source, on KubeVirt: one for each storage class and volume mode that a Machine asked
    /// for, at most 64.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::IMAGE_IMPORTS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub imports: Vec<ImageImport>,
    /// metadata.generation of the MachineImage that the status belongs to.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub observed_generation: Option<i64>,
    /// Number of Machines with a disk or CD-ROM drive that names the image, whatever its source was then.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub used_by: Option<u32>,
}

/// An import of an image, which disks are clones of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageImport {
    /// Name of the DataVolume and of its claim.
    #[schemars(with = "schema::ObjectName")]
    pub name: String,
    /// Phase of the DataVolume, such as ImportInProgress or Succeeded.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::NAME_MAX))]
    pub phase: Option<String>,
    /// Name of the StorageClass.
    #[schemars(with = "schema::StorageClassName")]
    pub storage_class: String,
    /// Mode of the volume: Filesystem or Block.
    #[schemars(length(max = bounds::NAME_MAX))]
    pub volume_mode: String,
}
