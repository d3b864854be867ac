//! Guests that another client has stopped, whatever else is the matter with the Machine.

use common::api::choice::{Phase, PowerState, ReclaimPolicy};
use common::api::machine::Image;
use common::names;
use controller_core::conditions::Fault;
use controller_core::fixtures::{annotate, block, disk, machine, nic};
use controller_core::objects::Meta as _;
use serde_json::json;

use super::{edit, message, phase, reported};
use crate::environment::{FakeCluster, decode, some_time};
use controller_core::foreign_stop::OnForeignStop;

/// What keeps the VirtualMachine from being rendered again, so that its digest is not the desired one.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    Hold,
    Import,
    Network,
    EarlierSwitch,
}

const OBSTACLES: [Obstacle; 4] = [
    Obstacle::Hold,
    Obstacle::Import,
    Obstacle::Network,
    Obstacle::EarlierSwitch,
];

/// A Machine whose guest runs, and whose spec has changed in a way that cannot take effect.
fn blocked(obstacle: Obstacle, on_foreign_stop: OnForeignStop) -> FakeCluster {
    let mut environment = FakeCluster::new(machine(block()));
    environment.on_foreign_stop = on_foreign_stop;
    environment.settle();
    match obstacle {
        Obstacle::Hold => {
            environment.hold = Some(Fault::new("QuotaExceeded", "the quota is used up"));
            edit(&mut environment, |block| block.cpu.cores = 64);
        }
        Obstacle::Import => {
            environment.imports_hang = true;
            let image = Image {
                url: Some("https://images.example.com/data".into()),
                ..Image::default()
            };
            edit(&mut environment, |block| {
                let mut data = disk("data", ReclaimPolicy::Delete);
                data.image = Some(image);
                block.disks.push(data);
            });
        }
        Obstacle::Network => {
            edit(&mut environment, |block| {
                block.networks = vec![nic("eth0", Some("missing"))];
            });
        }
        Obstacle::EarlierSwitch => {
            let missing = vec![nic("eth0", Some("missing"))];
            edit(&mut environment, |block| block.networks = missing);
            switch(&mut environment, PowerState::Stopped);
            environment.settle();
            switch(&mut environment, PowerState::Running);
        }
    }
    environment.settle();
    assert!(environment.instance.is_some(), "{obstacle:?}");
    environment
}

fn switch(environment: &mut FakeCluster, state: PowerState) {
    edit(environment, |block| block.power_state = state);
}

fn strategy(environment: &FakeCluster) -> &str {
    &environment.vm.as_ref().unwrap().spec.run_strategy
}

fn uid(environment: &FakeCluster) -> String {
    environment.instance.as_ref().unwrap().uid().to_owned()
}

fn halt(environment: &mut FakeCluster) {
    "Halted".clone_into(&mut environment.vm.as_mut().unwrap().spec.run_strategy);
}

fn ask(environment: &mut FakeCluster, text: &str) {
    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(environment.machine_mut(), key, text);
}

#[test]
fn a_foreign_halt_is_undone_only_once_the_guest_is_down_although_the_spec_cannot_take_effect() {
    for obstacle in OBSTACLES {
        let mut environment = blocked(obstacle, OnForeignStop::Restore);
        let before = uid(&environment);
        halt(&mut environment);
        for _ in 0..2 {
            assert_eq!(environment.pass(), [""; 0], "{obstacle:?}");
            assert_eq!(
                reported(&environment, "Ready"),
                ("False", "ForeignStop"),
                "{obstacle:?}"
            );
        }
        while environment.instance.is_some() {
            environment.advance_kubevirt();
        }
        let done = environment.pass();
        assert_eq!(
            done,
            ["set the VirtualMachine's runStrategy to Always"],
            "{obstacle:?}"
        );
        environment.settle();
        assert_ne!(uid(&environment), before, "{obstacle:?}");
        assert_ne!(reported(&environment, "Ready").1, "ForeignStop");
    }
}

#[test]
fn a_foreign_halt_is_kept_although_the_spec_cannot_take_effect() {
    for obstacle in OBSTACLES {
        let mut environment = blocked(obstacle, OnForeignStop::Keep);
        halt(&mut environment);
        environment.settle();
        assert_eq!(
            reported(&environment, "Ready"),
            ("False", "ForeignStop"),
            "{obstacle:?}"
        );
        assert_eq!(strategy(&environment), "Halted", "{obstacle:?}");
        // Another change is no order to start the guest.
        edit(&mut environment, |block| block.cpu.cores += 1);
        environment.settle();
        assert_eq!(strategy(&environment), "Halted", "{obstacle:?}");
        // The user's own stop and start end it, as a request does.
        let mut switched = environment.clone();
        switch(&mut switched, PowerState::Stopped);
        switched.settle();
        assert_ne!(reported(&switched, "Ready").1, "ForeignStop");
        switch(&mut switched, PowerState::Running);
        ask(&mut environment, "now");
        for mut started in [switched, environment] {
            started.settle();
            assert_eq!(strategy(&started), "Always", "{obstacle:?}");
            assert!(started.instance.is_some(), "{obstacle:?}");
        }
    }
}

/// A Machine whose guest stays off once it has ended, and whose instance somebody has deleted while it ran.
fn deleted(on_foreign_stop: OnForeignStop) -> FakeCluster {
    let mut block = block();
    block.guest_shutdown_stops = true;
    let mut environment = FakeCluster::new(machine(block));
    environment.on_foreign_stop = on_foreign_stop;
    environment.settle();
    let instance = environment.instance.as_mut().unwrap();
    instance.metadata.deletion_timestamp = Some(some_time());
    environment
}

#[test]
fn a_guest_whose_instance_was_deleted_did_not_shut_itself_down_and_starts_again() {
    let mut environment = deleted(OnForeignStop::Restore);
    let before = uid(&environment);
    environment.pass();
    assert_eq!(reported(&environment, "Ready"), ("False", "ForeignStop"));
    let text = message(&environment, "Ready");
    assert!(
        text.contains("by deleting its VirtualMachineInstance; the guest is started again"),
        "{text}"
    );
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    assert_ne!(uid(&environment), before);
    assert_eq!(strategy(&environment), "RerunOnFailure");
    assert_eq!(environment.restarted, [""; 0], "nothing was deleted again");

    // The shutdown of the next guest is one from inside.
    "Succeeded".clone_into(&mut environment.instance.as_mut().unwrap().status.phase);
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
}

#[test]
fn a_guest_whose_instance_was_deleted_stays_off_by_the_setting_until_it_is_asked_for() {
    for starts_by_request in [true, false] {
        let mut environment = deleted(OnForeignStop::Keep);
        environment.pass();
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("False", "ForeignStop"));
        assert_eq!(phase(&environment), Some(Phase::Stopped));
        assert!(environment.instance.is_none());
        if starts_by_request {
            ask(&mut environment, "now");
        } else {
            switch(&mut environment, PowerState::Stopped);
            environment.settle();
            assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
            switch(&mut environment, PowerState::Running);
        }
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    }
}

/// KubeVirt starts it again itself.
#[test]
fn a_restart_by_virtctl_is_no_stop() {
    let mut environment = deleted(OnForeignStop::Restore);
    let vm = environment.vm.as_mut().unwrap();
    let requests = json!([{"action": "Stop"}, {"action": "Start"}]);
    vm.status.state_change_requests = decode(requests);
    environment.pass();
    assert_ne!(reported(&environment, "Ready").1, "ForeignStop");
    assert_eq!(environment.machine().status.last_restart, None);
}

#[test]
fn an_instance_that_was_deleted_after_its_guest_had_ended_is_no_stop() {
    for (ended, is_stop) in [
        ("2025-12-31T23:59:59Z", false),
        ("2026-01-01T00:00:05Z", true),
    ] {
        let mut environment = deleted(OnForeignStop::Keep);
        let status = &mut environment.instance.as_mut().unwrap().status;
        "Succeeded".clone_into(&mut status.phase);
        status.phase_transition_timestamps =
            decode(json!([{"phase": "Succeeded", "phaseTransitionTimestamp": ended}]));
        environment.pass();
        environment.settle();
        let expected = if is_stop {
            ("False", "ForeignStop")
        } else {
            ("True", "Stopped")
        };
        assert_eq!(reported(&environment, "Ready"), expected, "{ended}");
    }
}

/// KubeVirt takes the end of a guest that was halted for its own shutdown once the strategy is `RerunOnFailure` again.
#[test]
fn a_guest_that_was_shutting_down_when_it_is_to_run_again_starts() {
    let mut environment = deleted(OnForeignStop::Keep);
    environment
        .instance
        .as_mut()
        .unwrap()
        .metadata
        .deletion_timestamp = None;
    let before = uid(&environment);
    switch(&mut environment, PowerState::Stopped);
    environment.pass();
    environment.advance_kubevirt();
    assert!(environment.instance.as_ref().unwrap().is_deleting());
    switch(&mut environment, PowerState::Running);
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    assert_ne!(uid(&environment), before);
}
