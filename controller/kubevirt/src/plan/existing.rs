//! Disks on existing claims. Nothing here creates, changes or deletes such a claim.
//!
//! ```text
//! another Machine has the claim ─────────▶ ClaimInUse: the younger Machine waits
//! a pod or another guest uses it ────────▶ ClaimInUse: the guest is not started
//! it does not exist, or is being deleted ▶ ClaimNotFound, PVCDeleting: the guest is not started
//! ```
//! A guest that runs with the claim keeps it.

use common::api::normalized::{ExistingDisk, Normalized};
use common::catalog::ClaimUser;
use common::render::kubevirt::volumes;

use super::loss::deleted_in_use;
use super::observed::{ExistingClaim, Observed};
use super::release::keep;
use super::storage::Storage;
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// Reason of a disk on a claim that somebody else has.
pub(crate) const IN_USE: &str = "ClaimInUse";

/// Adds what is to be reported of the existing claims, and whether the guest may start.
pub(super) fn existing_disks(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    storage: &mut Storage,
) {
    for disk in &block.existing_disks {
        let Some(known) = observed.existing.get(disk.source()) else {
            continue;
        };
        // What a drive of the Machine has is adopted again, so releasing it would have no end.
        let is_medium = volumes(machine.name(), block).any(|it| it.claim == disk.source());
        if !is_medium {
            release(machine, known, storage);
        }
        let has_claim = guest_has(machine, disk.source(), observed);
        if let Some(fault) = fault(disk, known, observed, has_claim) {
            storage.holds_start |= !has_claim;
            storage.outcome.record_first(fault);
        } else if known
            .claim
            .as_ref()
            .is_some_and(|claim| claim.status.phase != "Bound")
        {
            storage.pending.push(disk.source().to_owned());
        }
    }
}

/// Whether the running guest of the Machine has a claim. The instance of another owner's VirtualMachine may have its name.
pub(crate) fn guest_has(machine: &Machine, claim: &str, observed: &Observed) -> bool {
    let instance = observed.instance.as_ref();
    instance.is_some_and(|it| it.machine() == Some(machine.name()) && it.uses(claim))
}

/// Releases a claim of a disk that left the spec before the claim was named as an existing one. From then on it is not
/// the Machine's.
fn release(machine: &Machine, known: &ExistingClaim, storage: &mut Storage) {
    let claim = known.claim.as_deref();
    let own = claim.filter(|claim| claim.belongs_to(machine.name(), machine.uid()));
    storage.actions.extend(own.into_iter().flat_map(keep));
}

fn fault(
    disk: &ExistingDisk,
    known: &ExistingClaim,
    observed: &Observed,
    has_claim: bool,
) -> Option<Fault> {
    let name = disk.source();
    let Some(claim) = &known.claim else {
        return Some(Fault::new(
            "ClaimNotFound",
            format!(
                "PersistentVolumeClaim {name} of disk '{}' not found: create or restore it, the Machine continues automatically then; the controller never creates a claim that claimName names",
                disk.name
            ),
        ));
    };
    if claim.is_deleting() {
        return Some(deleted_in_use(&disk.name, claim, observed).unwrap_or_else(|| {
            Fault::new(
                "PVCDeleting",
                format!(
                    "PersistentVolumeClaim {name} of disk '{}' is being deleted, so the guest is not started with it: restore the claim from a backup once it is gone, or name another one at a disk of another name",
                    disk.name
                ),
            )
        }));
    }
    if has_claim {
        return None;
    }
    if let Some(holder) = &known.holder {
        return Some(held_by(disk, holder));
    }
    let user = known.user.as_ref()?;
    Some(in_use(name, &disk.name, user))
}

/// The fault of a disk on a claim that another Machine has.
fn held_by(disk: &ExistingDisk, holder: &ClaimUser) -> Fault {
    let (claim, name, machine) = (disk.source(), &disk.name, &holder.machine);
    let whose = match &holder.own_disk {
        Some(own) => format!("is the volume of disk '{own}' of Machine '{machine}'"),
        None => format!("is also a disk of Machine '{machine}'"),
    };
    Fault::new(
        IN_USE,
        format!(
            "PersistentVolumeClaim {claim} of disk '{name}' {whose}: remove the disk from one of the two Machines, or, if the claim is ReadWriteMany, set shareable: true in both; the Machine continues automatically then"
        ),
    )
}

/// The fault of a disk on a claim that `user`, a kind and a name, uses.
pub(crate) fn in_use(claim: &str, disk: &str, user: &str) -> Fault {
    Fault::new(
        IN_USE,
        format!(
            "PersistentVolumeClaim {claim} of disk '{disk}' is used by {user}: two guests that write to one volume destroy its file system, so this one is not started; delete it, or set runStrategy: Halted for a VirtualMachine; the Machine continues automatically then"
        ),
    )
}
