//! The state of MachineImages, from the caches alone.

use std::collections::{BTreeMap, BTreeSet};

use common::api::machine_image::{ImageImport, MachineImageStatus};
use common::bounds::IMAGE_IMPORTS_MAX;
use common::names;
use common::render::kubevirt::{import_name, source_digest, volumes};
use controller_core::conditions::condition;
use controller_core::machine::{CachedMachine, Machine};
use controller_core::objects::{Image, Meta as _};
use controller_core::plan::Now;

use crate::caches::KubeVirtCaches;
use crate::objects::DataVolume;

/// How many Machines name each MachineImage.
pub(super) fn uses<'m>(
    machines: impl Iterator<Item = &'m CachedMachine>,
) -> BTreeMap<Box<str>, u32> {
    let mut uses: BTreeMap<Box<str>, u32> = BTreeMap::new();
    for machine in machines {
        for image in machine.images() {
            *uses.entry(image.into()).or_default() += 1;
        }
    }
    uses
}

/// The status of an image. Times change only with the status of a condition.
pub(super) fn status(
    image: &Image,
    used_by: u32,
    imports: &[DataVolume],
    now: Now,
) -> MachineImageStatus {
    let pinned = image.spec.pinned(image.name());
    let source = pinned.as_ref().and_then(source_digest);
    let is_of_source = |import: &&DataVolume| {
        source.is_some() && import.label(names::LABEL_IMAGE_SOURCE) == source.as_deref()
    };
    let imports: Vec<_> = imports.iter().filter(is_of_source).collect();
    let (status, reason, message) = if pinned.is_none() {
        let message = "the spec was written without the admission webhook, and source or minDiskSize is missing or cannot be used: write both";
        ("False", "NotUsable", message.to_owned())
    } else {
        ready(&imports)
    };
    let generation = image.metadata.generation;
    let old = &image.status.conditions;
    MachineImageStatus {
        conditions: vec![condition(
            old,
            ("Ready", status),
            (reason, message),
            generation,
            now,
        )],
        imports: imports
            .iter()
            .take(IMAGE_IMPORTS_MAX)
            .map(|import| listed(import))
            .collect(),
        observed_generation: generation,
        used_by: Some(used_by),
    }
}

/// Status, reason and message of the condition `Ready`: of several imports the one that fails, else one that is under
/// way.
fn ready(imports: &[&DataVolume]) -> (&'static str, &'static str, String) {
    let name = |import: &DataVolume| format!("{}/{}", import.namespace(), import.name());
    let failing = imports
        .iter()
        .find(|import| import.has_failed() || (!import.is_finished() && import.is_failing()));
    if let Some(import) = failing {
        let text = import.message().unwrap_or("CDI gives no reason");
        let message = format!("DataVolume {}: {text}", name(import));
        return ("False", "ImageImportFailed", message);
    }
    if let Some(import) = imports.iter().find(|import| !import.is_finished()) {
        let message = format!("DataVolume {} is being imported", name(import));
        return ("False", "ImageImporting", message);
    }
    if imports.is_empty() {
        let message = "the image is fetched when a Machine needs it";
        return ("True", "Available", message.to_owned());
    }
    let message = format!(
        "imported for {} pairs of storage class and volume mode",
        imports.len()
    );
    ("True", "Imported", message)
}

fn listed(import: &DataVolume) -> ImageImport {
    let claim = &import.spec.pvc;
    let phase = &import.status.phase;
    ImageImport {
        name: import.name().to_owned(),
        phase: (!phase.is_empty()).then(|| phase.clone()),
        storage_class: claim.storage_class_name.clone().unwrap_or_default(),
        volume_mode: claim
            .volume_mode
            .clone()
            .unwrap_or_else(|| "Filesystem".into()),
    }
}

/// Names of the imports that volumes of these Machines still have to be cloned from.
pub(super) fn needed_imports(
    machines: impl Iterator<Item = Machine>,
    cluster: &KubeVirtCaches,
) -> BTreeSet<String> {
    let mut needed = BTreeSet::new();
    for machine in machines.filter(|machine| !machine.is_deleting()) {
        let namespace = machine.namespace();
        let block = machine.desired().into_iter();
        for volume in block.flat_map(|block| volumes(machine.name(), block)) {
            let Some(name) = import_name(&volume.disk) else {
                continue;
            };
            let clone = cluster.data_volumes.get(namespace, &volume.claim);
            let is_incomplete = clone.is_some_and(|clone| !clone.is_finished());
            if is_incomplete || !cluster.claims.contains(namespace, &volume.claim) {
                needed.insert(name);
            }
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use time::OffsetDateTime;

    use super::*;
    use crate::environment::decode;

    fn image() -> Image {
        decode(json!({
            "metadata": {"name": "debian-13", "generation": 1},
            "spec": {"source": {"url": "https://images.example.com/debian.qcow2"}, "minDiskSize": "3Gi"},
        }))
    }

    fn import(name: &str, source: &str, status: &Value) -> DataVolume {
        decode(json!({
            "metadata": {"name": name, "namespace": "images", "labels": {
                names::LABEL_MANAGED_BY: names::MANAGED_BY, names::LABEL_IMAGE_SOURCE: source,
            }},
            "spec": {"pvc": {"storageClassName": "fast", "volumeMode": "Block"}},
            "status": status,
        }))
    }

    fn status_with(imports: &[DataVolume]) -> MachineImageStatus {
        status(&image(), 2, imports, Now(OffsetDateTime::UNIX_EPOCH))
    }

    #[test]
    fn an_image_is_ready_unless_an_import_of_its_present_source_is_under_way_or_fails() {
        let source = source_digest(&image().spec.pinned("debian-13").unwrap()).unwrap();
        let finished = import("image-a", &source, &json!({"phase": "Succeeded"}));
        let underway = import("image-b", &source, &json!({"phase": "ImportInProgress"}));
        let failing = json!({"phase": "ImportInProgress", "conditions": [
            {"type": "Running", "status": "False", "reason": "Error", "message": "404"},
        ]});
        let failing = import("image-c", &source, &failing);
        let other = import("image-d", "another", &json!({"phase": "ImportInProgress"}));
        for (imports, expected) in [
            (vec![], ("True", "Available")),
            (vec![other.clone()], ("True", "Available")),
            (vec![finished.clone(), other], ("True", "Imported")),
            (
                vec![finished.clone(), underway.clone()],
                ("False", "ImageImporting"),
            ),
            (
                vec![finished, underway, failing],
                ("False", "ImageImportFailed"),
            ),
        ] {
            let status = status_with(&imports);
            let ready = &status.conditions[0];
            assert_eq!((&*ready.status, &*ready.reason), expected);
            assert_eq!(status.used_by, Some(2));
        }
    }

    #[test]
    fn a_status_that_has_not_changed_is_the_same() {
        let first = status_with(&[]);
        let mut image = image();
        image.status = first.clone();
        let later = Now(OffsetDateTime::UNIX_EPOCH + time::Duration::hours(1));
        assert_eq!(status(&image, 2, &[], later), first);
    }
}
