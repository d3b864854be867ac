//! The plan of a Machine that is not under deletion: protection → network → storage → Secret → VirtualMachine →
//! restart → growth → release of removed disks → status.

use std::time::Duration;

use super::action::{Action, Draft};
use super::existing::IN_USE;
use super::migration::migration;
use super::network::networks;
use super::observed::{Observed, POD_START_TIMEOUT};
use super::protection::protection;
use super::restart::{instance, restart};
use super::state;
use super::status::inputs::StatusInputs;
use super::status::report;
use super::storage::storage;
use super::vm::{SECRETS_RETRY, VmContext, guest};
use common::api::normalized::Normalized;
use common::api::status::{LastReset, MachineStatus};
use controller_core::backend::Act as _;
use controller_core::backend::Growth;
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::{Now, Refusal};
use controller_core::refusal::{Part, Reasons};
use controller_core::reset::reset;

/// Pause before it is looked again who uses an existing or adopted claim. Pods of others are not watched.
const CLAIM_RETRY: Duration = Duration::from_secs(30);

/// Reasons of what the API server refuses. KubeVirt has no condition for the screen.
const REASONS: Reasons = Reasons {
    network: "NetworkFailed",
    storage: "PVCPending",
    guest: "KubeVirtApiError",
    display: "KubeVirtApiError",
};

pub(crate) fn plan(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    refusal: Option<&Refusal>,
    growth: Growth<'_>,
    now: Now,
) -> Draft {
    let networks = networks(machine, block, observed);
    let storage = storage(machine, block, observed, growth);
    let mut restart = restart(machine, block, observed);
    let migration = migration(machine, block, observed, refusal);
    let (reset, reset_guest) = requested_reset(machine, observed, refusal);
    let refused = refusal.and_then(|refusal| REASONS.fault(refusal));
    let context = VmContext {
        networks: &networks,
        storage: &storage,
        restart: &restart,
        is_refused: refused.is_some(),
        growth,
    };
    let guest = guest(machine, block, observed, &context);
    if guest.changes_template {
        restart.replace_what_never_ran(machine, block, observed);
    }
    let mut inputs = StatusInputs {
        block: Some(block),
        network: networks.outcome,
        storage: storage.outcome,
        guest: guest.outcome,
        desired: guest.desired,
        import: storage.import,
        pending: storage.pending,
        sizes: storage.sizes,
        restart: restart.last,
        migration: migration.last,
        reset,
        foreign_stop: guest.foreign_stop,
        ..StatusInputs::default()
    };
    if let Some((part, fault)) = refused {
        let outcome = match part {
            // The guest is not started because somebody else uses a claim of it.
            _ if fault.reason() == IN_USE => &mut inputs.storage,
            Part::Network => &mut inputs.network,
            Part::Storage => &mut inputs.storage,
            Part::Guest | Part::Display => &mut inputs.guest,
        };
        outcome.record_first(fault);
    }
    let actions = protection(machine, observed)
        .into_iter()
        .chain(networks.actions)
        .chain(storage.actions)
        .chain(guest.actions)
        // The guest that replaces the one that runs would have the disks for which a start waits.
        .chain(restart.action.filter(|_| !storage.holds_start))
        .chain(storage.releases)
        .chain(state::set_owners(machine, observed))
        .chain(
            machine
                .has_discarded_state(false)
                .then_some(Action::RemoveDiscardConfirmation),
        )
        .chain(migration.action)
        // A quota may refuse it in every pass: nothing else waits for it.
        .chain(storage.growth)
        .chain(reset_guest)
        .collect();
    let retry = observed.secrets_error.as_ref().map(|_| SECRETS_RETRY);
    let is_used = !observed.adopted_users.is_empty()
        || observed.existing.values().any(|claim| claim.user.is_some());
    let retry = retry.or(is_used.then_some(CLAIM_RETRY));
    let awaits_pod = observed.awaits_pod(machine).is_some();
    let draft = Draft {
        actions,
        status: None,
        requeue_after: retry.or(awaits_pod.then_some(POD_START_TIMEOUT)),
    };
    // What is not carried out while the Machine is paused or after a refusal is not reported as done.
    let goes_on = |action: &&Action| {
        !machine.is_paused() && refusal.is_none_or(|it| action.goes_on_after(it.subject))
    };
    let done: Vec<_> = draft.actions.iter().filter(goes_on).cloned().collect();
    let status = report(machine, observed, now, &inputs, &done);
    Draft {
        status: Some(status),
        ..draft
    }
}

/// The status of a Machine without a block to act on.
pub(crate) fn report_unfit(
    machine: &Machine,
    observed: &Observed,
    unfit: Fault,
    now: Now,
) -> MachineStatus {
    let inputs = StatusInputs {
        unfit: Some(unfit),
        ..StatusInputs::default()
    };
    report(machine, observed, now, &inputs, &[])
}

/// The status of the last requested reset, and the action of a new request.
fn requested_reset(
    machine: &Machine,
    observed: &Observed,
    refusal: Option<&Refusal>,
) -> (Option<LastReset>, Option<Action>) {
    let guest = instance(machine, observed).filter(|instance| instance.runs());
    let reset = reset(machine, guest.is_some(), refusal);
    let action = guest
        .filter(|_| reset.is_due)
        .map(|guest| Action::ResetGuest {
            uid: guest.uid().to_owned(),
        });
    (reset.last, action)
}
