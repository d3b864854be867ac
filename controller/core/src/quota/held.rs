//! The plan of a Machine that is held.

use common::api::choice::Phase;
use common::api::status::MachineStatus;

use crate::conditions::{Conditions, Fault, normalized};
use crate::machine::Machine;
use crate::plan::{Now, Plan};
use crate::status::plan_with_status;

/// Type of the condition that says why a Machine is held.
pub(super) const SCHEDULED: &str = "Scheduled";

/// What is not carried out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing: the Machine has never started.
    New(Fault),
    /// What needs more vCPUs, memory or storage than the Machine has.
    Growth(Fault),
}

/// The plan of a Machine that has never started: only its status.
pub(crate) fn plan_of_held<A>(machine: &Machine, fault: &Fault, now: Now) -> Plan<A> {
    let mut conditions = Conditions::new(machine, now);
    conditions.set(
        "Normalized",
        "True",
        &normalized(machine.desired(), None, &[]),
    );
    conditions.set_paused();
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

/// Adds to the plan of a Machine whose growth is held the condition that says why.
pub(crate) fn report_hold<A>(machine: &Machine, plan: Plan<A>, fault: &Fault, now: Now) -> Plan<A> {
    let mut status = plan.status.unwrap_or_else(|| machine.status.clone());
    let mut conditions = Conditions::new(machine, now);
    conditions.set(SCHEDULED, "False", fault);
    status.conditions.retain(|it| it.kind != SCHEDULED);
    status.conditions.append(&mut conditions.list);
    let held = plan_with_status(machine, now, status, plan.actions);
    Plan {
        finalizer: plan.finalizer,
        requeue_after: held.requeue_after.or(plan.requeue_after),
        ..held
    }
}
