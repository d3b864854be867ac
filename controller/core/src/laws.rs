//! Laws that every backend obeys, run over its in-memory environment.
//!
//! | law | meaning |
//! |---|---|
//! | [`a_plan_is_empty_once_it_was_carried_out`] | nothing is written twice, no two writes undo each other |
//! | [`a_deletion_ends`] | at whichever point of a Machine's lifecycle it begins |
//! | [`a_stable_machine_reports_why_it_is_not_ready`] | a Machine that waits has the cause in `Ready` |
//! | [`no_step_takes_effect_without_the_lease`] | an action of a replica that lost the Lease changes nothing |
//! | [`no_volume_in_use_is_deleted`] | whatever uses it, ours or not |
//! | [`no_effect_without_each_precondition`] | what was planned is checked again when it is done |
//! | [`a_machine_whose_growth_is_held_is_switched_and_does_not_grow`] | a quota stops no guest and keeps none running |

use std::collections::BTreeSet;

use common::api::choice::PowerState;
use common::api::normalized::Normalized;
use common::api::status::MachineStatus;
use common::names;
use common::quantity::Bytes;

use crate::backend::{Act as _, Backend, Growth};
use crate::conditions::{Fault, ready};
use crate::fixtures::annotate;
use crate::machine::{Block, Machine};
use crate::plan::{Now, Plan, Step};
use crate::preconditions::{Effect, Precondition};
use crate::reconcile;

/// More passes than any environment needs from any point until nothing changes any more.
const PASSES_MAX: usize = 60;

/// Passes between a user's change and the last of its effects: a restart is recorded before it is carried out.
const PASSES_AFTER_CHANGE: usize = 2;

/// Error of [`Environment::step`]: the step was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

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

    /// Advances the time, and the backend by one step. Returns whether it changed anything.
    fn advance(&mut self) -> bool;

    /// The simulated time.
    fn now(&self) -> Now;

    /// This replica loses the Lease.
    fn lose_lease(&mut self);

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

fn plan<E: Environment>(environment: &E) -> Option<Plan<<E::Backend as Backend>::Action>> {
    let machine = environment.machine()?;
    let (observed, now) = (environment.observe(), environment.now());
    let growth = environment.growth();
    let plan = reconcile::plan::<E::Backend>(machine, &observed, None, growth, now);
    Some(plan)
}

/// One pass; returns whether it changed anything or requested an earlier pass.
fn pass<E: Environment>(environment: &mut E) -> bool {
    let Some(plan) = plan(environment) else {
        return false;
    };
    for step in plan.steps() {
        if environment.step(&step).is_err() {
            return true;
        }
    }
    let writes_status = plan.status.is_some();
    if environment.machine().is_some()
        && let Some(status) = plan.status
    {
        environment.write_status(status);
    }
    plan.finalizer.is_some()
        || !plan.actions.is_empty()
        || plan.requeue_after.is_some()
        || writes_status
}

/// Runs passes until nothing changes any more. Returns their number.
fn settle<E: Environment>(environment: &mut E) -> usize {
    for passes in 0..PASSES_MAX {
        let moved = environment.advance();
        let acted = pass(environment);
        if !moved && !acted {
            return passes;
        }
    }
    panic!("still changing after {PASSES_MAX} passes");
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

/// A deletion that begins after any number of passes ends.
///
/// # Panics
/// If the law does not hold.
pub fn a_deletion_ends<E: Environment>(new: impl Fn() -> E) {
    let last = settle(&mut new());
    for passes in 0..=last {
        let mut environment = new();
        for _ in 0..passes {
            environment.advance();
            pass(&mut environment);
        }
        environment.delete_machine();
        settle(&mut environment);
        assert!(
            environment.machine().is_none(),
            "deleted after {passes} passes"
        );
    }
}

/// A Machine for which nothing changes any more is ready, or `Ready` has a message. Also while it is deleted.
///
/// # Panics
/// If the law does not hold.
pub fn a_stable_machine_reports_why_it_is_not_ready<E: Environment>(new: impl Fn() -> E) {
    let last = settle(&mut new());
    for deleted_after in 0..=last {
        let mut environment = new();
        for number in 0..PASSES_MAX {
            if number == deleted_after {
                environment.delete_machine();
            }
            let moved = environment.advance();
            let acted = pass(&mut environment);
            let Some(machine) = environment.machine() else {
                break;
            };
            if !moved && !acted {
                let status = &machine.status;
                let (value, _) = ready(status).expect("a stable Machine has the condition Ready");
                let condition = status.conditions.iter().find(|it| it.kind == "Ready");
                assert!(
                    value == "True" || condition.is_some_and(|it| !it.message.is_empty()),
                    "{machine:#?}"
                );
                if number > deleted_after {
                    break;
                }
            }
        }
    }
}

/// After the Lease was lost every step is refused and changes nothing.
///
/// # Panics
/// If the law does not hold.
pub fn no_step_takes_effect_without_the_lease<E: Environment>(new: impl Fn() -> E) {
    let last = settle(&mut new());
    for (passes, delete) in (0..=last).flat_map(|passes| [(passes, false), (passes, true)]) {
        let mut environment = new();
        for _ in 0..passes {
            environment.advance();
            pass(&mut environment);
        }
        if delete {
            environment.delete_machine();
        }
        let Some(plan) = plan(&environment) else {
            continue;
        };
        environment.lose_lease();
        let changes = environment.changes();
        for step in plan.steps() {
            assert_eq!(environment.step(&step), Err(Refused), "{step}");
        }
        assert_eq!(environment.changes(), changes, "after {passes} passes");
    }
}

/// A volume that a foreign guest uses survives the deletion of its Machine.
///
/// # Panics
/// If the law does not hold.
pub fn no_volume_in_use_is_deleted<E: Environment>(new: impl Fn() -> E) {
    let mut settled = new();
    settle(&mut settled);
    let volumes = settled.volumes();
    assert!(!volumes.is_empty(), "the Machine of this law has volumes");
    for volume in &volumes {
        let mut environment = new();
        settle(&mut environment);
        environment.use_volume(volume);
        environment.delete_machine();
        for _ in 0..PASSES_MAX {
            environment.advance();
            pass(&mut environment);
        }
        assert!(
            environment.volumes().contains(volume),
            "{volume} was in use and is gone"
        );
    }
}

/// What a user may have changed right before a pass.
#[derive(Clone, Copy, Debug)]
enum Change {
    None,
    Deletion,
    Restart,
    Migration,
    Reset,
    /// The Machine grows, which a quota forbids, and is switched off.
    HeldGrowthAndStop,
}

impl Change {
    fn apply<E: Environment>(self, environment: &mut E) {
        match self {
            Self::None => {}
            Self::Deletion => environment.delete_machine(),
            Self::Restart => {
                let key = names::ANNOTATION_RESTART_REQUESTED;
                annotate(environment.machine_mut(), key, "now");
            }
            Self::Migration => {
                let key = names::ANNOTATION_MIGRATE_REQUESTED;
                annotate(environment.machine_mut(), key, "now");
            }
            Self::Reset => {
                let key = names::ANNOTATION_RESET_REQUESTED;
                annotate(environment.machine_mut(), key, "now");
            }
            Self::HeldGrowthAndStop => {
                environment.set_hold(Some(Fault::new("QuotaExceeded", "the quota is used up")));
                edit(environment, |block| {
                    block.cpu.cores += 2;
                    block.power_state = PowerState::Stopped;
                });
            }
        }
    }
}

/// Whatever a plan does, it is refused and changes nothing if one precondition of its effect no longer holds at the
/// effect. Every precondition of the table is broken, unless the backend says why it cannot be.
///
/// # Panics
/// If the law does not hold.
pub fn no_effect_without_each_precondition<E: Environment>(all: &[&dyn Fn() -> E]) {
    let mut broken = BTreeSet::new();
    for new in all {
        let last = settle(&mut new());
        for passes in 0..=last {
            for change in [
                Change::None,
                Change::Deletion,
                Change::Restart,
                Change::Migration,
                Change::Reset,
                Change::HeldGrowthAndStop,
            ] {
                for passes_after in 0..=PASSES_AFTER_CHANGE {
                    let at = || {
                        let mut environment = new();
                        for _ in 0..passes {
                            environment.advance();
                            pass(&mut environment);
                        }
                        change.apply(&mut environment);
                        for _ in 0..passes_after {
                            environment.advance();
                            pass(&mut environment);
                        }
                        environment.advance();
                        environment
                    };
                    break_each(&at, &mut broken);
                }
            }
        }
    }
    for effect in Effect::ALL {
        for precondition in effect.preconditions() {
            let is_broken = broken.contains(&(effect, *precondition));
            let excluded = E::excluded(effect, *precondition);
            assert_ne!(
                is_broken,
                excluded.is_some(),
                "{effect:?} without {precondition:?}: {excluded:?}"
            );
        }
    }
}

/// Breaks each precondition of each action of the next plan. `broken`: what was broken so far.
fn break_each<E: Environment>(at: &impl Fn() -> E, broken: &mut BTreeSet<(Effect, Precondition)>) {
    let Some(plan) = plan(&at()) else {
        return;
    };
    for (number, step) in plan.steps().enumerate() {
        let Step::Act(action) = step else {
            continue;
        };
        let effect = action.effect();
        for precondition in effect.into_iter().flat_map(Effect::preconditions) {
            let mut environment = at();
            let mut earlier = plan.steps().take(number);
            if earlier.any(|step| environment.step(&step).is_err())
                || !environment.break_precondition(action, *precondition)
            {
                continue;
            }
            let changes = environment.changes();
            let outcome = environment.step(&step);
            assert_eq!(outcome, Err(Refused), "{step} without {precondition:?}");
            assert_eq!(
                environment.changes(),
                changes,
                "{step} without {precondition:?}"
            );
            broken.extend(effect.map(|effect| (effect, *precondition)));
        }
    }
}

fn edit<E: Environment>(environment: &mut E, change: impl FnOnce(&mut Normalized)) {
    let machine = environment.machine_mut();
    let mut block = machine.desired().expect("the Machine has a block").clone();
    change(&mut block);
    machine.block = Block::Matching(Box::new(block));
}

/// A Machine whose growth is held is stopped, started and restarted as its user wants, and gets no more vCPUs, memory or
/// storage. It gets them as soon as the growth is permitted.
///
/// # Panics
/// If the law does not hold.
pub fn a_machine_whose_growth_is_held_is_switched_and_does_not_grow<E: Environment>(
    mut environment: E,
) {
    settle(&mut environment);
    let (first, resources) = (environment.guest(), environment.resources());
    assert!(first.is_some(), "the guest of this law runs");
    let why = Fault::new("QuotaExceeded", "the quota is used up");
    environment.set_hold(Some(why));
    edit(&mut environment, |block| {
        block.cpu.cores += 2;
        for size in [
            &mut block.memory.size,
            &mut block.memory.max_size,
            &mut block.disks[0].size,
        ] {
            *size = Bytes::new(2 * size.get());
        }
        let mut more = block.disks[0].clone();
        more.name = "more".into();
        more.boot_order = None;
        block.disks.push(more);
    });
    settle(&mut environment);
    assert_eq!(environment.resources(), resources);
    assert_eq!(environment.guest(), first, "the guest keeps running");

    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    settle(&mut environment);
    assert_eq!(environment.guest(), None, "it is stopped");

    edit(&mut environment, |block| {
        block.power_state = PowerState::Running;
    });
    settle(&mut environment);
    let second = environment.guest();
    assert!(second.is_some(), "it is started");
    assert_eq!(environment.resources(), resources);

    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(environment.machine_mut(), key, "now");
    settle(&mut environment);
    let third = environment.guest();
    assert!(third.is_some() && third != second, "it is restarted");
    assert_eq!(environment.resources(), resources);

    environment.set_hold(None);
    settle(&mut environment);
    assert_ne!(environment.resources(), resources);
}
