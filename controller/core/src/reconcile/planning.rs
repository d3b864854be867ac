//! The plan of a pass, made of what the backend plans, and what is left of it after an action was refused.

use common::names;

use crate::backend::{Act, Backend, Draft, Growth};
use crate::conditions::not_normalized;
use crate::deletion;
use crate::machine::Machine;
use crate::objects::Meta as _;
use crate::plan::{FinalizerChange, Now, Plan, Refusal, Subject};
use crate::reset;
use crate::status::plan_with_status;

/// The plan of a pass. Pure.
pub fn plan<B: Backend>(
    machine: &Machine,
    observed: &B::Observed,
    refusal: Option<&Refusal>,
    growth: Growth<'_>,
    now: Now,
) -> Plan<B::Action> {
    if machine.is_deleting() {
        let teardown = || B::teardown(machine, observed, now);
        return deletion::plan(machine, refusal, now, teardown);
    }
    let Some(block) = machine.desired() else {
        let status = B::report_unfit(machine, observed, not_normalized(machine), now);
        return plan_with_status(machine, now, status, vec![]);
    };
    let draft = B::plan(machine, block, observed, refusal, growth, now).unless_paused(machine);
    let Draft {
        actions,
        status,
        requeue_after,
    } = draft;
    let plan = match status {
        Some(status) => plan_with_status(machine, now, status, actions),
        None => Plan {
            actions,
            ..Plan::default()
        },
    };
    // The finalizer comes before the first object: otherwise a deletion in between would leave the object behind.
    let lacks_finalizer = !machine.is_paused() && !machine.has_finalizer(names::FINALIZER);
    Plan {
        finalizer: lacks_finalizer.then_some(FinalizerChange::Add),
        requeue_after: plan.requeue_after.or(requeue_after),
        ..plan
    }
}

/// What is carried out of a plan after an action about this part was refused: the guest is switched off or reset, as the
/// plan says. The rest waits for that action, also a start: what was refused may be a disk that the guest needs.
pub(crate) fn after_refusal<A: Act>(mut plan: Plan<A>, refused: Subject) -> Plan<A> {
    plan.actions.retain(|action| action.goes_on_after(refused));
    plan.finalizer = None;
    plan
}

/// What is reported after such an action was refused, too: `first` is the plan after the first refusal, `second` the one
/// after that of the action. That the guest was not switched off matters more than what failed before.
pub(crate) fn after_second_refusal<A>(
    machine: &Machine,
    mut first: Plan<A>,
    mut second: Plan<A>,
    refusal: &Refusal,
) -> Plan<A> {
    if reset::is_final(refusal) {
        // No condition has it, so that they go on to report the first refusal.
        if let Some((first, second)) = first.status.as_mut().zip(second.status) {
            first.last_reset = second.last_reset;
        }
        return first;
    }
    if refusal.subject != Subject::Reset {
        keep_last_reset(machine, &mut second);
    }
    second
}

/// Keeps the reset that the stored status reports: a reset is the last action of a plan, and an action before it waits
/// or was refused.
pub(super) fn keep_last_reset<A>(machine: &Machine, plan: &mut Plan<A>) {
    if let Some(status) = &mut plan.status {
        status.last_reset.clone_from(&machine.status.last_reset);
    }
}
