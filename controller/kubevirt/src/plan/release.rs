//! What becomes of a volume that its Machine no longer has: the claim of a disk that left the spec is kept; with the
//! Machine itself a claim is deleted or kept by its reclaim policy.

use common::names;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::action::{Action, ClaimPatch, DeletableClaim};
use super::import;
use super::observed::Observed;
use super::protection::unmark_claim;
use super::volume::in_use;
use crate::objects::Claim;

/// First the import of the volume ends, which would recreate the claim; then the claim is deleted or kept.
///
/// A claim that another owner's VirtualMachine has as a disk is kept, whatever its policy is: after a restore from
/// a backup it may be the disk of a running guest.
pub(super) fn release_volume(machine: &Machine, name: &str, observed: &Observed) -> Vec<Action> {
    let (owner, uid) = (machine.name(), machine.uid());
    let import = observed.data_volumes.get(name);
    let import = import.filter(|import| import.belongs_to(owner, uid));
    let claim = observed.claims.get(name);
    let claim = claim.filter(|claim| claim.belongs_to(owner, uid));
    if in_use(name, observed) {
        let finished = import.filter(|import| import.is_finished());
        let mut actions = finished.map_or_else(Vec::new, |import| import::release(import));
        actions.extend(claim.into_iter().flat_map(|claim| keep(claim)));
        return actions;
    }
    let unfinished = import.filter(|import| !import.is_finished());
    let mut actions = import.map_or_else(Vec::new, |import| import::end(import));
    let Some(claim) = claim else { return actions };
    if unfinished.is_some_and(|import| claim.data_volume() == Some(import.uid())) {
        // The claim of an unfinished import is no disk; it is deleted with the DataVolume.
        actions.extend(unmark_claim(claim));
    } else {
        actions.extend(delete_or_keep(machine, claim));
    }
    actions
}

/// Deletes a claim or keeps it.
fn delete_or_keep(machine: &Machine, claim: &Claim) -> Vec<Action> {
    match DeletableClaim::of(machine, claim) {
        Some(_) if claim.is_deleting() => vec![],
        Some(deletable) => vec![Action::DeleteClaim(deletable)],
        None => keep(claim),
    }
}

/// Keeps a claim for the next Machine of the name. It is no longer protected: its user decides about it.
pub(super) fn keep(claim: &Claim) -> Vec<Action> {
    if claim.is_deleting() {
        return vec![];
    }
    let former = claim.machine_uid().map(ToOwned::to_owned);
    let release = Action::PatchClaim(ClaimPatch {
        name: claim.name().to_owned(),
        uid: claim.uid().to_owned(),
        annotations: [
            (names::ANNOTATION_MACHINE_UID, None),
            (names::ANNOTATION_RETAINED_FROM, former),
        ]
        .into(),
        storage: None,
    });
    unmark_claim(claim).into_iter().chain([release]).collect()
}
