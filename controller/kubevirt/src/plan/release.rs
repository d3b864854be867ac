//! What becomes of a volume whose disk or Machine is gone, by its reclaim policy.

use common::names;
use controller_core::deletion::deletes;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

use super::action::{Action, ClaimPatch};
use super::import;
use super::observed::Observed;
use crate::objects::Claim;

/// What becomes of a volume whose disk or Machine is gone: first of its import, which would make the
/// claim anew.
pub(super) fn farewell(machine: &Machine, name: &str, observed: &Observed) -> Vec<Action> {
    let (owner, uid) = (machine.name(), machine.uid());
    let import = observed.data_volumes.get(name);
    let import = import.filter(|import| import.belongs_to(owner, uid));
    let claim = observed.claims.get(name);
    let claim = claim.filter(|claim| claim.belongs_to(owner, uid));
    let claim = claim.filter(|claim| {
        // What an import has not finished is no disk, and goes with it.
        let unfinished = import.filter(|import| !import.is_finished());
        unfinished.is_none_or(|import| claim.data_volume() != Some(import.uid()))
    });
    let ended = import.and_then(|import| import::end(import));
    ended
        .into_iter()
        .chain(claim.and_then(|claim| let_go(claim)))
        .collect()
}

/// Deletes a claim or keeps it, by its reclaim policy.
fn let_go(claim: &Claim) -> Option<Action> {
    let uid = claim.uid().to_owned();
    let name = claim.name().to_owned();
    if claim.is_deleting() {
        return None;
    }
    if deletes(claim.annotation(names::ANNOTATION_RECLAIM_POLICY)) {
        let version = claim.metadata.resource_version.clone();
        return Some(Action::DeleteClaim { name, uid, version });
    }
    Some(Action::PatchClaim(ClaimPatch {
        name,
        uid,
        annotations: [
            (names::ANNOTATION_MACHINE_UID, None),
            (
                names::ANNOTATION_RETAINED_FROM,
                claim.machine_uid().map(ToOwned::to_owned),
            ),
        ]
        .into(),
        storage: None,
    }))
}
