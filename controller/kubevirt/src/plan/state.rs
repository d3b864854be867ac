//! The claim in which KubeVirt keeps EFI variables and the content of the TPM.
//!
//! KubeVirt makes it, and its VirtualMachine owns it. The Machine becomes another owner, so that it does not go with a
//! VirtualMachine that is deleted by hand. It is kept after the Machine if a disk of the Machine is kept: a disk that is
//! encrypted with a key of the TPM cannot be read without it. Such a claim has no owner from the start: a deletion in the
//! foreground lets the garbage collector delete what the Machine owns before the controller has seen it.
//!
//! ```text
//! VirtualMachine owns it ─┬▶ no disk is kept: and the Machine
//!                         └▶ a disk is kept: no owner ─▶ Machine deleted ─▶ guest gone ─▶ KubeVirt's label removed
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

    /// The changes of the claim as a strategic merge patch, without its uid and version.
    pub(crate) fn patch(&self) -> Value {
        self.patch.clone()
    }
}

/// Whether a claim has an owner whose deletion is that of the Machine: itself, or its VirtualMachine of this uid.
pub(crate) fn goes_with(claim: &Claim, machine: &Machine, vm: &str) -> bool {
    is_owned_by(claim, vm) || is_owned_by(claim, machine.uid())
}

fn is_owned_by(claim: &Claim, uid: &str) -> bool {
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
    observed.claims.values().any(|claim| {
        // Its disk left the spec.
        let is_released = claim.annotation(names::ANNOTATION_RETAINED_FROM) == Some(machine.uid());
        let is_ours = claim.belongs_to(machine.name(), machine.uid());
        is_released || (is_ours && DeletableClaim::of(machine, claim).is_none())
    })
}

/// Gives the claims the owners with which they go or stay as they have to when the Machine is deleted.
pub(super) fn set_owners(machine: &Machine, observed: &Observed) -> Vec<Action> {
    if is_kept(machine, observed) {
        remove_owners(machine, observed)
    } else {
        add_owner(machine, observed)
    }
}

/// Whether the controller has taken the owners off a claim of the Machine, or would.
pub(super) fn is_of(machine: &Machine, observed: &Observed, claim: &Claim) -> bool {
    let vm = own_vm(machine, observed);
    goes_with(claim, machine, vm.map_or("", VirtualMachine::uid))
        || has_no_owner_for(machine, claim)
}

fn has_no_owner_for(machine: &Machine, claim: &Claim) -> bool {
    claim.annotation(names::ANNOTATION_RETAINED_FROM) == Some(machine.uid())
}

/// Makes the Machine an owner of the claims that its VirtualMachine owns. The garbage collector deletes an object with
/// the last of its owners, so that they outlive a VirtualMachine that is deleted by hand. So do the claims that were kept
/// for a disk that the Machine no longer has. A claim that only has KubeVirt's label is not touched: somebody else may have
/// made it.
fn add_owner(machine: &Machine, observed: &Observed) -> Vec<Action> {
    let vm = own_vm(machine, observed);
    // Without the VirtualMachine nothing says any more that a claim of others was among the disks of the guest.
    if machine.is_deleting() && vm.is_none() {
        return vec![];
    }
    // What the VirtualMachine owns is deleted with it when the Machine is deleted.
    let vm = vm.filter(|_| !machine.is_deleting());
    let claims = observed.state_claims.iter();
    let claims = claims.filter(|claim| {
        let is_ours = vm.is_some_and(|vm| is_owned_by(claim, vm.uid()));
        (is_ours || has_no_owner_for(machine, claim))
            && !is_owned_by(claim, machine.uid())
            && !claim.is_deleting()
    });
    claims
        .filter_map(|claim| {
            let own = json!({
                "apiVersion": format!("{}/{}", names::GROUP, names::VERSION), "kind": "Machine",
                "name": machine.name(), "uid": machine.uid(),
            });
            keep(claim, &[own], None)
        })
        .collect()
}

/// Takes the ownership of the VirtualMachine and of the Machine off the claims.
fn remove_owners(machine: &Machine, observed: &Observed) -> Vec<Action> {
    let vm = own_vm(machine, observed);
    let goes_with = |uid: &str| uid == machine.uid() || vm.is_some_and(|vm| vm.uid() == uid);
    let claims = observed.state_claims.iter();
    claims
        .filter_map(|claim| {
            let owners = claim.metadata.owner_references.iter().flatten();
            let gone = owners.filter(|owner| goes_with(&owner.uid));
            let gone: Vec<_> = gone
                .map(|owner| json!({"$patch": "delete", "uid": owner.uid}))
                .collect();
            if gone.is_empty() {
                return None;
            }
            keep(claim, &gone, Some(machine.uid()))
        })
        .collect()
}

/// Changes some owners of a claim, and sets the annotation by which one without them is recognised. A strategic merge patch
/// finds them by uid and leaves the others, of which the claim that was read has not all.
fn keep(claim: &Claim, owners: &[Value], retained_from: Option<&str>) -> Option<Action> {
    let patch = json!({"metadata": {
        "ownerReferences": owners,
        "annotations": {names::ANNOTATION_RETAINED_FROM: retained_from},
    }});
    let exact = Exact::of(claim)?;
    Some(Action::KeepState(KeptState { exact, patch }))
}

fn own_vm<'a>(machine: &Machine, observed: &'a Observed) -> Option<&'a VirtualMachine> {
    let vm = observed.vm.as_deref();
    vm.filter(|vm| vm.belongs_to(machine.name(), machine.uid()))
}

/// Takes KubeVirt's label off the claims that were kept, once the guest is gone.
pub(super) fn remove_state_label(machine: &Machine, observed: &Observed) -> Vec<Action> {
    let kept = observed.state_claims.iter().filter(|claim| {
        has_no_owner_for(machine, claim) && claim.label(names::LABEL_STATE) == Some(machine.name())
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
