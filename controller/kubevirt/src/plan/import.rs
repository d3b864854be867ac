//! Images: DataVolumes of CDI, and when a claim is free of its own.
//!
//! ```text
//! no claim ─▶ DataVolume ─▶ claim of CDI's ──────────────────────▶ image is in it ─▶ released
//!                             └─ waits for a node: the VirtualMachine is made meanwhile
//! ```
//! CDI's claim is owned by its DataVolume and would go with it, whoever deletes that. So as soon as the
//! image is there the DataVolume is deleted and the claim stays: from then on it is a claim like all
//! others, with its policy, its growth, its return to a Machine of the name. Until then it is nobody's
//! disk: what an import leaves half done is not kept, and never taken for a disk.

use common::render::kubevirt::{Volume, data_volume, is_unverifiable};

use super::storage::{Found, in_use, is_left_over};
use super::{Action, Observed};
use crate::objects::Claim;
use crate::objects::data_volume::DataVolume;
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// The reason of an import that CDI tries again.
pub(super) const FAILED: &str = "ImageImportFailed";

/// What a claim has to do with an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing, or nothing any more.
    Over,
    /// It begins when the guest is given a node.
    WaitsForGuest,
    /// There is no whole image in it.
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
        // It goes with a DataVolume that is gone.
        (Some(_), _) => Stage::Underway,
    }
}

/// Makes the DataVolume of a volume that has none and no claim either.
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
        // A blank disk in place of the image would boot nothing and look as if it had.
        return Err(Fault::new(
            "ImageImportUnavailable",
            format!(
                "'{}' has an image, and CDI, which imports it, is not installed: install CDI, the Machine goes on by itself then; or fill a volume yourself and name it in volumeName",
                disk.name
            ),
        ));
    }
    let wish = data_volume(&machine.identity(&observed.cluster), volume);
    Ok(Found {
        actions: wish.map(Action::CreateDataVolume).into_iter().collect(),
        import: Some(underway(volume, None, observed)),
        ..Found::default()
    })
}

/// What is told of an import that is not over.
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
                "PersistentVolumeClaim '{source}', which '{}' is a clone of, not found: create it; CDI goes on by itself when it appears",
                disk.name
            ),
        );
    }
    let says = import.and_then(DataVolume::message);
    if let Some(says) = says.filter(|_| import.is_some_and(DataVolume::is_failing)) {
        return Fault::new(
            FAILED,
            format!(
                "the image of '{}' cannot be imported, CDI tries again: {says}",
                disk.name
            ),
        );
    }
    let says = says.map_or_else(String::new, |says| format!("; CDI says: {says}"));
    Fault::new(
        "ImageImporting",
        format!(
            "the image of '{}' is being imported into PersistentVolumeClaim {claim}{says}",
            disk.name
        ),
    )
}

/// An import that does not end by itself.
pub(super) fn given_up(volume: &Volume<'_>, import: &DataVolume) -> Option<Fault> {
    import.has_failed().then(|| {
        let says = import.message().unwrap_or("it does not say why");
        Fault::new(
            FAILED,
            format!(
                "CDI has given up importing the image of '{}' ({says}): delete DataVolume {}, and it begins anew",
                volume.disk.name, volume.claim
            ),
        )
    })
}

/// A DataVolume of the name that was not made for this Machine. One that a former Machine of the name
/// left is in the way until it is gone; anybody else's is not touched.
pub(super) fn foreign(
    machine: &Machine,
    volume: &Volume<'_>,
    import: &DataVolume,
    observed: &Observed,
) -> Result<Found, Fault> {
    if !is_left_over(import, machine, &volume.disk, observed) {
        return Err(Fault::new(
            "NameConflict",
            format!(
                "DataVolume '{}' exists and was not made for this Machine: rename '{}', or delete or rename that DataVolume; it is left untouched",
                volume.claim, volume.disk.name
            ),
        ));
    }
    let end = end(import).filter(|_| !in_use(&volume.claim, observed));
    let confirm = end.as_ref().map(|_| Action::ConfirmUnused {
        claim: Some(volume.claim.clone()),
    });
    Ok(Found {
        actions: confirm.into_iter().chain(end).collect(),
        import: Some(underway(volume, None, observed)),
        ..Found::default()
    })
}

/// Ends a DataVolume: what it has finished stays, what it has not goes with it.
pub(super) fn end(import: &DataVolume) -> Option<Action> {
    if import.is_finished() {
        return release(import);
    }
    (!import.is_deleting()).then(|| Action::DeleteDataVolume {
        name: import.name().to_owned(),
        uid: import.uid().to_owned(),
        // Should it have come to its end in between, it is looked at again.
        version: import.metadata.resource_version.clone(),
    })
}

/// Deletes a DataVolume without its claim.
pub(super) fn release(import: &DataVolume) -> Option<Action> {
    (!import.is_deleting()).then(|| Action::ReleaseClaim {
        name: import.name().to_owned(),
        uid: import.uid().to_owned(),
    })
}
