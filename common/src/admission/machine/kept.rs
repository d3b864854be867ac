//! What an update keeps: values that were looked up for the stored block, or for that of a backup.

use std::collections::{BTreeMap, BTreeSet};

use super::object::Old;
use crate::api::choice::{Backend, DeviceKind, ReclaimPolicy};
use crate::api::machine_image::PinnedImage;
use crate::api::normalized::{Normalized, NormalizedDisk, TemplatePin};
use crate::catalog::Catalog;
use crate::normalize::{
    ImageDefaults, LeftToBackend, Merged, Pins, TemplateChoice, defaults_of, images_in, merge,
    pins_of,
};
use crate::rules;
use crate::rules::rule::{ImageRequest, KnownTemplate};
use crate::violation::Findings;

/// Pins from the stored object. Values of the sent block are ignored in their place.
pub(super) struct KeptPins {
    pub(super) template: Option<TemplatePin>,
    pub(super) backend: Option<Backend>,
    pub(super) storage_classes: BTreeMap<String, String>,
    pub(super) reclaim_policies: BTreeMap<String, ReclaimPolicy>,
    pub(super) images: BTreeMap<String, PinnedImage>,
    pub(super) disks_without_serial: BTreeSet<String>,
    pub(super) hotpluggable: BTreeSet<String>,
    pub(super) left_to_backend: LeftToBackend,
    pub(super) defaults: ImageDefaults,
    pub(super) device_kinds: BTreeMap<String, DeviceKind>,
}

impl KeptPins {
    /// These pins, and those of `looked_up` for the rest.
    pub(super) fn over(self, mut looked_up: Pins) -> Pins {
        if let Some(pin) = self.template {
            looked_up.template = TemplateChoice::Pinned(Box::new(pin));
        }
        looked_up.backend = self.backend.unwrap_or(looked_up.backend);
        looked_up.storage_classes.extend(self.storage_classes);
        looked_up.reclaim_policies.extend(self.reclaim_policies);
        looked_up.images.extend(self.images);
        looked_up.disks_without_serial = self.disks_without_serial;
        looked_up.hotpluggable = self.hotpluggable;
        looked_up.left_to_backend = self.left_to_backend;
        looked_up.defaults = self.defaults;
        looked_up.device_kinds.extend(self.device_kinds);
        looked_up
    }
}

/// What the spec leaves open and the stored block, or that of a backup, has.
#[derive(Default)]
pub(super) struct KeptChoices {
    /// By name of disk or CD-ROM.
    pub(super) storage_classes: BTreeMap<String, String>,
    /// By name of disk.
    pub(super) reclaim_policies: BTreeMap<String, ReclaimPolicy>,
    pub(super) defaults: ImageDefaults,
}

pub(super) fn kept_choices(
    merged: &Merged<'_>,
    backend: Backend,
    stored: Option<(&Old<'_>, &Normalized)>,
    restored: Option<&Normalized>,
) -> KeptChoices {
    let stored = stored.map(|(old, block)| stored_choices(merged, backend, old, block));
    let mut kept = stored.unwrap_or_default();
    if let Some(block) = restored {
        kept.reclaim_policies = reclaim_policies_in(block);
        kept.defaults = defaults_of(block);
    }
    kept
}

fn stored_choices(
    merged: &Merged<'_>,
    backend: Backend,
    old: &Old<'_>,
    block: &Normalized,
) -> KeptChoices {
    let Pins {
        template, images, ..
    } = pins_of(block);
    let intent = old.object.intent();
    let old = merge(&intent, &template).with_images(&images);
    KeptChoices {
        storage_classes: rules::kept_classes(merged, backend, &old, block),
        reclaim_policies: rules::kept_reclaim_policies(merged, &old, block),
        defaults: rules::kept_defaults(merged, &old, block),
    }
}

/// The reclaim policies of a block, by name of the disk.
fn reclaim_policies_in(block: &Normalized) -> BTreeMap<String, ReclaimPolicy> {
    let of_disk = |disk: &NormalizedDisk| (disk.name.clone(), disk.reclaim_policy);
    block.disks.iter().map(of_disk).collect()
}

/// The template that a Machine has a pin of: the stored one overrides that of a backup.
pub(super) fn known_template<'a>(
    stored: Option<&'a TemplatePin>,
    restored: Option<&'a TemplatePin>,
) -> KnownTemplate<'a> {
    match (stored, restored) {
        (Some(pin), _) => KnownTemplate::Stored(pin),
        (None, Some(pin)) => KnownTemplate::Restored(pin),
        (None, None) => KnownTemplate::Nothing,
    }
}

/// The MachineImages that the stored block has and the spec still names, and all that it names, by name of the disk or
/// CD-ROM.
pub(super) fn images(
    merged: &Merged<'_>,
    stored: Option<&Normalized>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) -> (BTreeMap<String, PinnedImage>, BTreeMap<String, PinnedImage>) {
    let kept = stored.map(|block| rules::kept_images(merged, images_in(block)));
    let kept = kept.unwrap_or_default();
    let request = ImageRequest {
        merged,
        kept: &kept,
        catalog,
    };
    let images = rules::choose_images(&request, findings);
    (kept, images)
}

/// The stored pin, if it is of the template that was chosen.
pub(super) fn kept_pin(
    stored: Option<&TemplatePin>,
    chosen: &TemplateChoice,
) -> Option<TemplatePin> {
    let is_chosen =
        |pin: &&TemplatePin| matches!(chosen, TemplateChoice::Pinned(chosen) if **chosen == **pin);
    stored.filter(is_chosen).cloned()
}
