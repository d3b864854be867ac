//! The label that keeps the objects of a protected Machine from being deleted.
//!
//! A ValidatingAdmissionPolicy refuses to delete what has the label: the deletion of a namespace, of an owner or by
//! hand then takes neither guest nor disks. The same holds for this controller. So whatever it deletes itself loses the
//! label first.

use common::names;
use controller_core::machine::Machine;
use controller_core::objects::Meta;

use super::action::{Action, ProtectedKind, Protection};
use super::observed::Observed;
use super::state;
use crate::objects::{Claim, DataVolume};

/// Whether an object has the label.
pub(super) fn is_marked(object: &impl Meta) -> bool {
    object.label(names::LABEL_DELETION_PROTECTION) == Some("true")
}

/// The action that sets or removes the label of an object.
fn set(object: &impl Meta, kind: ProtectedKind, is_protected: bool) -> Action {
    Action::SetProtection(Protection {
        kind,
        name: object.name().to_owned(),
        uid: object.uid().to_owned(),
        is_protected,
    })
}

/// Removes the label of a claim, if it has it.
pub(super) fn unmark_claim(claim: &Claim) -> Option<Action> {
    is_marked(claim).then(|| set(claim, ProtectedKind::Claim, false))
}

/// Removes the label of a DataVolume, if it has it.
pub(super) fn unmark_import(import: &DataVolume) -> Option<Action> {
    is_marked(import).then(|| set(import, ProtectedKind::DataVolume, false))
}

/// The actions after which every object of the Machine has the label, or none has it.
///
/// Protected are the claims of disks, the imports into them, and the claim with EFI variables and TPM: a medium can be
/// imported again. A claim that is still being imported into is deleted with its DataVolume, so that has the label in its
/// place.
pub(super) fn protection(machine: &Machine, observed: &Observed) -> Vec<Action> {
    if !machine.is_protected {
        return unprotect(machine, observed);
    }
    let block = machine.desired().into_iter();
    let disks: Vec<_> = block
        .flat_map(|block| &block.disks)
        .map(|disk| names::claim(machine.name(), &disk.name))
        .collect();
    let owned = Owned { machine, observed };
    let claims = owned.claims().filter(|claim| claim.data_volume().is_none());
    let claims = claims.filter(|claim| disks.iter().any(|name| name == claim.name()));
    let imports = owned.imports().filter(|import| !import.is_finished());
    let imports = imports.filter(|import| disks.iter().any(|name| name == import.name()));
    owned
        .of_guest(false)
        .chain(unlike(claims, ProtectedKind::Claim, false))
        .chain(unlike(owned.states(), ProtectedKind::Claim, false))
        .chain(unlike(imports, ProtectedKind::DataVolume, false))
        .collect()
}

/// The actions after which no object of the Machine has the label.
pub(super) fn unprotect(machine: &Machine, observed: &Observed) -> Vec<Action> {
    let owned = Owned { machine, observed };
    owned
        .of_guest(true)
        .chain(unlike(owned.claims(), ProtectedKind::Claim, true))
        .chain(unlike(owned.states(), ProtectedKind::Claim, true))
        .chain(unlike(owned.imports(), ProtectedKind::DataVolume, true))
        .collect()
}

/// Sets the label of the objects that lack it, or removes it from those that have it.
fn unlike<'a, K: Meta + 'a>(
    objects: impl Iterator<Item = &'a K>,
    kind: ProtectedKind,
    marked: bool,
) -> impl Iterator<Item = Action> {
    objects
        .filter(move |object| is_marked(*object) == marked && !object.is_deleting())
        .map(move |object| set(object, kind, !marked))
}

/// The objects that were made for a Machine.
struct Owned<'a> {
    machine: &'a Machine,
    observed: &'a Observed,
}

impl<'a> Owned<'a> {
    fn is_ours(&self, object: &impl Meta) -> bool {
        object.belongs_to(self.machine.name(), self.machine.uid())
    }

    fn claims(&self) -> impl Iterator<Item = &'a Claim> {
        let all = self.observed.claims.values().map(AsRef::as_ref);
        all.filter(|claim| self.is_ours(*claim))
    }

    /// The claims in which KubeVirt keeps EFI variables and the content of the TPM.
    fn states(&self) -> impl Iterator<Item = &'a Claim> {
        let all = self.observed.state_claims.iter();
        all.filter(|claim| state::is_of(self.machine, self.observed, claim))
    }

    fn imports(&self) -> impl Iterator<Item = &'a DataVolume> {
        let all = self.observed.data_volumes.values().map(AsRef::as_ref);
        all.filter(|import| self.is_ours(*import))
    }

    /// VirtualMachine and Secret whose label is to be the other way round.
    fn of_guest(&self, marked: bool) -> impl Iterator<Item = Action> {
        let vm = self.observed.vm.as_deref().filter(|vm| self.is_ours(*vm));
        let secret = self.observed.secret.as_deref();
        let secret = secret.filter(|secret| self.is_ours(*secret));
        let vm = unlike(vm.into_iter(), ProtectedKind::VirtualMachine, marked);
        vm.chain(unlike(secret.into_iter(), ProtectedKind::Secret, marked))
    }
}
