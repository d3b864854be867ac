//! The power state, also while something else of the Machine cannot be changed.

use common::api::choice::{Phase, PowerState};
use common::quantity::Bytes;
use controller_core::backend::{Act as _, Growth};
use controller_core::fixtures::{block, machine};
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
