//! The plan of a Machine that is held.

use common::api::choice::Phase;
use common::api::status::MachineStatus;

use crate::backend::Act;
use crate::conditions::{Conditions, Fault, normalized, paused};
use crate::machine::Machine;
use crate::plan::{Now, Plan};
use crate::status::plan_with_status;

/// Type of the condition that says why a Machine is held.
const SCHEDULED: &str = "Scheduled";

/// What is not carried out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing: the Machine has never started.
    New(Fault),
    /// Anything but switching the guest on and off: the Machine would grow.
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
    actions.retain(Act::is_switch);
    let held = plan_with_status(machine, now, status, actions);
    Plan {
        finalizer: plan.finalizer,
        requeue_after: held.requeue_after.or(plan.requeue_after),
        ..held
    }
}
