//! Failed calls, and a controller that is killed: no disk and no guest is lost.

use common::render::libvirt::domain_uuid;

use super::{UID, reported, rich, state, times, volumes};
use crate::access::fake::When;
use crate::access::{AccessError, State};
use crate::environment::Environment;

/// Invariants of a Machine after any fault.
fn holds(env: &Environment, what: &str) {
    let domains: Vec<_> = env.host.state().domains.keys().copied().collect();
    assert_eq!(domains, [domain_uuid(UID)], "{what}");
    assert_eq!(state(env), Some(State::Running), "{what}");
    assert_eq!(
        reported(env, "Ready"),
        ("True", "Running"),
        "{what}: {:#?}",
        env.machine().status
    );
    let all = volumes(env);
    for name in [".root.", ".data.", ".copy.", ".seed-"] {
        assert!(
            all.iter().any(|it| it.contains(name)),
            "{what}: {name} of {all:?}"
        );
    }
}

/// Invariant after a deletion: the retained disk exists.
fn is_gone(env: &Environment, what: &str) {
    assert!(env.machine.is_none(), "{what}");
    assert_eq!(state(env), None, "{what}");
    let left = volumes(env);
    assert!(
        left.iter().any(|name| name.contains(".data.")),
        "{what}: {left:?}"
    );
    assert_eq!(left.len(), 3, "{what}: {left:?}");
}

/// Errors of calls that may have taken effect.
fn unanswered() -> [AccessError; 2] {
    [
        AccessError::TimedOut("no answer".into()),
        AccessError::Disconnected("the connection ended".into()),
    ]
}

/// Runs a test once for each change that it makes on a host, with a fault at that change, and once without a fault.
/// `test` returns whether the fault has happened; there are at least `least` changes.
pub(super) fn at_each_change(least: usize, test: impl Fn(usize) -> bool) {
    let mut changes = 0;
    while test(changes) {
        changes += 1;
    }
    assert!(changes >= least, "only {changes} faults happened");
}

#[test]
fn a_failed_call_at_any_point_loses_no_disk_and_no_guest() {
    for when in [When::Before, When::During, When::After] {
        for error in unanswered() {
            at_each_change(11, |number| {
                let what = format!("{when:?} the change {number}, {}", error.kind());
                let mut env = rich();
                env.host.fail_nth(number, when, error.clone());
                env.settle();
                let has_failed = !env.host.has_fault();
                holds(&env, &what);
                env.delete();
                env.settle();
                is_gone(&env, &what);
                has_failed
            });
        }
    }
}

#[test]
fn a_failed_call_during_a_deletion_loses_no_retained_disk() {
    for when in [When::Before, When::After] {
        for error in unanswered() {
            at_each_change(7, |number| {
                let kind = error.kind();
                let what = format!("{when:?} the change {number} of the deletion, {kind}");
                let mut env = rich();
                env.settle();
                env.host.fail_nth(number, when, error.clone());
                env.delete();
                env.settle();
                is_gone(&env, &what);
                !env.host.has_fault()
            });
        }
    }
}

#[test]
fn a_controller_killed_after_any_action_continues_without_a_second_start() {
    for steps in 0..8 {
        for passes in 1..6 {
            let what = format!("killed after {steps} actions of each of {passes} passes");
            let mut env = rich();
            for _ in 0..passes {
                env.pass_until(steps);
            }
            env.settle();
            holds(&env, &what);
            assert_eq!(times(&env, "start"), 1, "{what}");
            assert!(times(&env, "create_volume") <= 9, "{what}");
            env.delete();
            for _ in 0..passes {
                if env.machine.is_some() {
                    env.pass_until(steps);
                }
            }
            env.settle();
            is_gone(&env, &what);
        }
    }
}
