//! The claim of a disk.

use super::identity::Identity;
use super::types::{Claim, ClaimRequests, ClaimResources, ClaimSpec, LabelSelector};
use crate::api::choice::Choice as _;
use crate::api::normalized::NormalizedDisk;
use crate::names;

/// The PersistentVolumeClaim of a disk.
///
/// Without an owner: garbage collection would race the order of a deletion. Its reclaim policy is
/// an annotation, so that deletion needs no spec.
pub fn claim(machine: &Identity<'_>, disk: &NormalizedDisk) -> Claim {
    let mut metadata = machine.metadata(names::claim(machine.name, &disk.name));
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
