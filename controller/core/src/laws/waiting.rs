//! What a Machine waits for has an end or a reason.

use super::{Environment, PASSES_MAX, pass, run, settle};
use crate::conditions::ready;

/// Passes in a row, 10 s each, after which a Machine waits for something else than time: a guest that ignores requests to
/// shut down is ended after 60 s.
const QUIET_PASSES: usize = 8;

/// Runs passes until nothing has changed for a while, which a Machine that waits may report again and again. Each pass that
/// changes nothing must leave a Machine that is ready, or whose `Ready` has a message. Returns the number of passes.
fn wait_with_reason<E: Environment>(environment: &mut E) -> usize {
    let (mut quiet, mut changes) = (0, vec![]);
    for passes in 0..PASSES_MAX {
        let moved = environment.advance();
        let passed = pass(environment);
        let Some(machine) = environment.machine() else {
            return passes;
        };
        if moved || !passed.changes.is_empty() {
            (quiet, changes) = (0, passed.changes);
            continue;
        }
        let status = &machine.status;
        let (value, _) = ready(status).expect("a Machine that waits has the condition Ready");
        let condition = status.conditions.iter().find(|it| it.kind == "Ready");
        assert!(
            value == "True" || condition.is_some_and(|it| !it.message.is_empty()),
            "{machine:#?}"
        );
        quiet += 1;
        if quiet == QUIET_PASSES {
            return passes;
        }
    }
    panic!("still changing after {PASSES_MAX} passes: {changes:?}");
}

/// This environment, with the Machine deleted after any number of passes, and run until it waits or is gone.
fn deleted_after_each_pass<E: Environment>(
    new: &dyn Fn() -> E,
) -> impl Iterator<Item = (usize, E)> {
    let last = wait_with_reason(&mut new());
    (0..=last).map(move |passes| {
        let mut environment = new();
        run(&mut environment, passes);
        environment.delete_machine();
        wait_with_reason(&mut environment);
        (passes, environment)
    })
}

/// A deletion that begins after any number of passes ends, also of a Machine that waits for something.
///
/// # Panics
/// If the law does not hold.
pub fn a_deletion_ends<E: Environment>(all: &[&dyn Fn() -> E]) {
    for (number, new) in all.iter().enumerate() {
        for (passes, environment) in deleted_after_each_pass(*new) {
            assert!(
                environment.machine().is_none(),
                "environment {number}, deleted after {passes} passes"
            );
        }
    }
}

/// A Machine for which a pass changes nothing is ready, or `Ready` has a message. Also while it is deleted, and while it
/// waits for a while only.
///
/// # Panics
/// If the law does not hold.
pub fn a_machine_that_waits_reports_why<E: Environment>(all: &[&dyn Fn() -> E]) {
    for new in all {
        let tried = deleted_after_each_pass(*new).count();
        assert!(tried > 0);
    }
}

/// While a part of the observation cannot be read, a guest runs on, no volume of a Machine that stays is lost, and the
/// Machine is ready or says why not. Once the part is read again, a Machine is ready, and one that was deleted is gone.
///
/// # Panics
/// If the law does not hold.
pub fn an_unreadable_part_costs_no_guest_and_no_volume<E: Environment>(new: impl Fn() -> E) {
    let last = settle(&mut new());
    for (part, passes) in E::PARTS
        .iter()
        .flat_map(|part| (0..=last).map(move |passes| (part, passes)))
    {
        let what = format!("{part} is unreadable after {passes} passes");
        let mut environment = new();
        run(&mut environment, passes);
        let (guest, volumes) = (environment.guest(), environment.volumes());
        environment.set_readable(part, false);
        wait_with_reason(&mut environment);
        assert!(guest.is_none() || environment.guest() == guest, "{what}");
        assert!(environment.volumes().is_superset(&volumes), "{what}");
        environment.set_readable(part, true);
        settle(&mut environment);
        let status = &environment.machine().expect("the Machine exists").status;
        let (value, reason) = ready(status).expect("the Machine has the condition Ready");
        assert_eq!(value, "True", "{what}: {reason}");

        environment.set_readable(part, false);
        environment.delete_machine();
        wait_with_reason(&mut environment);
        environment.set_readable(part, true);
        settle(&mut environment);
        assert!(environment.machine().is_none(), "{what}, and deleted");
    }
}
