//! Laws that every backend obeys, run over its in-memory environment.
//!
//! | law | meaning |
//! |---|---|
//! | [`a_plan_is_empty_once_it_was_carried_out`] | nothing is written twice, nothing oscillates |
//! | [`a_deletion_ends`] | from whatever point of a Machine's life it begins |
//! | [`nothing_waits_in_silence`] | a Machine that is not ready says in `Ready` what it waits for |
//! | [`nothing_happens_without_the_lease`] | an action of a replica that lost the Lease has no effect |
//! | [`no_volume_in_use_is_deleted`] | whoever uses it |

use std::collections::BTreeSet;

use common::api::status::MachineStatus;

use crate::backend::Backend;
use crate::machine::Machine;
use crate::plan::{Now, Plan, Step};
use crate::reconcile;
use crate::status::verdict;

/// More passes than the longest life takes from any point to rest.
const PASSES_MAX: usize = 60;

/// A step was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// A Machine, the backend that runs it and everything around them, in memory.
pub trait Environment {
    /// The backend under test.
    type Backend: Backend;

    /// The Machine; `None` once it is gone.
    fn machine(&self) -> Option<&Machine>;

    /// Writes the status.
    fn write_status(&mut self, status: MachineStatus);

    /// A user deletes the Machine.
    fn delete_machine(&mut self);

    /// What the backend observes now.
    fn observe(&self) -> <Self::Backend as Backend>::Observed;

    /// Carries out one step of a plan, with the code that the program has for it as far as that works in memory.
    fn step(&mut self, step: &Step<'_, <Self::Backend as Backend>::Action>) -> Result<(), Refused>;

    /// Time passes, and the other side (KubeVirt, guests) does what it does. Returns whether it did anything.
    fn advance(&mut self) -> bool;

    /// The time.
    fn now(&self) -> Now;

    /// This replica loses the Lease.
    fn lose_lease(&mut self);

    /// How many changes were made outside the controller: objects, domains, volumes.
    fn changes(&self) -> usize;

    /// Names of the volumes that hold data of a guest.
    fn volumes(&self) -> BTreeSet<String>;

    /// Somebody else's guest uses this volume from now on.
    fn use_volume(&mut self, name: &str);
}

fn plan<E: Environment>(environment: &E) -> Option<Plan<<E::Backend as Backend>::Action>> {
    let machine = environment.machine()?;
    let (observed, now) = (environment.observe(), environment.now());
    Some(reconcile::plan::<E::Backend>(machine, &observed, None, now))
}

/// One pass; returns whether anything was done.
fn pass<E: Environment>(environment: &mut E) -> bool {
    let Some(plan) = plan(environment) else {
        return false;
    };
    for step in plan.steps() {
        if environment.step(&step).is_err() {
            return true;
        }
    }
    let news = plan.status.is_some();
    if environment.machine().is_some()
        && let Some(status) = plan.status
    {
        environment.write_status(status);
    }
    plan.finalizer.is_some() || !plan.actions.is_empty() || plan.again.is_some() || news
}

/// Passes until nothing happens any more. Returns how many there were.
fn settle<E: Environment>(environment: &mut E) -> usize {
    for passes in 0..PASSES_MAX {
        let moved = environment.advance();
        let acted = pass(environment);
        if !moved && !acted {
            return passes;
        }
    }
    panic!("no rest after {PASSES_MAX} passes");
}

/// # Panics
/// If the law does not hold.
pub fn a_plan_is_empty_once_it_was_carried_out<E: Environment>(mut environment: E) {
    settle(&mut environment);
    let changes = environment.changes();
    let again = plan(&environment).expect("the Machine is there");
    let steps: Vec<_> = again.steps().map(|step| step.to_string()).collect();
    assert_eq!(steps, [""; 0]);
    assert_eq!(again.status, None);
    pass(&mut environment);
    assert_eq!(environment.changes(), changes);
}

/// # Panics
/// If the law does not hold.
pub fn a_deletion_ends<E: Environment>(new: impl Fn() -> E) {
    let life = settle(&mut new());
    for passes in 0..=life {
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

/// # Panics
/// If the law does not hold.
pub fn nothing_waits_in_silence<E: Environment>(new: impl Fn() -> E) {
    let life = settle(&mut new());
    for deleted_after in 0..=life {
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
                let ready = status.conditions.iter().find(|it| it.kind == "Ready");
                let ready = ready.expect("a Machine at rest has the condition Ready");
                let (status, _) = verdict(status).expect("a condition has a status");
                assert!(
                    status == "True" || !ready.message.is_empty(),
                    "{machine:#?}"
                );
                if number > deleted_after {
                    break;
                }
            }
        }
    }
}

/// # Panics
/// If the law does not hold.
pub fn nothing_happens_without_the_lease<E: Environment>(new: impl Fn() -> E) {
    let life = settle(&mut new());
    for (passes, delete) in (0..=life).flat_map(|passes| [(passes, false), (passes, true)]) {
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
