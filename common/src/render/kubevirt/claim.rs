//! The PersistentVolumeClaim of a volume.

use super::identity::metadata;
use super::types::{Claim, ClaimRequests, ClaimResources, ClaimSpec, LabelSelector};
use super::volume::Volume;
use crate::api::choice::Choice as _;
use crate::names;
use crate::render::identity::Identity;

/// The PersistentVolumeClaim of a volume.
///
/// It has no owner reference: the controller deletes claims only after the guest is gone, and the
/// garbage collector does not keep this order. The reclaim policy is an annotation, so that a deletion
/// works without the Machine's spec.
pub fn claim(machine: &Identity<'_>, volume: &Volume<'_>) -> Claim {
    let disk = &volume.disk;
    let mut metadata = metadata(machine, volume.claim.clone());
    metadata
        .labels
        .insert(names::LABEL_DISK.to_owned(), disk.name.clone());
    metadata.annotations.insert(
        names::ANNOTATION_RECLAIM_POLICY.to_owned(),
        disk.reclaim_policy.as_str().to_owned(),
    );
    Claim {
        api_version: "v1".into(),
        kind: "PersistentVolumeClaim".into(),
        metadata,
        spec: ClaimSpec {
            access_modes: vec![disk.access_mode.as_str().to_owned()],
            volume_mode: disk.volume_mode.as_str().to_owned(),
            storage_class_name: Some(disk.storage_class.clone()),
            resources: ClaimResources {
                requests: ClaimRequests {
                    storage: disk.size.to_string(),
                },
            },
            selector: disk
                .selector
                .clone()
                .map(|match_labels| LabelSelector { match_labels }),
            volume_name: disk.volume_name.clone(),
        },
    }
}
