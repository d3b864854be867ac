//! The plan of a Machine that is held.

use std::time::Duration;

use common::api::choice::Phase;
use common::api::status::MachineStatus;

use crate::backend::Act;
use crate::conditions::{Conditions, Fault, normalized, paused};
use crate::machine::Machine;
use crate::plan::{Now, Plan};
use crate::status::plan_with_status;

/// Type of the condition that says why a Machine is held.
pub(super) const SCHEDULED: &str = "Scheduled";

/// Shortest time until the next pass over a Machine whose growth is held.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// What is not carried out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing: the Machine has never started.
    New(Fault),
    /// Anything but starting and stopping the guest as it is: the Machine would grow.
    Growth(Fault),
}

/// The plan of a Machine that has never started: only its status.
pub(crate) fn plan_of_held<A>(machine: &Machine, fault: &Fault, now: Now) -> Plan<A> {
    let mut conditions = Conditions::new(machine, now);
    conditions.set("Normalized", "True", &normalized(machine.desired(), None));
    if machine.is_paused() {
        conditions.set("Paused", "True", &paused());
    }
    conditions.set(SCHEDULED, "False", fault);
    conditions.set("Ready", "False", fault);
    let status = MachineStatus {
        phase: Some(Phase::Pending),
        conditions: conditions.list,
        observed_generation: machine.generation(),
        ..machine.status.clone()
    };
    plan_with_status(machine, now, status, vec![])
}

/// The plan of a Machine whose growth is held, from the plan that would carry it out: the guest can be switched on and
/// off as it is.
pub(crate) fn hold_growth<A: Act>(
    machine: &Machine,
    plan: Plan<A>,
    fault: &Fault,
    now: Now,
) -> Plan<A> {
    let mut status = plan.status.unwrap_or_else(|| machine.status.clone());
    let mut conditions = Conditions::new(machine, now);
    conditions.list = std::mem::take(&mut status.conditions);
    conditions
        .list
        .retain(|condition| condition.kind != SCHEDULED);
    conditions.set(SCHEDULED, "False", fault);
    status.conditions = conditions.list;
    let mut actions = plan.actions;
    let planned = actions.len();
    actions.retain(Act::is_free);
    // The next look that was planned after actions which are not carried out would find nothing new. Whatever makes room
    // triggers a pass.
    let is_whole = actions.len() == planned;
    let requeue_after = plan
        .requeue_after
        .filter(|_| is_whole || !actions.is_empty());
    let held = plan_with_status(machine, now, status, actions);
    Plan {
        finalizer: plan.finalizer,
        requeue_after: held
            .requeue_after
            .or(requeue_after.map(|pause| pause.max(LOOK_AGAIN))),
        ..held
    }
}
