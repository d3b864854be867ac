//! Drops the metadata that the controller never reads, while an object is decoded and before it is cached.
//!
//! Metadata of an object may take 1.5 MiB, the most that etcd stores of one object, and each user of a namespace can write
//! such objects. So every part that is kept has a bound, and some hundred of them do not use up the controller's memory
//! (`a_value_that_nobody_needs_is_dropped_and_the_text_of_a_request_is_cut`,
//! `of_many_finalizers_those_of_the_controller_are_kept`, `owners_that_nobody_asks_about_are_dropped`).
//!
//! | part | kept |
//! |---|---|
//! | labels, annotations | those with a key of [`names`]; a value is at most as long as [`longest_value`] |
//! | owner references | [`OWNERS_MAX`] of the kinds that are asked about |
//! | finalizers | of Machines and NetworkConfigurations, which have one of the controller, [`FINALIZERS_MAX`] and one more |

use std::collections::BTreeMap;

use common::bounds::{
    KEPT_DISKS_MAX, LABEL_KEY_MAX, LABELS_MAX, NAME_MAX, OBJECT_NAME_MAX, TEXT_MAX,
};
use common::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use runtime::metadata::{Kept, kept};
use serde::Deserializer;

/// Kinds of owners that the controller asks about.
const OWNER_KINDS: [&str; 4] = [
    "Machine",
    "VirtualMachine",
    "DataVolume",
    "NetworkConfiguration",
];

/// Most owner references of an object that are kept. The controller and KubeVirt give an object two at most.
const OWNERS_MAX: usize = 16;

/// Most finalizers of an object that are written back as they were cached. Of an object with more, one more is kept, and the
/// list is read before it is written: see [`writes`](crate::writes). The API server bounds each by 317 bytes.
pub const FINALIZERS_MAX: usize = 16;

/// Longest uid that is kept, in bytes: Kubernetes' have 36.
const UID_MAX: usize = 64;

/// Longest value of most annotations, in bytes: the longest that the controller writes or understands is the name of an
/// object, with room for spaces.
const VALUE_MAX: usize = 512;

/// The finalizers that the controller asks about.
const OWN_FINALIZERS: [&str; 2] = [names::FINALIZER, names::FINALIZER_IN_USE];

/// Annotations with any text of a user, of which the controller reads the first [`TEXT_MAX`] characters.
const REQUESTS: [&str; 3] = [
    names::ANNOTATION_RESTART_REQUESTED,
    names::ANNOTATION_RESET_REQUESTED,
    names::ANNOTATION_MIGRATE_REQUESTED,
];

/// What [`prune_except_finalizers`] keeps, apart from the length of annotations.
#[derive(Debug)]
pub enum Own {}

impl Kept for Own {
    fn keeps_label(key: &str) -> bool {
        names::LABELS.contains(&key)
    }

    fn keeps_annotation(key: &str) -> bool {
        names::ANNOTATIONS.contains(&key)
    }

    fn add_owner(owners: &mut Vec<OwnerReference>, owner: OwnerReference) {
        if owners.len() < OWNERS_MAX && is_asked_about(&owner) {
            owners.push(owner);
        }
    }

    fn add_finalizer(finalizers: &mut Vec<String>, finalizer: String) {
        finalizers.push(finalizer);
        limit(finalizers);
    }
}

/// Decodes the metadata of kinds of which [`prune`] or [`prune_except_finalizers`] drops the rest.
pub fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    kept::<_, Own>(deserializer)
}

/// Drops the metadata that the controller never reads, finalizers included.
pub fn prune(metadata: &mut ObjectMeta) {
    prune_except_finalizers(metadata);
    metadata.finalizers = None;
}

/// [`prune`] for kinds whose finalizers the controller changes: a merge patch writes the whole list.
pub fn prune_except_finalizers(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.generate_name = None;
    metadata.self_link = None;
    if let Some(finalizers) = &mut metadata.finalizers {
        limit(finalizers);
    }
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| Own::keeps_label(key));
    }
    if let Some(annotations) = &mut metadata.annotations {
        retain_known(annotations);
        annotations.retain(|key, value| is_kept(key, value));
    }
    if let Some(owners) = &mut metadata.owner_references {
        owners.retain(is_asked_about);
        owners.truncate(OWNERS_MAX);
    }
}

/// [`prune`] for kinds that users select by labels of any domain.
pub fn prune_except_labels(metadata: &mut ObjectMeta) {
    let labels = metadata.labels.take();
    prune(metadata);
    metadata.labels = labels;
}

/// [`prune`] for kinds that only administrators write: their labels are of any domain, and their lists of any length.
pub fn prune_of_administrator(metadata: &mut ObjectMeta) {
    let annotations = metadata.annotations.take();
    prune_except_labels(metadata);
    metadata.annotations = annotations;
    if let Some(annotations) = &mut metadata.annotations {
        retain_known(annotations);
    }
}

fn retain_known(annotations: &mut BTreeMap<String, String>) {
    annotations.retain(|key, _| Own::keeps_annotation(key));
}

/// Drops the finalizers beyond the bound, those of others first.
fn limit(finalizers: &mut Vec<String>) {
    if finalizers.len() > FINALIZERS_MAX {
        finalizers.sort_by_key(|name| !OWN_FINALIZERS.contains(&name.as_str()));
    }
    finalizers.truncate(FINALIZERS_MAX + 1);
}

/// Cuts the text of a request, and says whether the annotation is kept. Any other value that is too long is dropped as a
/// whole: a list that is cut could name another disk.
fn is_kept(key: &str, value: &mut String) -> bool {
    let longest = longest_value(key);
    if REQUESTS.contains(&key) {
        value.truncate(value.floor_char_boundary(longest));
    }
    value.len() <= longest
}

/// Longest value of an annotation that is kept, in bytes.
fn longest_value(key: &str) -> usize {
    /// Bytes of a character in UTF-8.
    const CHARACTER: usize = 4;
    match key {
        // Each as `key=value` and a comma.
        names::ANNOTATION_LABELS => LABELS_MAX * (LABEL_KEY_MAX + NAME_MAX + 2),
        // Every disk that can be named, each with a comma and a space.
        names::ANNOTATION_RELEASE_VOLUME | names::ANNOTATION_RECREATE_VOLUME => {
            KEPT_DISKS_MAX * (NAME_MAX + 2)
        }
        _ if REQUESTS.contains(&key) => TEXT_MAX * CHARACTER,
        _ => VALUE_MAX,
    }
}

/// Whether the controller may ask about this owner. The API server bounds none of the fields.
fn is_asked_about(owner: &OwnerReference) -> bool {
    OWNER_KINDS.contains(&owner.kind.as_str())
        && owner.api_version.len() <= LABEL_KEY_MAX
        && owner.name.len() <= OBJECT_NAME_MAX
        && owner.uid.len() <= UID_MAX
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What is kept; it does not depend on what is already skipped while the metadata is decoded.
    fn pruned(metadata: Value, prune: fn(&mut ObjectMeta)) -> Value {
        let mut whole = serde_json::from_value(metadata.clone()).unwrap();
        prune(&mut whole);
        let mut decoded = super::metadata(metadata).unwrap();
        prune(&mut decoded);
        assert_eq!(decoded, whole);
        json!(decoded)
    }

    #[test]
    fn pruning_keeps_only_the_labels_and_annotations_of_the_project() {
        let metadata = json!({
            "labels": {"vitistack.io/machine": "web", "x.vitistack.io/a": "x", "app": "x"},
            "annotations": {
                "machine.vitistack.io/paused": "true",
                "x.vitistack.io/a": "x",
                "evil-vitistack.io/x": "x",
            },
            "finalizers": ["example.org/theirs"],
            "managedFields": [],
        });
        let expected = json!({
            "labels": {"vitistack.io/machine": "web"},
            "annotations": {"machine.vitistack.io/paused": "true"},
        });
        assert_eq!(pruned(metadata.clone(), prune), expected);
        // A merge patch that lacked one would remove it.
        let kept = pruned(metadata, prune_except_finalizers);
        assert_eq!(kept["finalizers"], json!(["example.org/theirs"]));
    }

    #[test]
    fn a_value_that_nobody_needs_is_dropped_and_the_text_of_a_request_is_cut() {
        let disk = "d".repeat(NAME_MAX);
        let disks = [disk.as_str(); KEPT_DISKS_MAX].join(", ");
        let long = "x".repeat(disks.len() + 3);
        for key in names::ANNOTATIONS {
            let kept = pruned(json!({"annotations": {key: long}}), prune);
            let kept = kept["annotations"][key].as_str().map(str::len);
            let expected = match key {
                names::ANNOTATION_LABELS => Some(long.len()),
                key if REQUESTS.contains(&key) => Some(4 * TEXT_MAX),
                _ => None,
            };
            assert_eq!(kept, expected, "{key}");
        }
        let release = json!({"annotations": {names::ANNOTATION_RELEASE_VOLUME: disks}});
        assert_eq!(pruned(release.clone(), prune), release);
        let release = json!({"annotations": {names::ANNOTATION_RELEASE_VOLUME: long}});
        assert_eq!(pruned(release.clone(), prune_of_administrator), release);
        // Cut between characters.
        let text = "a".to_owned() + &"ü".repeat(4 * TEXT_MAX);
        let key = names::ANNOTATION_RESTART_REQUESTED;
        let kept = pruned(json!({"annotations": {key: text}}), prune);
        let kept = kept["annotations"][key].as_str().unwrap();
        assert!(text.starts_with(kept) && kept.chars().count() >= TEXT_MAX);
    }

    #[test]
    fn of_many_finalizers_those_of_the_controller_are_kept() {
        let mut finalizers: Vec<_> = (0..1000).map(|it| format!("example.org/{it}")).collect();
        let few = json!({"finalizers": &finalizers[..FINALIZERS_MAX]});
        assert_eq!(pruned(few.clone(), prune_except_finalizers), few);
        finalizers.push(names::FINALIZER.to_owned());
        let kept = pruned(json!({"finalizers": finalizers}), prune_except_finalizers);
        let kept = kept["finalizers"].as_array().unwrap().clone();
        assert_eq!(kept.len(), FINALIZERS_MAX + 1);
        assert!(kept.contains(&json!(names::FINALIZER)));
    }

    #[test]
    fn owners_that_nobody_asks_about_are_dropped() {
        let owner = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"});
        let asked = OWNER_KINDS.map(|kind| owner(kind, "web"));
        let mut owners = vec![
            owner("Job", "web"),
            owner("Machine", &"x".repeat(OBJECT_NAME_MAX + 1)),
        ];
        owners.extend(asked.clone());
        let kept = pruned(json!({"ownerReferences": owners}), prune);
        assert_eq!(kept["ownerReferences"], json!(asked));

        let many = vec![owner("Machine", "web"); 1000];
        let kept = pruned(json!({"ownerReferences": many}), prune);
        assert_eq!(
            kept["ownerReferences"].as_array().unwrap().len(),
            OWNERS_MAX
        );
    }
}
