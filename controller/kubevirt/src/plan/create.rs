//! The plan of a Machine that is not under deletion: protection → networks → storage → Secret and VirtualMachine →
//! restart → releases of removed disks → owners of the kept state → answer to a discard → migration → growth → reset →
//! status.

use std::time::Duration;

use super::action::{Action, Draft};
use super::existing::IN_USE;
use super::migration::migration;
use super::network::networks;
use super::observed::{Observed, POD_START_TIMEOUT};
use super::protection::protection;
use super::restart::{Restart, instance, restart};
use super::state;
use super::status::inputs::StatusInputs;
use super::status::report;
use super::storage::storage;
use super::vm::{SECRETS_RETRY, VmContext, guest};
use common::api::choice::PowerState;
use common::api::normalized::Normalized;
use common::api::status::{LastReset, MachineStatus};
use controller_core::backend::Act as _;
use controller_core::backend::Growth;
use controller_core::conditions::Fault;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::plan::{Now, Refusal};
use controller_core::refusal::{Part, Reasons};
use controller_core::reset::{PowerPlan, reset};

/// Pause before it is looked again who uses an existing or adopted claim. Pods of others are not watched.
const CLAIM_RETRY: Duration = Duration::from_secs(30);

/// Reasons of what the API server refuses. KubeVirt has no condition for the screen.
pub(crate) const REASONS: Reasons = Reasons {
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
    let refused = refusal.and_then(|refusal| REASONS.fault(refusal));
    let context = VmContext {
        networks: &networks,
        storage: &storage,
        restart: &restart,
        refusal,
        growth,
    };
    let guest = guest(machine, block, observed, &context);
    if guest.changes_template {
        restart.replace_what_never_ran(machine, block, observed);
    }
    let may_restart = !guest.restart_waits && !storage.holds_start;
    let restarts = may_restart.then_some(&restart);
    let (reset, reset_guest) = requested_reset(machine, block, observed, restarts, refusal);
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
        restart_waits: guest.restart_waits,
        holds_growth: growth != Growth::Permitted,
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
        .chain(restart.action.filter(|_| may_restart))
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

/// The status of the last requested reset, and the action of a new request. `restarts`: the restart, unless it waits.
fn requested_reset(
    machine: &Machine,
    block: &Normalized,
    observed: &Observed,
    restarts: Option<&Restart>,
    refusal: Option<&Refusal>,
) -> (Option<LastReset>, Option<Action>) {
    let instance = instance(machine, observed);
    let guest = instance.filter(|instance| instance.runs());
    let is_replaced = restarts.is_some_and(|restart| {
        let former = restart.last.as_ref().map(|last| last.replaces.as_deref());
        restart.is_open() && guest.is_none_or(|guest| former == Some(Some(guest.uid())))
    });
    let power = match block.power_state {
        PowerState::Stopped if instance.is_some_and(|it| !it.has_ended()) => PowerPlan::Stops,
        PowerState::Running if is_replaced => PowerPlan::Restarts,
        PowerState::Running if guest.is_some() => PowerPlan::KeepsRunning,
        PowerState::Stopped | PowerState::Running => PowerPlan::IsOff,
    };
    let reset = reset(machine, power, refusal);
    let action = guest
        .filter(|_| reset.is_due)
        .map(|guest| Action::ResetGuest {
            uid: guest.uid().to_owned(),
        });
    (reset.last, action)
}
