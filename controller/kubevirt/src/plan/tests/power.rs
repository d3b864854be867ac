//! The power state, also while something else of the Machine cannot be changed.

use common::api::choice::{Phase, PowerState, ResetResult};
use common::names;
use common::quantity::Bytes;
use controller_core::backend::{Act as _, Growth};
use controller_core::fixtures::{annotate, block, machine};
use controller_core::plan::{Now, Refusal, Subject};
use controller_core::reconcile::plan;
use time::OffsetDateTime;

use super::{edit, machine_with_every_object, phase, reported};
use crate::backend::KubeVirt;
use crate::environment::FakeCluster;
use crate::plan::action::Action;

#[test]
fn power_becomes_the_run_strategy() {
    for (state, stops, strategy, ends) in [
        (PowerState::Running, false, "Always", Phase::Running),
        (PowerState::Running, true, "RerunOnFailure", Phase::Running),
        (PowerState::Stopped, false, "Halted", Phase::Stopped),
        (PowerState::Stopped, true, "Halted", Phase::Stopped),
    ] {
        let mut block = block();
        (block.power_state, block.guest_shutdown_stops) = (state, stops);
        let mut environment = FakeCluster::new(machine(block));
        environment.settle();
        assert_eq!(environment.vm.as_ref().unwrap().spec.run_strategy, strategy);
        assert_eq!(phase(&environment), Some(ends));
        assert_eq!(reported(&environment, "Ready").0, "True");
    }
}

#[test]
fn a_guest_whose_network_is_missing_can_be_switched_off() {
    let mut environment = machine_with_every_object();
    environment.settle();
    environment.networks.clear();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
        block.cpu.cores = 8;
    });
    let done = environment.settle();
    assert_eq!(done, ["set the VirtualMachine's runStrategy to Halted"]);
    assert_eq!(phase(&environment), Some(Phase::Stopped));
    assert_eq!(
        reported(&environment, "Ready"),
        ("False", "NetworkConfigurationNotFound")
    );
}

#[test]
fn a_refused_action_does_not_stop_the_power_switch() {
    let mut environment = machine_with_every_object();
    environment.settle();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
        block.cpu.cores = 8;
        block.disks[0].size = Bytes::mib(30 * 1024);
    });
    let refusal = Refusal {
        subject: Subject::Storage,
        reason: None,
        message: "it cannot grow".into(),
    };
    let refused = plan::<KubeVirt>(
        environment.machine(),
        &environment.observed(),
        Some(&refusal),
        Growth::Permitted,
        Now(OffsetDateTime::UNIX_EPOCH),
    );
    let actions: Vec<_> = refused.actions.iter().map(ToString::to_string).collect();
    assert!(
        actions.contains(&"set the VirtualMachine's runStrategy to Halted".to_owned()),
        "{actions:?}"
    );
    assert!(!actions.contains(&"updated the VirtualMachine".to_owned()));
    // A size that the storage refuses does not stop anything else.
    assert_eq!(
        environment.pass(),
        [
            "updated the VirtualMachine",
            "updated PersistentVolumeClaim web-root"
        ]
    );
}

#[test]
fn what_was_refused_may_be_needed_by_a_start_and_by_no_stop() {
    let set = |strategy: &str| Action::SetRunStrategy {
        uid: "u".into(),
        strategy: strategy.into(),
    };
    let reset = Action::ResetGuest { uid: "u".into() };
    let actions = [set("Halted"), reset, set("Always"), set("RerunOnFailure")];
    let carried_out = actions.map(|action| action.stops_or_resets());
    assert_eq!(carried_out, [true, true, false, false]);
    // The VirtualMachine is complete, and its own claims are checked when it is started.
    assert!(set("Always").goes_on_after(Subject::Guest));
    for refused in [Subject::Storage, Subject::Network, Subject::Machine] {
        assert!(!set("Always").goes_on_after(refused), "{refused:?}");
        assert!(set("Halted").goes_on_after(refused), "{refused:?}");
    }
}

#[test]
fn a_guest_that_is_stopped_or_restarted_is_not_reset() {
    for (power, restarts, why) in [
        (PowerState::Stopped, false, "spec.powerState is Stopped"),
        (PowerState::Stopped, true, "spec.powerState is Stopped"),
        (PowerState::Running, true, "is being restarted"),
    ] {
        let mut environment = FakeCluster::new(machine(block()));
        environment.settle();
        edit(&mut environment, |block| block.power_state = power);
        let machine = environment.machine_mut();
        annotate(machine, names::ANNOTATION_RESET_REQUESTED, "hangs");
        if restarts {
            annotate(machine, names::ANNOTATION_RESTART_REQUESTED, "now");
        }
        environment.pass();
        let last = environment.machine().status.last_reset.clone().unwrap();
        assert_eq!(last.result, Some(ResetResult::Refused), "{why}");
        assert!(last.message.unwrap().contains(why));
        environment.settle();
        assert_eq!(environment.resets, [""; 0], "not later either");
        let replaced = usize::from(power == PowerState::Running);
        assert_eq!(environment.restarted.len(), replaced, "{why}");
    }
}

#[test]
fn a_guest_whose_restart_waits_for_what_was_refused_is_reset() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    let machine = environment.machine_mut();
    annotate(machine, names::ANNOTATION_RESET_REQUESTED, "hangs");
    annotate(machine, names::ANNOTATION_RESTART_REQUESTED, "now");
    for (subject, resets) in [(Subject::Guest, true), (Subject::Storage, false)] {
        let refusal = Refusal {
            subject,
            reason: None,
            message: "no".into(),
        };
        let (machine, observed) = (environment.machine(), environment.observed());
        let now = Now(OffsetDateTime::UNIX_EPOCH);
        let permitted = Growth::Permitted;
        let plan = plan::<KubeVirt>(machine, &observed, Some(&refusal), permitted, now);
        let mut actions = plan.actions.iter();
        let has_reset = actions.any(|action| matches!(action, Action::ResetGuest { .. }));
        assert_eq!(has_reset, resets, "{subject:?}");
    }
}
