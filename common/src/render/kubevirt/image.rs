//! The DataVolume of CDI that fills a volume with its image.
//!
//! ```text
//! url https://, http:// ─▶ source.http      with the checksum (CDI since v1.65)
//! url docker:// ─────────▶ source.registry  a containerDisk; a digest can be part of the url
//! persistentVolumeClaim ─▶ source.pvc       of the same namespace
//! a MachineImage's dataSource ─▶ sourceRef  of any namespace in which CDI lets the controller clone
//! ```
//! CDI creates the claim with the DataVolume's name, labels and annotations. The DataVolume uses `pvc`,
//! not `storage`: with `storage` CDI enlarges the claim, and a claim must have the size of its disk.

use super::claim::claim;
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

/// The DataVolume of a volume; `None` if the volume has no image that CDI can import.
pub fn data_volume(machine: &Identity<'_>, volume: &Volume<'_>) -> Option<DataVolume> {
    let pin = volume.disk.image_pin.as_ref();
    let source_ref = pin.and_then(|pin| source_ref(pin));
    let source = match source_ref {
        Some(_) => DataVolumeSource::default(),
        None => source(machine.namespace, volume.disk.image.as_ref()?)?,
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
        return Some(DataVolumeSource {
            pvc: Some(CloneSource {
                namespace: namespace.to_owned(),
                name: name.clone(),
            }),
            ..DataVolumeSource::default()
        });
    }
    let url = image.url.clone()?;
    Some(if url.starts_with(REGISTRY) {
        DataVolumeSource {
            registry: Some(RegistrySource { url }),
            ..DataVolumeSource::default()
        }
    } else {
        DataVolumeSource {
            http: Some(HttpSource {
                url,
                checksum: image.checksum.clone(),
            }),
            ..DataVolumeSource::default()
        }
    })
}
