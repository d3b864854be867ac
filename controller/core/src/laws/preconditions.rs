//! What is checked at the moment of an effect.

use std::collections::BTreeSet;

use common::api::choice::PowerState;
use common::names;
use common::quantity::Bytes;

use super::{Environment, PASSES_MAX, Refused, edit, plan, quota_used_up, run, settle};
use crate::backend::Act as _;
use crate::fixtures::annotate;
use crate::plan::Step;
use crate::preconditions::{Effect, Precondition};

/// Passes between a user's change and the last of its effects: a restart is recorded before it is carried out.
const PASSES_AFTER_CHANGE: usize = 2;

/// After the Lease was lost every step is refused and changes nothing.
///
/// # Panics
/// If the law does not hold.
pub fn no_step_takes_effect_without_the_lease<E: Environment>(new: impl Fn() -> E) {
    let last = settle(&mut new());
    for (passes, delete) in (0..=last).flat_map(|passes| [(passes, false), (passes, true)]) {
        let mut environment = new();
        run(&mut environment, passes);
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
        run(&mut environment, PASSES_MAX);
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
    /// The disks grow.
    Growth,
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
            Self::Growth => edit(environment, |block| {
                for disk in &mut block.disks {
                    disk.size = Bytes::new(disk.size.get() + Bytes::mib(1024).get());
                }
            }),
            Self::HeldGrowthAndStop => {
                environment.set_hold(Some(quota_used_up()));
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
                Change::Growth,
                Change::HeldGrowthAndStop,
            ] {
                for passes_after in 0..=PASSES_AFTER_CHANGE {
                    let at = || {
                        let mut environment = new();
                        run(&mut environment, passes);
                        change.apply(&mut environment);
                        run(&mut environment, passes_after);
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
