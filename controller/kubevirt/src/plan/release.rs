//! What becomes of a volume whose disk or Machine is gone, by its reclaim policy.

use common::names;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::action::{Action, ClaimPatch, DeletableClaim};
use super::import;
use super::observed::Observed;
use super::volume::in_use;
use crate::objects::Claim;

/// First the import of the volume ends, which would make the claim anew; then the claim is deleted or kept.
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
        let released = finished.and_then(|import| import::release(import));
        return released
            .into_iter()
            .chain(claim.and_then(|claim| keep(claim)))
            .collect();
    }
    let claim = claim.filter(|claim| {
        // The claim of an unfinished import is no disk; it is deleted with the DataVolume.
        let unfinished = import.filter(|import| !import.is_finished());
        unfinished.is_none_or(|import| claim.data_volume() != Some(import.uid()))
    });
    let ended = import.and_then(|import| import::end(import));
    ended
        .into_iter()
        .chain(claim.and_then(|claim| delete_or_keep(machine, claim)))
        .collect()
}

/// Deletes a claim or keeps it, by its reclaim policy.
fn delete_or_keep(machine: &Machine, claim: &Claim) -> Option<Action> {
    match DeletableClaim::of(machine, claim) {
        Some(deletable) => (!claim.is_deleting()).then_some(Action::DeleteClaim(deletable)),
        None => keep(claim),
    }
}

/// Keeps a claim for the next Machine of the name.
fn keep(claim: &Claim) -> Option<Action> {
    let former = claim.machine_uid().map(ToOwned::to_owned);
    (!claim.is_deleting()).then(|| {
        Action::PatchClaim(ClaimPatch {
            name: claim.name().to_owned(),
            uid: claim.uid().to_owned(),
            annotations: [
                (names::ANNOTATION_MACHINE_UID, None),
                (names::ANNOTATION_RETAINED_FROM, former),
            ]
            .into(),
            storage: None,
        })
    })
}
