//! The claim in which KubeVirt keeps EFI variables and the content of the TPM.
//!
//! KubeVirt makes it, its VirtualMachine owns it, and it goes with that. It is kept if a disk of the Machine is kept: a
//! disk that is encrypted with a key of the TPM cannot be read without it.
//!
//! ```text
//! VirtualMachine owns it ─▶ owner removed ─▶ VirtualMachine deleted ─▶ guest gone ─▶ KubeVirt's label removed
//! ```
//! The label stays as long as the guest may run, because KubeVirt makes another claim for a guest without one. It goes
//! afterwards, because KubeVirt gives a labelled claim to any later VirtualMachine of the name, and deletes it if that
//! one keeps no state (`handleBackendStorage` in `pkg/virt-controller/watch/vmi`, v1.5).

use common::names;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use serde_json::{Value, json};

use super::action::{Action, DeletableClaim, Exact};
use super::observed::Observed;
use crate::objects::{Claim, VirtualMachine};

/// A claim with state that is kept, in the version that was observed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeptState {
    exact: Exact,
    patch: Value,
}

impl KeptState {
    pub(crate) fn exact(&self) -> &Exact {
        &self.exact
    }

    /// The changes of the claim, without its uid and version.
    pub(crate) fn patch(&self) -> Value {
        self.patch.clone()
    }
}

/// Whether the garbage collector deletes a claim with the object of this uid.
pub(crate) fn is_owned_by(claim: &Claim, uid: &str) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.uid == uid)
}

/// Whether the state of the Machine's guest is kept when the Machine is deleted: if a disk of it is. An existing claim
/// always is, whether the block or the guest has it.
pub(super) fn is_kept(machine: &Machine, observed: &Observed) -> bool {
    let block = machine.desired();
    if block.is_some_and(|block| !block.existing_disks.is_empty()) {
        return true;
    }
    let volumes = observed.vm.iter();
    let volumes = volumes.flat_map(|vm| &vm.spec.template.spec.volumes);
    let mut named = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let is_own = |name: &str| {
        let claim = observed.claims.get(name);
        claim.is_some_and(|claim| claim.belongs_to(machine.name(), machine.uid()))
    };
    if named.any(|claim| !is_own(&claim.claim_name)) {
        return true;
    }
    let claims = observed.claims.values();
    let mut ours = claims.filter(|claim| claim.belongs_to(machine.name(), machine.uid()));
    ours.any(|claim| DeletableClaim::of(machine, claim).is_none())
}

/// Takes the VirtualMachine's ownership off the claims.
pub(super) fn disown(machine: &Machine, vm: &VirtualMachine, observed: &Observed) -> Vec<Action> {
    let owned = observed.state_claims.iter();
    let owned = owned.filter(|claim| is_owned_by(claim, vm.uid()));
    owned
        .filter_map(|claim| {
            let owners = claim.metadata.owner_references.iter().flatten();
            let others: Vec<_> = owners.filter(|owner| owner.uid != vm.uid()).collect();
            let patch = json!({"metadata": {
                "ownerReferences": others,
                "annotations": {names::ANNOTATION_RETAINED_FROM: machine.uid()},
            }});
            let exact = Exact::of(claim)?;
            Some(Action::KeepState(KeptState { exact, patch }))
        })
        .collect()
}

/// Takes KubeVirt's label off the claims that were kept, once the guest is gone.
pub(super) fn set_aside(machine: &Machine, observed: &Observed) -> Vec<Action> {
    let kept = observed.state_claims.iter().filter(|claim| {
        let from = claim.annotation(names::ANNOTATION_RETAINED_FROM);
        from == Some(machine.uid()) && claim.label(names::LABEL_STATE) == Some(machine.name())
    });
    kept.filter_map(|claim| {
        let patch = json!({"metadata": {"labels": {
            names::LABEL_STATE: null,
            names::LABEL_RETAINED_STATE: machine.name(),
        }}});
        let exact = Exact::of(claim)?;
        Some(Action::KeepState(KeptState { exact, patch }))
    })
    .collect()
}
