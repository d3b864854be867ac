//! Calls that go wrong, and a controller that is killed: no harm is done, nothing is lost.

use common::render::libvirt::domain_uuid;

use super::{UID, asked, rich, state, told, volumes};
use crate::access::fake::When;
use crate::access::{AccessError, State};
use crate::world::World;

/// What must hold of a Machine that came through anything.
fn holds(world: &World, what: &str) {
    let domains: Vec<_> = world.host.world().domains.keys().copied().collect();
    assert_eq!(domains, [domain_uuid(UID)], "{what}");
    assert_eq!(state(world), Some(State::Running), "{what}");
    assert_eq!(
        told(world, "Ready"),
        ("True", "Running"),
        "{what}: {:#?}",
        world.machine().status
    );
    let all = volumes(world);
    for name in [".root.", ".data.", ".copy.", ".seed-"] {
        assert!(
            all.iter().any(|it| it.contains(name)),
            "{what}: {name} of {all:?}"
        );
    }
}

/// What must hold once its Machine is gone: the disk that is kept is there.
fn is_gone(world: &World, what: &str) {
    assert!(world.machine.is_none(), "{what}");
    assert_eq!(state(world), None, "{what}");
    let left = volumes(world);
    assert!(
        left.iter().any(|name| name.contains(".data.")),
        "{what}: {left:?}"
    );
    assert_eq!(left.len(), 3, "{what}: {left:?}");
}

#[test]
fn a_call_that_goes_wrong_at_any_point_does_no_harm() {
    let timed_out = || AccessError::TimedOut("no answer".into());
    let gone = || AccessError::Disconnected("the connection ended".into());
    for when in [When::Before, When::During, When::After] {
        for number in 0..14 {
            for error in [timed_out(), gone()] {
                let what = format!("{when:?} the change {number}, {}", error.kind());
                let mut world = rich();
                world.host.fail_nth(number, when, error);
                world.settle();
                holds(&world, &what);
                world.delete();
                world.settle();
                is_gone(&world, &what);
            }
        }
    }
}

#[test]
fn a_call_that_goes_wrong_while_a_machine_goes_loses_nothing_that_is_kept() {
    for when in [When::Before, When::After] {
        for number in 0..8 {
            let what = format!("{when:?} the change {number} of the deletion");
            let mut world = rich();
            world.settle();
            world
                .host
                .fail_nth(number, when, AccessError::TimedOut("no answer".into()));
            world.delete();
            world.settle();
            is_gone(&world, &what);
        }
    }
}

#[test]
fn a_controller_that_is_killed_after_any_action_goes_on_where_it_was() {
    for steps in 0..8 {
        for passes in 1..6 {
            let what = format!("killed after {steps} actions of each of {passes} passes");
            let mut world = rich();
            for _ in 0..passes {
                world.pass_until(steps);
            }
            world.settle();
            holds(&world, &what);
            assert_eq!(asked(&world, "start"), 1, "{what}");
            assert!(asked(&world, "create_volume") <= 9, "{what}");
            world.delete();
            for _ in 0..passes {
                if world.machine.is_some() {
                    world.pass_until(steps);
                }
            }
            world.settle();
            is_gone(&world, &what);
        }
    }
}
