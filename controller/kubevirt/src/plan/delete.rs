//! The deletion of a Machine, in an order that loses no disk:
//!
//! ```text
//! protection removed ─▶ state kept ─▶ VirtualMachine deleted ─▶ it and its instance observed as gone ─▶ claims by reclaim policy ─▶ finalizer
//! ```
//!
//! Labels and uid say which objects are the Machine's, and an annotation of each claim says its reclaim policy. So a
//! Machine can always be deleted, however broken its spec is and whatever is missing in the cluster. The block is read
//! for one thing only: the claim of a disk that is not in it is kept, even if the guest still had that disk.

use std::collections::BTreeSet;
use std::time::Duration;

use super::action::Action;
use super::observed::Observed;
use super::protection::unprotect;
use super::release::release_volume;
use super::{state, status};
use controller_core::deletion::{Stage, Teardown};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

/// Pause before the claims with the state of a guest are read again. No event reports that they can be read now.
const STATE_CLAIMS_RETRY: Duration = Duration::from_secs(10);

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
    let marked = unprotect(machine, observed);
    if !marked.is_empty() {
        let message =
            "the label of the Machine's deletionProtection is being removed from its objects";
        return waiting(message.to_owned(), marked);
    }
    if let Some(error) = &observed.state_claims_error {
        let message = format!(
            "the claims with EFI variables and TPM of the guest cannot be read, and one of them might go with it: {error}; the controller tries again every {} s",
            STATE_CLAIMS_RETRY.as_secs()
        );
        return Teardown {
            status,
            stage: Stage::Waiting {
                message,
                actions: vec![],
                requeue_after: Some(STATE_CLAIMS_RETRY),
            },
        };
    }
    let keeps_state = state::is_kept(machine, observed);
    let owners = state::set_owners(machine, observed);
    if !owners.is_empty() {
        let message = if keeps_state {
            "the claim with EFI variables and TPM loses its owners, because a disk is kept"
        } else {
            "the claim with EFI variables and TPM gets the Machine as its owner, because no disk is kept"
        };
        return waiting(message.to_owned(), owners);
    }
    let vm = observed.vm.as_ref().filter(|vm| vm.belongs_to(name, uid));
    if let Some(vm) = vm {
        let delete = (!vm.is_deleting()).then(|| Action::DeleteVm {
            uid: vm.uid().to_owned(),
            keeps_state,
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
    let mut actions = vec![Action::ConfirmGuestGone];
    actions.extend(state::remove_state_label(machine, observed));
    actions.extend(
        known
            .into_iter()
            .filter(|name| !observed.existing.contains_key(*name))
            .flat_map(|name| release_volume(machine, name, observed)),
    );
    Teardown {
        status,
        stage: Stage::Release(actions),
    }
}
