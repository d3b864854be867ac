//! Guests that were stopped, taken down or changed by others.

use common::api::choice::{Phase, PowerState};
use common::names;
use controller_core::conditions::Fault;
use controller_core::fixtures::{annotate, block, machine};
use controller_core::objects::Meta as _;
use serde_json::json;

use super::{edit, machine_with_every_object, message, phase, reported};
use crate::environment::{FakeCluster, decode};
use crate::plan::Eviction;
use controller_core::foreign_stop::OnForeignStop;

fn running(stops: bool) -> FakeCluster {
    let mut block = block();
    block.guest_shutdown_stops = stops;
    let mut environment = FakeCluster::new(machine(block));
    environment.settle();
    environment
}

fn strategy(environment: &FakeCluster) -> &str {
    &environment.vm.as_ref().unwrap().spec.run_strategy
}

fn halt(environment: &mut FakeCluster) {
    "Halted".clone_into(&mut environment.vm.as_mut().unwrap().spec.run_strategy);
}

fn ask(environment: &mut FakeCluster, text: &str) {
    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(environment.machine_mut(), key, text);
}

#[test]
fn a_guest_whose_pod_was_evicted_is_started_again_and_one_that_shut_down_stays_off() {
    for is_gone in [false, true] {
        let mut environment = running(true);
        let ended = environment.instance.as_ref().unwrap().uid().to_owned();
        let guest = environment.instance.as_mut().unwrap();
        "Succeeded".clone_into(&mut guest.status.phase);
        let instance = if is_gone {
            String::new()
        } else {
            ended.clone()
        };
        if is_gone {
            environment.instance = None;
        }
        environment.set_printable_status("Stopped");
        let cause = "its pod web-x was evicted".to_owned();
        environment.eviction = Some(Eviction { instance, cause });
        environment.pass();
        environment.eviction = None;
        assert_eq!(reported(&environment, "Ready"), ("False", "Restarting"));
        assert_eq!(
            message(&environment, "Ready"),
            "the guest is started again: its pod web-x was evicted"
        );
        assert_eq!(strategy(&environment), "Always");
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        assert_ne!(environment.instance.as_ref().unwrap().uid(), ended);
        assert_eq!(strategy(&environment), "RerunOnFailure");
        let last = environment.machine().status.last_restart.clone().unwrap();
        assert_eq!((last.replaces, last.cause), (None, None));

        // The next shutdown is one from inside.
        "Succeeded".clone_into(&mut environment.instance.as_mut().unwrap().status.phase);
        environment.settle();
        assert_eq!(phase(&environment), Some(Phase::Stopped));
    }
}

#[test]
fn an_instance_that_waits_for_a_node_is_replaced_when_the_spec_changes() {
    for stops in [false, true] {
        let mut environment = running(stops);
        let waits = environment.instance.as_mut().unwrap();
        "Scheduling".clone_into(&mut waits.status.phase);
        let before = waits.uid().to_owned();
        environment.set_printable_status("ErrorUnschedulable");
        edit(&mut environment, |block| block.cpu.cores = 1);
        // The status is written first and names the instance.
        environment.pass();
        assert_eq!(environment.restarted, [""; 0]);
        environment.pass();
        assert_eq!(environment.restarted, [before]);
        environment.settle();
        let guest = environment.instance.as_ref().unwrap();
        assert_eq!(guest.spec.domain.cpu.cores, 1);
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    }
}

#[test]
fn a_guest_that_runs_is_not_replaced_when_the_spec_changes() {
    let mut environment = running(false);
    edit(&mut environment, |block| block.cpu.cores = 1);
    environment.settle();
    assert_eq!(environment.restarted, [""; 0]);
    // It got a node just before it would have been replaced.
    let waits = environment.instance.as_mut().unwrap();
    "Scheduling".clone_into(&mut waits.status.phase);
    environment.set_printable_status("Starting");
    edit(&mut environment, |block| block.cpu.cores = 2);
    environment.pass();
    assert_eq!(reported(&environment, "Ready"), ("False", "Restarting"));
    environment.settle();
    assert_eq!(environment.restarted, [""; 0]);
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

/// A status that cannot be read, or none, is no proof that the guest never ran.
#[test]
fn a_guest_that_runs_is_not_replaced_although_its_status_cannot_be_read() {
    let mut environment = running(false);
    environment.instance.as_mut().unwrap().status = decode(json!({}));
    let before = environment.machine().status.last_restart.clone();
    edit(&mut environment, |block| block.cpu.cores = 1);
    environment.pass();
    assert_eq!(environment.machine().status.last_restart, before);
    environment.pass();
    assert_eq!(environment.restarted, [""; 0]);

    // It was to be replaced, and the cache is behind.
    let mut environment = running(false);
    let waits = environment.instance.as_mut().unwrap();
    "Scheduling".clone_into(&mut waits.status.phase);
    environment.set_printable_status("ErrorUnschedulable");
    edit(&mut environment, |block| block.cpu.cores = 1);
    environment.pass();
    let plan = environment.plan();
    let guest = environment.instance.as_mut().unwrap();
    "Running".clone_into(&mut guest.status.phase);
    environment.carry_out(&plan, plan.steps().count());
    assert_eq!(environment.restarted, [""; 0]);
}

#[test]
fn a_foreign_halt_is_reported_and_undone_once_the_guest_is_down() {
    for stops in [false, true] {
        let mut environment = running(stops);
        let before = environment.instance.as_ref().unwrap().uid().to_owned();
        halt(&mut environment);
        assert_eq!(environment.pass(), [""; 0], "nothing while the guest is up");
        assert_eq!(reported(&environment, "Ready"), ("False", "ForeignStop"));
        let text = message(&environment, "Ready");
        assert!(
            text.contains("set spec.powerState of the Machine to Stopped"),
            "{text}"
        );
        while environment.instance.is_some() {
            environment.advance_kubevirt();
        }
        assert_eq!(environment.pass(), ["updated the VirtualMachine"]);
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        assert_ne!(environment.instance.as_ref().unwrap().uid(), before);
    }
}

#[test]
fn a_foreign_halt_is_kept_by_the_setting_until_power_state_changes() {
    let kept = || {
        let mut environment = running(false);
        environment.on_foreign_stop = OnForeignStop::Keep;
        halt(&mut environment);
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("False", "ForeignStop"));
        assert_eq!(phase(&environment), Some(Phase::Stopped));
        environment
    };
    // Another change of the spec is no order to start the guest.
    let mut environment = kept();
    edit(&mut environment, |block| block.cpu.cores = 1);
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("False", "ForeignStop"));
    assert_eq!(strategy(&environment), "Halted");

    let mut environment = kept();
    ask(&mut environment, "now");
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    assert_eq!(strategy(&environment), "Always");

    let mut environment = kept();
    for (state, reason) in [
        (PowerState::Stopped, "Stopped"),
        (PowerState::Running, "Running"),
    ] {
        edit(&mut environment, |block| block.power_state = state);
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", reason));
    }
}

#[test]
fn a_stop_of_ours_that_is_taken_back_is_no_foreign_one() {
    let mut environment = machine_with_every_object();
    environment.settle();
    // The VirtualMachine cannot be updated, only switched.
    environment.networks.clear();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    environment.pass();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Running;
    });
    environment.pass();
    assert_ne!(reported(&environment, "Ready").1, "ForeignStop");
    assert_eq!(strategy(&environment), "Always");
}

#[test]
fn a_volume_that_others_plugged_in_is_listed_and_stays() {
    let mut environment = running(false);
    let source = json!({"claimName": "shared", "hotpluggable": true});
    let vm = environment.vm.as_mut().unwrap();
    let spec = &mut vm.spec.template.spec;
    spec.volumes.push(decode(
        json!({"name": "scratch", "persistentVolumeClaim": source}),
    ));
    let disk = json!({"name": "scratch", "disk": {"bus": "scsi"}});
    spec.domain.devices.disks.push(decode(disk));
    assert_eq!(environment.settle(), [""; 0]);
    let text = message(&environment, "VirtualMachineReady");
    assert!(
        text.ends_with("does not have: scratch (claim shared)"),
        "{text}"
    );
    assert_eq!(environment.machine().status.pending_changes, []);
    environment.hold = Some(Fault::new("QuotaExceeded", "the quota is used up"));
    environment.pass();
    assert_eq!(environment.machine().status.pending_changes, []);
    environment.hold = None;

    edit(&mut environment, |block| block.cpu.cores = 1);
    environment.settle();
    let vm = environment.vm.as_ref().unwrap();
    let volumes = &vm.spec.template.spec.volumes;
    assert!(volumes.iter().any(|volume| volume.name == "scratch"));
    assert_eq!(vm.spec.template.spec.domain.cpu.cores, 1);
}
