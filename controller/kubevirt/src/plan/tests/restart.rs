//! A restart that is asked for: one guest goes, once, whatever happens on the way.

use common::api::choice::{Phase, PowerState};
use common::names;
use proptest::prelude::*;

use super::{edit, phase, told};
use crate::environment::World;
use controller_core::fixtures::{annotate, block, machine, pause};
use controller_core::objects::Meta as _;

fn running(stops: bool) -> World {
    let mut block = block();
    block.guest_shutdown_stops = stops;
    let mut world = World::new(machine(block));
    world.settle();
    world
}

fn ask(world: &mut World, text: &str) {
    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(world.machine_mut(), key, text);
}

fn instance(world: &World) -> Option<String> {
    let instance = world.instance.as_ref();
    instance.map(|instance| instance.uid().to_owned())
}

/// What is remembered: the request, and the uid of who has to go.
fn last(world: &World) -> Option<(&str, Option<&str>)> {
    let last = world.machine().status.last_restart.as_ref()?;
    Some((&last.request, last.replaces.as_deref()))
}

fn strategy(world: &World) -> &str {
    &world.vm.as_ref().unwrap().spec.run_strategy
}

#[test]
fn a_new_text_restarts_once() {
    for (stops, usual) in [(false, "Always"), (true, "RerunOnFailure")] {
        let mut world = running(stops);
        let before = instance(&world);
        ask(&mut world, "kernel update");
        edit(&mut world, |block| block.cpu.cores = 8);
        // Written down first, with whose turn it is.
        assert!(!world.pass().concat().contains("VirtualMachineInstance"));
        assert_eq!(last(&world), Some(("kernel update", before.as_deref())));
        assert_eq!(told(&world, "Ready"), ("False", "Restarting"));
        world.settle();
        assert_eq!(world.restarted, Vec::from_iter(before.clone()));
        assert!(instance(&world).is_some() && instance(&world) != before);
        assert_eq!(last(&world), Some(("kernel update", None)));
        assert_eq!(told(&world, "Ready"), ("True", "Running"));
        assert_eq!(strategy(&world), usual);
        let runs = &world.instance.as_ref().unwrap().spec.domain.cpu;
        assert_eq!(runs.cores, 8, "what was pending is in effect");

        // The same text, none, an empty one, the same one again: nothing more is asked for.
        for text in [Some("kernel update"), None, Some(""), Some("kernel update")] {
            world.machine_mut().metadata.annotations = None;
            if let Some(text) = text {
                ask(&mut world, text);
            }
            assert_eq!(world.settle(), [""; 0], "{text:?}");
        }
        ask(&mut world, "once more");
        world.settle();
        assert_eq!(world.restarted.len(), 2);
        assert_eq!(told(&world, "Ready"), ("True", "Running"));
        assert_eq!(strategy(&world), usual);
    }
}

#[test]
fn where_no_guest_runs_the_request_is_done_at_once() {
    // Off.
    let mut world = running(false);
    edit(&mut world, |block| block.power_state = PowerState::Stopped);
    world.settle();
    ask(&mut world, "now");
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(last(&world), Some(("now", None)));
    assert_eq!(phase(&world), Some(Phase::Stopped));
    edit(&mut world, |block| block.power_state = PowerState::Running);
    world.settle();
    assert_eq!(world.restarted, [""; 0]);

    // Asked for before it was made, as in a file from Git.
    let mut world = World::new(machine(block()));
    ask(&mut world, "now");
    world.settle();
    assert_eq!(last(&world), Some(("now", None)));
    assert_eq!(world.restarted, [""; 0]);

    // It shut itself down and is to stay down.
    let mut world = running(true);
    world.instance.as_mut().unwrap().status.phase = "Succeeded".into();
    world.show("Stopped");
    ask(&mut world, "now");
    world.pass();
    world.pass();
    assert_eq!(last(&world), Some(("now", None)));
    assert_eq!(world.restarted, [""; 0]);
}

#[test]
fn a_machine_that_is_switched_off_meanwhile_stays_off() {
    let mut world = running(true);
    ask(&mut world, "now");
    world.pass();
    edit(&mut world, |block| block.power_state = PowerState::Stopped);
    world.settle();
    assert_eq!(last(&world), Some(("now", None)));
    assert_eq!(phase(&world), Some(Phase::Stopped));
    assert_eq!(world.restarted, [""; 0]);
}

#[test]
fn a_paused_machine_is_restarted_when_it_goes_on() {
    let mut world = running(false);
    pause(world.machine_mut());
    ask(&mut world, "now");
    world.settle();
    assert_eq!((last(&world), world.restarted.len()), (None, 0));
    world.machine_mut().metadata.annotations = None;
    ask(&mut world, "now");
    world.settle();
    assert_eq!(world.restarted.len(), 1);
    assert_eq!(told(&world, "Ready"), ("True", "Running"));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Killed after any action, with or without the status written, and with caches as old as they
    /// like: every text restarts one guest, and in the end one runs.
    #[test]
    fn each_request_restarts_one_guest(
        stops in any::<bool>(),
        steps in prop::collection::vec((0..4_usize, 0..3_usize, any::<bool>()), 1..30),
        asked_at in prop::collection::btree_set(0..30_usize, 1..3),
    ) {
        let mut world = running(stops);
        let mut asked = 0;
        let (mut past, mut seen_at) = (vec![world.clone()], 0);
        for (at, (actions, age, moves)) in steps.into_iter().enumerate() {
            if asked_at.contains(&at) {
                asked += 1;
                ask(&mut world, &format!("request {asked}"));
            }
            // Its own writes a controller waits for; what KubeVirt does comes when it comes, in order.
            seen_at = seen_at.max(past.len().saturating_sub(age + 1));
            let mut seen = past[seen_at].clone();
            seen.machine.clone_from(&world.machine);
            seen.vm.clone_from(&world.vm);
            let plan = seen.plan();
            world.carry_out(&plan, actions);
            if moves {
                world.kubevirt_moves();
            }
            past.push(world.clone());
        }
        world.settle();
        let mut once = world.restarted.clone();
        once.dedup();
        prop_assert_eq!(&once, &world.restarted);
        prop_assert!(once.len() <= asked, "{} restarts for {asked} requests", once.len());
        prop_assert_eq!(told(&world, "Ready"), ("True", "Running"));
        prop_assert!(last(&world).is_none_or(|(_, replaces)| replaces.is_none()));
        prop_assert_eq!(strategy(&world), if stops { "RerunOnFailure" } else { "Always" });
        // One that is asked for at rest is done.
        let before = world.restarted.len();
        ask(&mut world, "at last");
        world.settle();
        prop_assert_eq!(world.restarted.len(), before + 1);
        prop_assert_eq!(told(&world, "Ready"), ("True", "Running"));
    }
}
