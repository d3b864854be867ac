//! The end of a Machine, in an order that loses no disk: VirtualMachine → VirtualMachine and
//! instance observed gone → claims by policy → finalizer.
//!
//! Reads no block: what a Machine has is told by labels and uid, and what becomes of a claim by its
//! own annotation. So a Machine can always be deleted, however broken its spec is, and whatever is
//! missing in the cluster.

use std::collections::BTreeSet;

use common::names;

use super::{Action, ClaimPatch, Observed, import, status};
use crate::objects::Claim;
use controller_core::deletion::{Stage, Teardown, deletes};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

pub(crate) fn teardown(machine: &Machine, observed: &Observed) -> Teardown<Action> {
    let (name, uid) = (machine.name(), machine.uid());
    let status = status::under_deletion(machine, observed);
    let waiting = |message: String, actions| Teardown {
        status: status.clone(),
        stage: Stage::Waiting {
            message,
            actions,
            requeue_after: None,
        },
    };
    let vm = observed.vm.as_ref().filter(|vm| vm.belongs_to(name, uid));
    if let Some(vm) = vm {
        let delete = (!vm.is_deleting()).then(|| Action::DeleteVm {
            uid: vm.uid().to_owned(),
        });
        let message = format!("VirtualMachine {name} is being shut down and deleted");
        return waiting(message, delete.into_iter().collect());
    }
    // An instance carries the labels of its template, not the uid. With a VirtualMachine that is
    // not ours, it is not ours either.
    let instance = observed.instance.as_ref();
    if observed.vm.is_none() && instance.is_some_and(|instance| instance.machine() == Some(name)) {
        let message = format!("the guest of VirtualMachine {name} is shutting down");
        return waiting(message, vec![]);
    }

    let known: BTreeSet<_> = observed
        .claims
        .keys()
        .chain(observed.data_volumes.keys())
        .collect();
    let mut actions = vec![Action::ConfirmUnused { claim: None }];
    actions.extend(
        known
            .into_iter()
            .flat_map(|name| farewell(machine, name, observed)),
    );
    Teardown {
        status,
        stage: Stage::Release(actions),
    }
}

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
