//! Imports of images: DataVolumes of CDI, and when a claim no longer depends on one.
//!
//! ```text
//! no claim ─▶ DataVolume ─▶ claim of CDI's ──────────────────────▶ image is in it ─▶ released
//!                             └─ waits for a node: the VirtualMachine is made meanwhile
//! ```
//! A volume that is filled with a MachineImage is a clone of a shared import: see [`shared_import`].
//!
//! CDI's claim is owned by its DataVolume and is deleted with it. So once the image is imported,
//! the DataVolume is deleted without its claim. From then on the claim is like all others: its policy, growth and
//! adoption apply. Before that it is no disk: an unfinished import is not kept and never adopted.

use common::api::choice::Choice as _;
use common::render::kubevirt::types::DataVolumeSource;
use common::render::kubevirt::{Volume, data_volume, is_unverifiable};

use super::action::{Action, UnfinishedImport};
use super::observed::Observed;
use super::protection::unmark_import;
use super::shared_import;
use super::volume::{Found, in_use, is_left_by_former_machine};
use crate::objects::{Claim, DataVolume};
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// The reason of an import that CDI tries again.
pub(super) const FAILED: &str = "ImageImportFailed";

/// State of the import into a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is none, or it has finished.
    Over,
    /// It starts once the guest has been scheduled to a node.
    WaitsForGuest,
    /// The image in it is incomplete.
    Underway,
}

pub(super) fn stage(claim: &Claim, import: Option<&DataVolume>) -> Stage {
    match (claim.data_volume(), import) {
        (None, _) => Stage::Over,
        (Some(uid), Some(import)) if uid == import.uid() => {
            if import.is_finished() {
                Stage::Over
            } else if import.waits_for_guest() && !import.is_deleting() {
                Stage::WaitsForGuest
            } else {
                Stage::Underway
            }
        }
        // Its DataVolume is gone, so the garbage collector will delete it.
        (Some(_), _) => Stage::Underway,
    }
}

/// Whether an unfinished import has another source than the disk now: the image was corrected.
pub(super) fn is_outdated(
    machine: &Machine,
    volume: &Volume<'_>,
    import: &DataVolume,
    observed: &Observed,
) -> bool {
    let source = &import.spec.source;
    let identity = machine.identity(&observed.cluster);
    let desired = data_volume(&identity, volume, &observed.image_namespace);
    let desired = desired.map(|desired| desired.spec.source);
    // A source that this release cannot read is not compared.
    let is_read = *source != DataVolumeSource::default();
    is_read && !import.is_finished() && desired.as_ref() != Some(source)
}

/// Deletes an import whose image was corrected, with the claim that it has not filled.
///
/// What a guest may use is never deleted. If the import waits for a node, the VirtualMachine has the claim before the
/// import is complete, and its guest starts afterwards.
pub(super) fn start_again(
    machine: &Machine,
    volume: &Volume<'_>,
    import: &DataVolume,
    observed: &Observed,
) -> Found {
    let (disk, claim) = (&volume.disk.name, &volume.claim);
    if in_use(claim, observed) && !awaits_import(machine, claim, observed) {
        let message = format!(
            "the image of '{disk}' was changed before its import was complete, and a guest has its volume already: stop that guest, and the new image is imported"
        );
        return Found {
            import: Some(Fault::new(FAILED, message)),
            ..Found::default()
        };
    }
    let message = format!(
        "the image of '{disk}' was changed before its import was complete: the import starts again"
    );
    Found {
        actions: end(import),
        import: Some(Fault::new("ImageImporting", message)),
        ..Found::default()
    }
}

/// Whether nothing uses the claim but the Machine's own guest, which cannot run before the import is complete.
fn awaits_import(machine: &Machine, claim: &str, observed: &Observed) -> bool {
    let vm = observed.vm.as_deref();
    let is_ours = vm.is_none_or(|vm| vm.belongs_to(machine.name(), machine.uid()));
    let instance = observed.instance.as_deref();
    is_ours
        && instance.is_none_or(|instance| {
            !instance.uses(claim)
                || (instance.machine() == Some(machine.name()) && observed.waits_for_node(instance))
        })
}

/// Creates the DataVolume of a volume that has neither a DataVolume nor a claim.
pub(super) fn begin(
    machine: &Machine,
    volume: &Volume<'_>,
    observed: &Observed,
) -> Result<Found, Fault> {
    let disk = &volume.disk;
    if disk.image.as_ref().is_some_and(is_unverifiable) {
        return Err(Fault::new(
            FAILED,
            format!(
                "CDI verifies no checksum of a docker:// image, so that of '{}' is not imported: remove image.checksum, and put the digest into the url (docker://registry/image@sha256:…)",
                disk.name
            ),
        ));
    }
    if !observed.cdi {
        // A blank disk instead of the image would not boot, and no message would have the cause.
        return Err(Fault::new(
            "ImageImportUnavailable",
            format!(
                "'{}' has an image, and CDI, which imports it, is not installed: install CDI, the Machine continues automatically then; or remove this disk, and add one of another name on a volume that you filled (volumeName or claimName)",
                disk.name
            ),
        ));
    }
    if let Some(found) = shared_import::prerequisite(volume, observed) {
        return found;
    }
    let identity = machine.identity(&observed.cluster);
    let desired = data_volume(&identity, volume, &observed.image_namespace);
    Ok(Found {
        actions: desired.map(Action::CreateDataVolume).into_iter().collect(),
        import: Some(underway(volume, None, observed)),
        ..Found::default()
    })
}

/// The condition while an import is not finished.
pub(super) fn underway(
    volume: &Volume<'_>,
    import: Option<&DataVolume>,
    observed: &Observed,
) -> Fault {
    let (claim, disk) = (&volume.claim, &volume.disk);
    let source = disk.image.as_ref();
    let source = source.and_then(|image| image.persistent_volume_claim.as_ref());
    if let Some(source) = source.filter(|source| !observed.sources.contains(*source)) {
        return Fault::new(
            "ImageImporting",
            format!(
                "PersistentVolumeClaim '{source}', which '{}' is a clone of, not found: create it; CDI continues automatically when it appears",
                disk.name
            ),
        );
    }
    let text = import.and_then(DataVolume::message);
    if let Some(text) = text.filter(|_| import.is_some_and(DataVolume::is_failing)) {
        return Fault::new(
            FAILED,
            format!(
                "the image of '{}' cannot be imported, CDI tries again: {text}",
                disk.name
            ),
        );
    }
    let text = text.map_or_else(String::new, |text| format!("; CDI reports: {text}"));
    let hint = missing_profile_hint(volume, observed);
    Fault::new(
        "ImageImporting",
        format!(
            "the image of '{}' is being imported into PersistentVolumeClaim {claim}{text}{hint}",
            disk.name
        ),
    )
}

/// What to do if the claim of an import stays unbound, on a class of which CDI knows no access mode; empty otherwise.
pub(super) fn missing_profile_hint(volume: &Volume<'_>, observed: &Observed) -> String {
    let disk = &volume.disk;
    if !observed.unprofiled.contains(&disk.storage_class) {
        return String::new();
    }
    format!(
        "; the StorageProfile '{}' of CDI names no access mode of this class: if the claim stays unbound, see that the class provides {} volumes of the mode {}, or give the disk the accessMode and volumeMode that it provides",
        disk.storage_class,
        disk.access_mode.as_str(),
        disk.volume_mode.as_str()
    )
}

/// The condition of an import that CDI does not retry.
pub(super) fn failed_import(volume: &Volume<'_>, import: &DataVolume) -> Option<Fault> {
    import.has_failed().then(|| {
        let text = import.message().unwrap_or("CDI gives no reason");
        Fault::new(
            FAILED,
            format!(
                "CDI has given up importing the image of '{}' ({text}): delete DataVolume {}, and the import starts again",
                volume.disk.name, volume.claim
            ),
        )
    })
}

/// A DataVolume of the volume's name that was not made for this Machine. One of a former Machine of the name is
/// deleted first; anybody else's is not touched.
pub(super) fn foreign(
    machine: &Machine,
    volume: &Volume<'_>,
    import: &DataVolume,
    observed: &Observed,
) -> Result<Found, Fault> {
    if !is_left_by_former_machine(import, machine, &volume.disk, observed) {
        return Err(Fault::new(
            "NameConflict",
            format!(
                "DataVolume '{}' exists and was not made for this Machine: give '{}' another name, or delete that DataVolume; it is left untouched",
                volume.claim, volume.disk.name
            ),
        ));
    }
    let is_used = in_use(&volume.claim, observed);
    Ok(Found {
        actions: if is_used { vec![] } else { end(import) },
        import: Some(underway(volume, None, observed)),
        ..Found::default()
    })
}

/// Deletes a DataVolume: a finished one without its claim, an unfinished one with it. One that is protected loses its
/// label first. The deletion of an unfinished one names the version that was observed, so it follows in another pass.
pub(super) fn end(import: &DataVolume) -> Vec<Action> {
    if import.is_finished() {
        return release(import);
    }
    if let Some(unmark) = unmark_import(import) {
        return vec![unmark];
    }
    let unfinished = UnfinishedImport::of(import).filter(|_| !import.is_deleting());
    let delete = unfinished.map(Action::DeleteDataVolume);
    delete.into_iter().collect()
}

/// Deletes a DataVolume without its claim.
pub(super) fn release(import: &DataVolume) -> Vec<Action> {
    if import.is_deleting() {
        return vec![];
    }
    let delete = Action::ReleaseClaim {
        name: import.name().to_owned(),
        uid: import.uid().to_owned(),
    };
    unmark_import(import).into_iter().chain([delete]).collect()
}
