//! Laws that every backend obeys, run over its in-memory environment.
//!
//! | law | meaning |
//! |---|---|
//! | [`a_plan_is_empty_once_it_was_carried_out`] | nothing is written twice, no two writes undo each other |
//! | [`a_deletion_ends`] | at whichever point of a Machine's lifecycle it begins |
//! | [`a_machine_that_waits_reports_why`] | a Machine that is not ready has the cause in `Ready`, whatever it waits for |
//! | [`an_unreadable_part_costs_no_guest_and_no_volume`] | and is reported, and over as soon as the part is read again |
//! | [`no_step_takes_effect_without_the_lease`] | a step of a replica that lost the Lease right before it changes nothing |
//! | [`no_volume_in_use_is_deleted`] | whatever uses it, ours or not |
//! | [`no_effect_without_each_precondition`] | what was planned is checked again when it is done |
//! | [`a_machine_whose_growth_is_held_is_switched_and_does_not_grow`] | a quota stops no guest and keeps none running |

mod growth;
mod lease;
mod preconditions;
mod situations;
mod waiting;

use std::collections::BTreeSet;

use common::api::normalized::Normalized;
use common::api::status::MachineStatus;

use crate::backend::{Act as _, Backend, Failed, Growth};
use crate::conditions::Fault;
use crate::machine::{Block, Machine};
use crate::plan::{Now, Plan, Refusal, Step, Subject};
use crate::preconditions::{Effect, Precondition};
use crate::reconcile;

pub use growth::a_machine_whose_growth_is_held_is_switched_and_does_not_grow;
pub use lease::no_step_takes_effect_without_the_lease;
pub use preconditions::{no_effect_without_each_precondition, no_volume_in_use_is_deleted};
pub use waiting::{
    Cause, Waiting, a_deletion_ends, a_machine_that_waits_reports_why,
    an_unreadable_part_costs_no_guest_and_no_volume, held,
};

/// More passes than any environment needs from any point until nothing changes any more.
const PASSES_MAX: usize = 60;

/// Error of [`Environment::step`]: the step was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// As in [`Failed`](crate::backend::Failed).
    pub reason: Option<&'static str>,
    /// As in [`Failed`](crate::backend::Failed).
    pub message: String,
}

impl From<Failed> for Refused {
    fn from(failed: Failed) -> Self {
        Self {
            reason: failed.reason,
            message: failed.message,
        }
    }
}

/// In-memory environment of a backend: one Machine, its objects, and the other side (KubeVirt, hosts, guests).
pub trait Environment {
    /// The backend under test.
    type Backend: Backend;

    /// The Machine; `None` once it was deleted and its finalizer removed.
    fn machine(&self) -> Option<&Machine>;

    /// The Machine, for a user's change.
    fn machine_mut(&mut self) -> &mut Machine;

    /// Stores the status that a pass wrote.
    fn write_status(&mut self, status: MachineStatus);

    /// A user deletes the Machine.
    fn delete_machine(&mut self);

    /// What [`Backend::observe`] would return now.
    fn observe(&self) -> <Self::Backend as Backend>::Observed;

    /// Carries out one step of a plan, with the code of the program where that works in memory.
    fn step(&mut self, step: &Step<'_, <Self::Backend as Backend>::Action>) -> Result<(), Refused>;

    /// The parts of an observation of which each can be unreadable while the others are read.
    const PARTS: &'static [&'static str];

    /// From now on this one of the [`PARTS`](Self::PARTS) can be read, or not.
    fn set_readable(&mut self, part: &str, readable: bool);

    /// Advances the time, and the backend by one step. Returns whether it changed anything.
    fn advance(&mut self) -> bool;

    /// The simulated time.
    fn now(&self) -> Now;

    /// This replica loses the Lease.
    fn lose_lease(&mut self);

    /// Names of the kinds of actions that the backend has: see [`action_kinds`](crate::action_kinds).
    const KINDS: &'static [&'static str];

    /// The one of the [`KINDS`](Self::KINDS) that an action is of.
    fn kind(action: &<Self::Backend as Backend>::Action) -> &'static str;

    /// Why no plan of the laws has an action of this kind, and which test covers it instead. `None`: one has.
    fn unplanned(kind: &str) -> Option<&'static str>;

    /// Number of changes that steps have made so far to objects, domains and volumes.
    fn changes(&self) -> usize;

    /// Names of the volumes with data of the guest.
    fn volumes(&self) -> BTreeSet<String>;

    /// Holds the growth of the Machine for this reason, or permits it again.
    fn set_hold(&mut self, hold: Option<Fault>);

    /// Whether the growth of the Machine is held.
    fn growth(&self) -> Growth<'_>;

    /// Identity of the running guest: another one after each start. `None`: it is off.
    fn guest(&self) -> Option<String>;

    /// What the Machine has of a quota, one text each: vCPUs and memory of its definition and of its running guest, and
    /// each volume with its size.
    fn resources(&self) -> BTreeSet<String>;

    /// From now on a guest that this controller did not create uses the volume.
    fn use_volume(&mut self, name: &str);

    /// Somebody else changes what an action is about, so that this precondition of its effect no longer holds. Returns
    /// `false` if that cannot happen to this action.
    fn break_precondition(
        &mut self,
        action: &<Self::Backend as Backend>::Action,
        precondition: Precondition,
    ) -> bool;

    /// Why no action of a plan can be carried out without the precondition, by its type; or the test of the effect, if
    /// no plan has it. `None`: [`break_precondition`](Self::break_precondition) breaks it.
    fn excluded(effect: Effect, precondition: Precondition) -> Option<&'static str>;
}

/// Implements [`Environment::KINDS`] and [`Environment::kind`]. It does not compile unless every variant of the action is
/// named.
#[macro_export]
macro_rules! action_kinds {
    ($action:ident: $($variant:ident),+ $(,)?) => {
        const KINDS: &'static [&'static str] = &[$(stringify!($variant)),+];

        fn kind(action: &$action) -> &'static str {
            match action {
                $($action::$variant { .. } => stringify!($variant),)+
            }
        }
    };
}

type PlanOf<E> = Plan<<<E as Environment>::Backend as Backend>::Action>;

fn plan<E: Environment>(environment: &E) -> Option<PlanOf<E>> {
    plan_after(environment, None)
}

/// The plan of a pass in which this was refused.
fn plan_after<E: Environment>(environment: &E, refusal: Option<&Refusal>) -> Option<PlanOf<E>> {
    let machine = environment.machine()?;
    let (observed, now) = (environment.observe(), environment.now());
    let growth = environment.growth();
    let plan = reconcile::plan::<E::Backend>(machine, &observed, refusal, growth, now);
    Some(plan)
}

/// What came of one pass.
#[derive(Default)]
struct Passed {
    /// What it changed, a line each.
    changes: Vec<String>,
    /// There will be another pass, even if nothing happens.
    asks_again: bool,
}

/// Carries out the steps of a plan up to the first one that is refused.
fn carry_out<E: Environment>(
    environment: &mut E,
    plan: &PlanOf<E>,
    passed: &mut Passed,
) -> Option<Refusal> {
    plan.steps().find_map(|step| {
        let Err(refused) = environment.step(&step) else {
            passed.changes.push(step.to_string());
            return None;
        };
        let subject = match &step {
            Step::Act(action) => action.subject(),
            Step::AddFinalizer | Step::RemoveFinalizer => Subject::Machine,
        };
        Some(Refusal {
            subject,
            reason: refused.reason,
            message: refused.message,
        })
    })
}

/// Carries a plan out as [`reconcile`](crate::reconcile) does. What is refused is in the status afterwards.
fn pass<E: Environment>(environment: &mut E) -> Passed {
    let mut passed = Passed::default();
    let Some(mut planned) = plan(environment) else {
        return passed;
    };
    if let Some(refused) = carry_out(environment, &planned, &mut passed) {
        passed.asks_again = true;
        let Some(replanned) = plan_after(environment, Some(&refused)) else {
            return passed;
        };
        planned = reconcile::after_refusal(replanned, refused.subject);
        if let Some(not_switched) = carry_out(environment, &planned, &mut passed)
            && let Some(replanned) = plan_after(environment, Some(&not_switched))
        {
            let Some(machine) = environment.machine() else {
                return passed;
            };
            planned = reconcile::after_second_refusal(machine, planned, replanned, &not_switched);
        }
    }
    passed.asks_again |= planned.requeue_after.is_some();
    if let Some(status) = planned.status
        && environment.machine().is_some()
    {
        passed.changes.push("wrote the status".to_owned());
        environment.write_status(status);
    }
    passed
}

/// Runs so many passes.
fn run<E: Environment>(environment: &mut E, passes: usize) {
    for _ in 0..passes {
        environment.advance();
        pass(environment);
    }
}

/// Runs passes until nothing changes any more. Returns their number.
fn settle<E: Environment>(environment: &mut E) -> usize {
    let mut changes = vec![];
    for passes in 0..PASSES_MAX {
        let moved = environment.advance();
        let passed = pass(environment);
        if !moved && passed.changes.is_empty() && !passed.asks_again {
            return passes;
        }
        changes = passed.changes;
    }
    panic!("still changing after {PASSES_MAX} passes: {changes:?}");
}

fn quota_used_up() -> Fault {
    Fault::new("QuotaExceeded", "the quota is used up")
}

fn edit<E: Environment>(environment: &mut E, change: impl FnOnce(&mut Normalized)) {
    let machine = environment.machine_mut();
    let mut block = machine.desired().expect("the Machine has a block").clone();
    change(&mut block);
    machine.block = Block::Matching(Box::new(block));
}

/// Once a plan was carried out and nothing changes, the next plan is empty.
///
/// # Panics
/// If the law does not hold.
pub fn a_plan_is_empty_once_it_was_carried_out<E: Environment>(mut environment: E) {
    settle(&mut environment);
    let changes = environment.changes();
    let next = plan(&environment).expect("the Machine exists");
    let steps: Vec<_> = next.steps().map(|step| step.to_string()).collect();
    assert_eq!(steps, [""; 0]);
    assert_eq!(next.status, None);
    pass(&mut environment);
    assert_eq!(environment.changes(), changes);
}
