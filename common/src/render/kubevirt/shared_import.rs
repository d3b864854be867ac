//! The import of a MachineImage, which disks are clones of: one for each storage class and volume mode.
//!
//! ```text
//! url, checksum, minDiskSize ─▶ source digest ─┐
//! storage class, volume mode ──────────────────┴▶ name of the DataVolume in the namespace of images
//! ```
//! A corrected `minDiskSize` is another source digest, so that an import into a volume that is too small is followed by
//! one into a larger volume.

use super::image::source_of_url;
use super::types::{
    ClaimRequests, ClaimResources, ClaimSpec, DataVolume, DataVolumeSpec, Metadata,
};
use crate::api::choice::{AccessMode, Choice as _};
use crate::api::machine_image::PinnedImage;
use crate::api::normalized::NormalizedDisk;
use crate::names;
use crate::render::identity::digest;

/// Hexadecimal digits in the name of an import: 96 bits, so that two imports never have one name by accident.
const NAME_DIGITS: usize = 24;

/// Digest of what is imported; `None` for an image that is not imported: a volume or a DataSource.
pub fn source_digest(pinned: &PinnedImage) -> Option<String> {
    let url = pinned.image.url.as_ref()?;
    Some(digest(&(
        url,
        &pinned.image.checksum,
        pinned.pin.min_disk_size,
    )))
}

/// Name of the import that the volume of a disk is a clone of; `None` if it is none.
pub fn import_name(disk: &NormalizedDisk) -> Option<String> {
    let pinned = PinnedImage::of(disk.image.as_ref(), disk.image_pin.as_ref())?;
    let source = source_digest(&pinned)?;
    let mut digits = digest(&(source, &disk.storage_class, disk.volume_mode));
    digits.truncate(NAME_DIGITS);
    Some(format!("image-{digits}"))
}

/// The import that the volume of a disk is a clone of; `None` if it is none. `namespace`: that of images.
///
/// It requests that its volume is bound at once: no pod uses the import, so a class that binds volumes when a pod is
/// scheduled would never bind it. CDI keeps it after it has finished, whatever CDI's own setting says.
pub fn shared_import(namespace: &str, disk: &NormalizedDisk) -> Option<DataVolume> {
    let pinned = PinnedImage::of(disk.image.as_ref(), disk.image_pin.as_ref())?;
    let set = |pairs: [(&str, &str); 3]| {
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        pairs.into()
    };
    let mut labels: std::collections::BTreeMap<_, _> = std::collections::BTreeMap::new();
    labels.insert(
        names::LABEL_MANAGED_BY.to_owned(),
        names::MANAGED_BY.to_owned(),
    );
    labels.insert(
        names::LABEL_IMAGE_SOURCE.to_owned(),
        source_digest(&pinned)?,
    );
    Some(DataVolume {
        api_version: "cdi.kubevirt.io/v1beta1".into(),
        kind: "DataVolume".into(),
        metadata: Metadata {
            name: import_name(disk)?,
            namespace: namespace.to_owned(),
            labels,
            annotations: set([
                (
                    names::ANNOTATION_IMAGE,
                    pinned.image.name.as_deref().unwrap_or_default(),
                ),
                (names::CDI_BIND_IMMEDIATELY, "true"),
                (names::CDI_DELETE_AFTER_COMPLETION, "false"),
            ]),
            ..Metadata::default()
        },
        spec: DataVolumeSpec {
            source: source_of_url(pinned.image.url.clone()?, pinned.image.checksum.clone()),
            source_ref: None,
            pvc: ClaimSpec {
                access_modes: vec![AccessMode::ReadWriteOnce.as_str().to_owned()],
                volume_mode: disk.volume_mode.as_str().to_owned(),
                storage_class_name: Some(disk.storage_class.clone()),
                resources: ClaimResources {
                    requests: ClaimRequests {
                        storage: pinned.pin.min_disk_size.to_string(),
                    },
                },
                ..ClaimSpec::default()
            },
        },
    })
}
