//! What a replica that lost the Lease does.

use std::collections::BTreeSet;

use super::situations::situations;
use super::{Environment, plan};
use crate::plan::Step;

/// Each step of each plan is refused and changes nothing if the Lease is lost right before it: the steps before it were
/// carried out with the Lease. Of plans that begin with the same steps, these are tried once. Every kind of action is tried, unless the backend says why no plan has it.
///
/// # Panics
/// If the law does not hold.
pub fn no_step_takes_effect_without_the_lease<E: Environment>(all: &[&dyn Fn() -> E]) {
    let (mut planned, mut tried) = (BTreeSet::new(), BTreeSet::new());
    let mut sequences = BTreeSet::new();
    for at in situations(all) {
        let Some(plan) = plan(&at()) else {
            continue;
        };
        for (number, step) in plan.steps().enumerate() {
            let kind = match &step {
                Step::Act(action) => E::kind(action),
                Step::AddFinalizer => "the finalizer is added",
                Step::RemoveFinalizer => "the finalizer is removed",
            };
            planned.insert(kind);
            let sequence = plan.steps().take(number + 1);
            let sequence: Vec<_> = sequence.map(|step| step.to_string()).collect();
            if !sequences.insert(sequence) {
                continue;
            }
            let mut environment = at();
            let mut earlier = plan.steps().take(number);
            if earlier.any(|step| environment.step(&step).is_err()) {
                continue;
            }
            environment.lose_lease();
            let changes = environment.changes();
            assert!(environment.step(&step).is_err(), "{step}");
            assert_eq!(environment.changes(), changes, "{step}");
            tried.insert(kind);
        }
    }
    assert_eq!(planned, tried, "what was planned and what was tried");
    assert!(planned.len() > 2, "plans have more than the finalizer");
    for kind in E::KINDS {
        let unplanned = E::unplanned(kind);
        assert_ne!(
            tried.contains(kind),
            unplanned.is_some(),
            "{kind}: {unplanned:?}"
        );
    }
}
