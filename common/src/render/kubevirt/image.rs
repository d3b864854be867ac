//! What fills a volume with its image: a DataVolume of CDI.
//!
//! ```text
//! url https://, http:// ─▶ source.http      with the checksum (CDI since v1.65)
//! url docker:// ─────────▶ source.registry  a containerDisk; its digest belongs into the url
//! persistentVolumeClaim ─▶ source.pvc       of the same namespace
//! ```
//! CDI makes the claim, of the DataVolume's name and with its labels and annotations. It is asked for
//! with `pvc` and not with `storage`, which would add to the size: a claim has the size of its disk.

use super::claim::claim;
use super::types::{
    Claim, CloneSource, DataVolume, DataVolumeSource, DataVolumeSpec, HttpSource, RegistrySource,
};
use super::volume::Volume;
use crate::api::machine::Image;
use crate::render::identity::Identity;

/// How the address of a containerDisk begins.
const REGISTRY: &str = "docker://";

/// The DataVolume of a volume that is filled with an image.
pub fn data_volume(machine: &Identity<'_>, volume: &Volume<'_>) -> Option<DataVolume> {
    let source = source(machine.namespace, volume.disk.image.as_ref()?)?;
    let Claim { metadata, spec, .. } = claim(machine, volume);
    Some(DataVolume {
        api_version: "cdi.kubevirt.io/v1beta1".into(),
        kind: "DataVolume".into(),
        metadata,
        spec: DataVolumeSpec { source, pvc: spec },
    })
}

/// Whether the image has a checksum that CDI has no place for, so that nobody would verify it.
pub fn is_unverifiable(image: &Image) -> bool {
    let url = image.url.as_deref().unwrap_or_default();
    image.checksum.is_some() && url.starts_with(REGISTRY)
}

/// `None`: a volume of a libvirt host.
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
