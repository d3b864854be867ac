//! The DataVolume of CDI that fills a volume with its image.
//!
//! ```text
//! url https://, http:// ─▶ source.http      with the checksum (CDI since v1.65)
//! url docker:// ─────────▶ source.registry  a containerDisk; a digest can be part of the url
//! persistentVolumeClaim ─▶ source.pvc       of the same namespace
//! a MachineImage's url ────▶ source.pvc     the shared import in the namespace of images
//! a MachineImage's dataSource ─▶ sourceRef  of any namespace in which CDI lets the controller clone
//! ```
//! CDI creates the claim with the DataVolume's name, labels and annotations. The DataVolume uses `pvc`,
//! not `storage`: with `storage` CDI enlarges the claim, and a claim must have the size of its disk.

use super::claim::claim;
use super::shared_import::import_name;
use super::types::{
    Claim, CloneSource, DataVolume, DataVolumeSource, DataVolumeSpec, HttpSource, RegistrySource,
    SourceRef,
};
use super::volume::Volume;
use crate::api::machine::Image;
use crate::api::normalized::ImagePin;
use crate::render::identity::Identity;

/// URL scheme of a containerDisk.
const REGISTRY: &str = "docker://";

/// The DataVolume of a volume; `None` if the volume has no image that CDI can import. `images`: the namespace of the
/// shared imports.
pub fn data_volume(
    machine: &Identity<'_>,
    volume: &Volume<'_>,
    images: &str,
) -> Option<DataVolume> {
    let pin = volume.disk.image_pin.as_ref();
    let source_ref = pin.and_then(source_ref);
    let source = match (&source_ref, import_name(&volume.disk)) {
        (Some(_), _) => DataVolumeSource::default(),
        (None, Some(import)) => clone_of(images, &import),
        (None, None) => source(machine.namespace, volume.disk.image.as_ref()?)?,
    };
    let Claim { metadata, spec, .. } = claim(machine, volume);
    Some(DataVolume {
        api_version: "cdi.kubevirt.io/v1beta1".into(),
        kind: "DataVolume".into(),
        metadata,
        spec: DataVolumeSpec {
            source,
            source_ref,
            pvc: spec,
        },
    })
}

/// Whether the image has a checksum that CDI cannot verify: a DataVolume has no field for the checksum
/// of a containerDisk.
pub fn is_unverifiable(image: &Image) -> bool {
    let url = image.url.as_deref().unwrap_or_default();
    image.checksum.is_some() && url.starts_with(REGISTRY)
}

fn source_ref(pin: &ImagePin) -> Option<SourceRef> {
    let data_source = pin.data_source.as_ref()?;
    Some(SourceRef {
        kind: "DataSource".to_owned(),
        namespace: data_source.namespace.clone(),
        name: data_source.name.clone(),
    })
}

/// `None` for an image that is a volume of a libvirt host.
fn source(namespace: &str, image: &Image) -> Option<DataVolumeSource> {
    if let Some(name) = &image.persistent_volume_claim {
        return Some(clone_of(namespace, name));
    }
    Some(source_of_url(image.url.clone()?, image.checksum.clone()))
}

fn clone_of(namespace: &str, claim: &str) -> DataVolumeSource {
    DataVolumeSource {
        pvc: Some(CloneSource {
            namespace: namespace.to_owned(),
            name: claim.to_owned(),
        }),
        ..DataVolumeSource::default()
    }
}

/// An image at an address.
pub(super) fn source_of_url(url: String, checksum: Option<String>) -> DataVolumeSource {
    if url.starts_with(REGISTRY) {
        DataVolumeSource {
            registry: Some(RegistrySource { url }),
            ..DataVolumeSource::default()
        }
    } else {
        DataVolumeSource {
            http: Some(HttpSource { url, checksum }),
            ..DataVolumeSource::default()
        }
    }
}
