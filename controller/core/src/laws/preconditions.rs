//! What is checked at the moment of an effect.

use std::collections::BTreeSet;

use super::situations::situations;
use super::{Environment, PASSES_MAX, plan, run, settle};
use crate::backend::Act as _;
use crate::plan::Step;
use crate::preconditions::{Effect, Precondition};

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

/// Whatever a plan does, it is refused and changes nothing if one precondition of its effect no longer holds at the
/// effect. Every precondition of the table is broken, unless the backend says why it cannot be.
///
/// # Panics
/// If the law does not hold.
pub fn no_effect_without_each_precondition<E: Environment>(all: &[&dyn Fn() -> E]) {
    let mut broken = BTreeSet::new();
    for at in situations(all) {
        break_each(&at, &mut broken);
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
            assert!(outcome.is_err(), "{step} without {precondition:?}");
            assert_eq!(
                environment.changes(),
                changes,
                "{step} without {precondition:?}"
            );
            broken.extend(effect.map(|effect| (effect, *precondition)));
        }
    }
}
