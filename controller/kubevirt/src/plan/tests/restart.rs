//! A requested restart deletes one guest once, whatever happens in between.

use common::api::choice::{Phase, PowerState};
use common::names;
use proptest::prelude::*;

use super::{edit, message, phase, reported};
use crate::environment::FakeCluster;
use controller_core::conditions::Fault;
use controller_core::fixtures::{annotate, block, machine, nic, pause};
use controller_core::held_addresses::AddressFault;
use controller_core::objects::Meta as _;

fn running(stops: bool) -> FakeCluster {
    let mut block = block();
    block.guest_shutdown_stops = stops;
    let mut environment = FakeCluster::new(machine(block));
    environment.settle();
    environment
}

fn ask(environment: &mut FakeCluster, text: &str) {
    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(environment.machine_mut(), key, text);
}

fn instance(environment: &FakeCluster) -> Option<String> {
    let instance = environment.instance.as_ref();
    instance.map(|instance| instance.uid().to_owned())
}

/// The recorded request, and the uid of the instance that it replaces.
fn last(environment: &FakeCluster) -> Option<(&str, Option<&str>)> {
    let last = environment.machine().status.last_restart.as_ref()?;
    Some((&last.request, last.replaces.as_deref()))
}

fn strategy(environment: &FakeCluster) -> &str {
    &environment.vm.as_ref().unwrap().spec.run_strategy
}

#[test]
fn a_new_request_restarts_the_guest_once() {
    for (stops, usual) in [(false, "Always"), (true, "RerunOnFailure")] {
        let mut environment = running(stops);
        let before = instance(&environment);
        ask(&mut environment, "kernel update");
        edit(&mut environment, |block| block.cpu.cores = 8);
        // The status is written first and names the instance.
        assert!(
            !environment
                .pass()
                .concat()
                .contains("VirtualMachineInstance")
        );
        assert_eq!(
            last(&environment),
            Some(("kernel update", before.as_deref()))
        );
        assert_eq!(reported(&environment, "Ready"), ("False", "Restarting"));
        environment.settle();
        assert_eq!(environment.restarted, Vec::from_iter(before.clone()));
        assert!(instance(&environment).is_some() && instance(&environment) != before);
        assert_eq!(last(&environment), Some(("kernel update", None)));
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        assert_eq!(strategy(&environment), usual);
        let runs = &environment.instance.as_ref().unwrap().spec.domain.cpu;
        assert_eq!(runs.cores, 8, "what was pending is in effect");

        // The same request, none, an empty one and the same one again: nothing more happens.
        for text in [Some("kernel update"), None, Some(""), Some("kernel update")] {
            environment.machine_mut().metadata.annotations = None;
            if let Some(text) = text {
                ask(&mut environment, text);
            }
            assert_eq!(environment.settle(), [""; 0], "{text:?}");
        }
        ask(&mut environment, "once more");
        environment.settle();
        assert_eq!(environment.restarted.len(), 2);
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        assert_eq!(strategy(&environment), usual);
    }
}

/// The same rule as on libvirt, with a test of the same name.
#[test]
fn a_guest_runs_on_until_it_could_be_started_again() {
    type Change = fn(&mut FakeCluster);
    let lacks_network: Change = |environment| {
        edit(environment, |block| {
            block.networks.push(nic("eth1", Some("storage")));
        });
    };
    let has_network: Change = |environment| {
        edit(environment, |block| {
            block.networks.pop();
        });
    };
    let has_address_of_another: Change = |environment| {
        environment.machine_mut().addresses.fault = Some(AddressFault {
            fault: Fault::new("AddressInUse", "Machine 'app' has it"),
            is_in_use: true,
            is_transient: false,
        });
    };
    let has_own_address: Change = |environment| environment.machine_mut().addresses.fault = None;
    for (reason, begin, end) in [
        ("NetworkConfigurationNotFound", lacks_network, has_network),
        ("AddressInUse", has_address_of_another, has_own_address),
    ] {
        let mut environment = running(true);
        let before = instance(&environment);
        begin(&mut environment);
        ask(&mut environment, "now");
        environment.settle();
        assert_eq!(reported(&environment, "NetworkReady"), ("False", reason));
        assert_eq!(environment.restarted, [""; 0], "{reason}");
        assert_eq!(instance(&environment), before, "{reason}");
        assert_eq!(strategy(&environment), "RerunOnFailure", "{reason}");
        let waits = reported(&environment, "RestartRequired");
        assert_eq!(waits, ("True", "RestartWaits"), "{reason}");
        assert!(message(&environment, "RestartRequired").contains(reason));

        end(&mut environment);
        environment.settle();
        assert_eq!(environment.restarted, Vec::from_iter(before), "{reason}");
        assert_eq!(last(&environment), Some(("now", None)));
        assert_eq!(reported(&environment, "RestartRequired"), ("", ""));
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    }
}

#[test]
fn a_restart_request_without_a_running_guest_is_done_at_once() {
    // The Machine is off.
    let mut environment = running(false);
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    environment.settle();
    ask(&mut environment, "now");
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(last(&environment), Some(("now", None)));
    assert_eq!(phase(&environment), Some(Phase::Stopped));
    edit(&mut environment, |block| {
        block.power_state = PowerState::Running;
    });
    environment.settle();
    assert_eq!(environment.restarted, [""; 0]);

    // Requested before the Machine was created, as in a file from Git.
    let mut environment = FakeCluster::new(machine(block()));
    ask(&mut environment, "now");
    environment.settle();
    assert_eq!(last(&environment), Some(("now", None)));
    assert_eq!(environment.restarted, [""; 0]);
}

#[test]
fn a_restart_request_starts_a_guest_that_shut_itself_down() {
    for is_gone in [false, true] {
        let mut environment = running(true);
        let ended = instance(&environment);
        let guest = environment.instance.as_mut().unwrap();
        guest.status.phase = "Succeeded".into();
        environment.settle();
        if is_gone {
            environment.instance = None;
            environment.settle();
        }
        assert_eq!(phase(&environment), Some(Phase::Stopped));
        assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
        let key = names::ANNOTATION_RESTART_REQUESTED;
        let text = message(&environment, "Ready");
        assert!(text.contains(key), "{text}");

        ask(&mut environment, "now");
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        assert!(instance(&environment).is_some() && instance(&environment) != ended);
        assert_eq!(last(&environment), Some(("now", None)));
        assert_eq!(strategy(&environment), "RerunOnFailure");
        // The request is used up: the next shutdown stays.
        environment.instance.as_mut().unwrap().status.phase = "Succeeded".into();
        environment.settle();
        assert_eq!(phase(&environment), Some(Phase::Stopped));
    }
}

#[test]
fn a_machine_switched_off_during_a_restart_stays_off() {
    let mut environment = running(true);
    ask(&mut environment, "now");
    environment.pass();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    environment.settle();
    assert_eq!(last(&environment), Some(("now", None)));
    assert_eq!(phase(&environment), Some(Phase::Stopped));
    assert_eq!(environment.restarted, [""; 0]);
}

#[test]
fn a_restart_requested_while_paused_happens_after_the_pause() {
    let mut environment = running(false);
    pause(environment.machine_mut());
    ask(&mut environment, "now");
    environment.settle();
    assert_eq!((last(&environment), environment.restarted.len()), (None, 0));
    environment.machine_mut().metadata.annotations = None;
    ask(&mut environment, "now");
    environment.settle();
    assert_eq!(environment.restarted.len(), 1);
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The controller is killed after any action, with or without the status written, and its caches may be stale:
    /// each request restarts one guest, and in the end one runs.
    #[test]
    fn each_request_restarts_one_guest(
        stops in any::<bool>(),
        steps in prop::collection::vec((0..4_usize, 0..3_usize, any::<bool>()), 1..30),
        requested_at in prop::collection::btree_set(0..30_usize, 1..3),
    ) {
        let mut environment = running(stops);
        let mut count = 0;
        let (mut past, mut seen_at) = (vec![environment.clone()], 0);
        for (at, (actions, age, moves)) in steps.into_iter().enumerate() {
            if requested_at.contains(&at) {
                count += 1;
                ask(&mut environment, &format!("request {count}"));
            }
            // A controller waits until its caches have its own writes; KubeVirt's changes arrive later, in order.
            seen_at = seen_at.max(past.len().saturating_sub(age + 1));
            let mut seen = past[seen_at].clone();
            seen.machine.clone_from(&environment.machine);
            seen.vm.clone_from(&environment.vm);
            let plan = seen.plan();
            environment.carry_out(&plan, actions);
            if moves {
                environment.advance_kubevirt();
            }
            past.push(environment.clone());
        }
        environment.settle();
        let mut once = environment.restarted.clone();
        once.dedup();
        prop_assert_eq!(&once, &environment.restarted);
        prop_assert!(once.len() <= count, "{} restarts for {count} requests", once.len());
        prop_assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        prop_assert!(last(&environment).is_none_or(|(_, replaces)| replaces.is_none()));
        prop_assert_eq!(strategy(&environment), if stops { "RerunOnFailure" } else { "Always" });
        // A request in a stable state is carried out.
        let before = environment.restarted.len();
        ask(&mut environment, "at last");
        environment.settle();
        prop_assert_eq!(environment.restarted.len(), before + 1);
        prop_assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    }
}
