//! The disks of a Machine: a claim each, made, adopted, grown, and let go.

use std::collections::BTreeSet;

use common::api::choice::Choice as _;
use common::api::normalized::{Normalized, NormalizedDisk};
use common::names;
use common::render::kubevirt::claim as render;

use super::delete::farewell;
use super::status::{Fault, Outcome};
use super::{Action, ClaimPatch, Observed};
use crate::machine::Machine;
use crate::objects::{Claim, Meta as _};

/// What is to be done about the disks.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub(super) actions: Vec<Action>,
    /// Sizes to grow. The storage may refuse, and nothing else depends on it.
    pub(super) growth: Vec<Action>,
    /// What can only be done once the VirtualMachine is as it should be.
    pub(super) farewells: Vec<Action>,
    /// Whether the VirtualMachine has the claims it names.
    pub(super) outcome: Outcome,
    /// Names of the claims that are not bound yet.
    pub(super) pending: Vec<String>,
}

pub(super) fn storage(machine: &Machine, block: &Normalized, observed: &Observed) -> Storage {
    let mut storage = Storage::default();
    let imported: Vec<_> = block
        .disks
        .iter()
        .filter(|disk| disk.image.is_some())
        .map(|disk| &disk.name)
        .chain(
            block
                .cdroms
                .iter()
                .filter(|cdrom| cdrom.image.is_some())
                .map(|cdrom| &cdrom.name),
        )
        .map(|name| format!("'{name}'"))
        .collect();
    if !imported.is_empty() {
        // A blank disk in place of the image would boot nothing and look as if it had.
        storage.outcome.worsen(Fault::new(
            "ImageImportUnavailable",
            format!(
                "images are not imported on KubeVirt yet, and {} has one: remove the image, or fill an existing volume and name it in volumeName",
                imported.join(", ")
            ),
        ));
        return storage;
    }
    for disk in &block.disks {
        match provide(machine, disk, observed) {
            Ok(found) => {
                storage.actions.extend(found.action);
                storage.growth.extend(found.growth);
                if !found.bound {
                    storage
                        .pending
                        .push(names::claim(machine.name(), &disk.name));
                }
            }
            Err(fault) => storage.outcome.worsen(fault),
        }
    }
    storage.farewells = farewells(machine, block, observed);
    storage
}

struct Found {
    action: Option<Action>,
    growth: Option<Action>,
    bound: bool,
}

fn provide(machine: &Machine, disk: &NormalizedDisk, observed: &Observed) -> Result<Found, Fault> {
    let name = names::claim(machine.name(), &disk.name);
    let Some(claim) = observed.claims.get(&name) else {
        if !disk.storage_class.is_empty() && !observed.classes.contains(&disk.storage_class) {
            return Err(Fault::new(
                "StorageClassNotFound",
                format!(
                    "StorageClass '{}' of disk '{}' not found: create it; the Machine goes on by itself when it appears",
                    disk.storage_class, disk.name
                ),
            ));
        }
        let wish = render(&machine.identity(&observed.cluster), disk);
        return Ok(Found {
            action: Some(Action::CreateClaim(wish)),
            growth: None,
            bound: false,
        });
    };
    let bound = claim.status.phase == "Bound";
    if claim.is_deleting() {
        return Ok(Found {
            action: None,
            growth: None,
            bound: false,
        });
    }
    if !claim.belongs_to(machine.name(), machine.uid())
        && !adoptable(machine, disk, claim, observed)
    {
        return Err(conflict(machine, &name, disk, claim));
    }
    Ok(Found {
        action: mark(machine, disk, claim).map(Action::PatchClaim),
        growth: grow(disk, claim).map(Action::PatchClaim),
        bound,
    })
}

/// A claim that was made for a Machine and a disk of these names, and that no living Machine has.
fn adoptable(machine: &Machine, disk: &NormalizedDisk, claim: &Claim, observed: &Observed) -> bool {
    let named = claim.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
        && claim.machine() == Some(machine.name())
        && claim.label(names::LABEL_DISK) == Some(disk.name.as_str());
    let free = claim
        .machine_uid()
        .is_none_or(|uid| !observed.living.contains(uid));
    named && free && fits(disk, claim)
}

/// Whether a claim can be what the disk wishes: everything but the size is immutable, and a size
/// cannot shrink.
fn fits(disk: &NormalizedDisk, claim: &Claim) -> bool {
    let spec = &claim.spec;
    spec.storage_class_name.as_deref() == Some(disk.storage_class.as_str())
        && spec.volume_mode.as_deref().unwrap_or("Filesystem") == disk.volume_mode.as_str()
        && spec.access_modes == [disk.access_mode.as_str()]
        && spec
            .resources
            .requests
            .storage
            .is_some_and(|size| size <= disk.size)
}

fn conflict(machine: &Machine, name: &str, disk: &NormalizedDisk, claim: &Claim) -> Fault {
    let ours = claim.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY);
    let why = match claim.machine().filter(|_| ours) {
        Some(owner) if owner == machine.name() => {
            "was kept from another Machine of this name and differs in class, mode or size"
                .to_owned()
        }
        Some(owner) => format!(
            "belongs to disk '{}' of Machine '{owner}'",
            claim.label(names::LABEL_DISK).unwrap_or_default()
        ),
        None => "exists and was not made for a Machine".to_owned(),
    };
    Fault::new(
        "NameConflict",
        format!(
            "PersistentVolumeClaim '{name}' {why}: rename disk '{}', or delete or rename that claim; it is left untouched",
            disk.name
        ),
    )
}

/// Marks that a claim of ours lacks.
fn mark(machine: &Machine, disk: &NormalizedDisk, claim: &Claim) -> Option<ClaimPatch> {
    let mut patch = patch_of(claim);
    let wished = [
        (names::ANNOTATION_MACHINE_UID, machine.uid()),
        (
            names::ANNOTATION_RECLAIM_POLICY,
            disk.reclaim_policy.as_str(),
        ),
    ];
    for (key, value) in wished {
        if claim.annotation(key) != Some(value) {
            patch.annotations.insert(key, Some(value.to_owned()));
        }
    }
    if claim.annotation(names::ANNOTATION_RETAINED_FROM).is_some() {
        patch
            .annotations
            .insert(names::ANNOTATION_RETAINED_FROM, None);
    }
    (!patch.annotations.is_empty()).then_some(patch)
}

/// The size that a claim lacks. Kubernetes grows only one that is bound.
fn grow(disk: &NormalizedDisk, claim: &Claim) -> Option<ClaimPatch> {
    let size = claim.spec.resources.requests.storage?;
    (size < disk.size && claim.status.phase == "Bound").then(|| ClaimPatch {
        storage: Some(disk.size.to_string()),
        ..patch_of(claim)
    })
}

fn patch_of(claim: &Claim) -> ClaimPatch {
    ClaimPatch {
        name: claim.name().to_owned(),
        uid: claim.uid().to_owned(),
        ..ClaimPatch::default()
    }
}

/// Claims of disks that are no longer wished, once neither the VirtualMachine nor the guest has them.
fn farewells(machine: &Machine, block: &Normalized, observed: &Observed) -> Vec<Action> {
    let wished: BTreeSet<_> = block
        .disks
        .iter()
        .map(|disk| disk.name.as_str())
        .chain(block.cdroms.iter().map(|cdrom| cdrom.name.as_str()))
        .map(|disk| names::claim(machine.name(), disk))
        .collect();
    observed
        .claims
        .values()
        .filter(|claim| claim.belongs_to(machine.name(), machine.uid()))
        .filter(|claim| !wished.contains(claim.name()) && !in_use(claim.name(), observed))
        .filter_map(|claim| Some((claim.name(), farewell(claim)?)))
        .flat_map(|(name, action)| {
            let confirm = Action::ConfirmUnused {
                claim: Some(name.to_owned()),
            };
            [confirm, action]
        })
        .collect()
}

fn in_use(claim: &str, observed: &Observed) -> bool {
    let (vm, instance) = (&observed.vm, &observed.instance);
    vm.as_ref().is_some_and(|vm| vm.uses(claim))
        || instance
            .as_ref()
            .is_some_and(|instance| instance.uses(claim))
}
