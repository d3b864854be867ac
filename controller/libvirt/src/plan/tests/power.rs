//! Guests are stopped, started and restarted: by their users, by themselves, and by other clients.

use common::api::choice::ResetResult;
use common::quantity::Bytes;
use controller_core::fixtures::annotate;
use controller_core::plan::{Refusal, Subject};
use controller_core::reset::REFUSED;

use super::*;
use crate::plan::action::Action;

#[test]
fn a_guest_is_stopped_and_started_as_desired() {
    let mut env = Environment::new(block());
    env.settle();
    env.power(PowerState::Stopped);
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Stopped));
    assert_eq!(reported(&env, "Ready"), ("True", "Stopped"));
    assert_eq!(state(&env), Some(State::ShutOff));
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(phase(&env), Some(Phase::Running));
    assert_eq!((times(&env, "start"), times(&env, "destroy")), (2, 0));
}

#[test]
fn a_guest_that_ignores_shutdown_requests_is_ended_after_its_grace_period() {
    for (period, seconds) in [(None, 60), (Some(20), 20), (Some(180), 180)] {
        let mut env = Environment::new(block());
        env.edit(|block| block.termination_grace_period_seconds = period);
        env.host.state().guest.acpi = false;
        env.settle();
        env.power(PowerState::Stopped);
        // The first pass requests it.
        env.pass();
        let end = env.now + time::Duration::seconds(seconds);
        while env.now < end {
            assert_eq!(state(&env), Some(State::Running), "{period:?}");
            assert_eq!(reported(&env, "Ready"), ("False", "Stopping"));
            env.pass();
        }
        env.settle();
        assert_eq!(state(&env), Some(State::ShutOff));
        assert_eq!(times(&env, "destroy"), 1);
    }
}

#[test]
fn a_guest_that_another_client_switches_off_is_reported_and_started_again_or_kept_off() {
    for setting in [OnForeignStop::Restore, OnForeignStop::Keep] {
        let mut env = Environment::new(block());
        env.on_foreign_stop = setting;
        env.settle();
        env.host.is_switched_off(domain_uuid(UID));
        env.pass();
        assert_eq!(reported(&env, "Ready"), ("False", "ForeignStop"));
        env.settle();
        if setting == OnForeignStop::Restore {
            assert_eq!(state(&env), Some(State::Running));
            assert_eq!(reported(&env, "Ready"), ("True", "Running"));
            continue;
        }
        assert_eq!(state(&env), Some(State::ShutOff));
        assert_eq!(reported(&env, "Ready"), ("False", "ForeignStop"));
        assert_eq!(phase(&env), Some(Phase::Stopped));
        // The daemon was restarted and has lost the reason of the state.
        let lose_reason = |env: &Environment| {
            let mut state = env.host.state();
            state.domains.get_mut(&domain_uuid(UID)).unwrap().reason = 0;
        };
        env.host.set_reachable(false);
        env.pass();
        assert_eq!(reported(&env, "Ready"), ("Unknown", "HostUnreachable"));
        env.host.set_reachable(true);
        lose_reason(&env);
        env.settle();
        assert_eq!(state(&env), Some(State::ShutOff));
        assert_eq!(reported(&env, "Ready"), ("False", "ForeignStop"));
        annotate(env.machine_mut(), names::ANNOTATION_RESTART_REQUESTED, "on");
        env.settle();
        assert_eq!(state(&env), Some(State::Running));
        assert_eq!(reported(&env, "Ready"), ("True", "Running"));
        let defined = env.host.state().domains[&domain_uuid(UID)].inactive.clone();
        assert!(!defined.contains("keptOff"), "{defined}");
    }
}

#[test]
fn a_guest_that_is_switched_off_during_maintenance_is_started_after_it() {
    let mut env = Environment::new(block());
    env.settle();
    env.object.spec.maintenance = Some(true);
    env.host.is_switched_off(domain_uuid(UID));
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("False", "HostMaintenance"));
    assert_eq!(state(&env), Some(State::ShutOff));
    env.object.spec.maintenance = None;
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
}

#[test]
fn a_guest_that_the_controller_switches_off_is_no_foreign_stop() {
    let mut env = Environment::new(block());
    env.on_foreign_stop = OnForeignStop::Keep;
    env.host.state().guest.acpi = false;
    env.settle();
    env.power(PowerState::Stopped);
    env.settle();
    assert_eq!(times(&env, "destroy"), 1);
    assert_eq!(reported(&env, "Ready"), ("True", "Stopped"));
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
}

#[test]
fn a_guest_that_shuts_itself_down_is_started_again_unless_guest_shutdown_stops() {
    let mut env = Environment::new(block());
    env.settle();
    env.host.guest_shuts_down(domain_uuid(UID));
    env.settle();
    assert_eq!(state(&env), Some(State::Running));

    env.edit(|block| block.guest_shutdown_stops = true);
    env.settle();
    env.host.guest_shuts_down(domain_uuid(UID));
    env.settle();
    assert_eq!(state(&env), Some(State::ShutOff));
    assert_eq!(reported(&env, "Ready"), ("True", "Stopped"));
    // The daemon was restarted and has lost the reason of the state.
    env.host
        .state()
        .domains
        .get_mut(&domain_uuid(UID))
        .unwrap()
        .reason = 0;
    env.settle();
    assert_eq!(state(&env), Some(State::ShutOff));
    // The user sets powerState to Stopped and to Running again.
    env.power(PowerState::Stopped);
    env.settle();
    env.power(PowerState::Running);
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
    // QEMU crashed: the guest did not shut itself down.
    env.host.qemu_crashes(domain_uuid(UID));
    env.pass();
    assert_eq!(reported(&env, "Ready"), ("False", "VMFailed"));
    assert_eq!(state(&env), Some(State::ShutOff), "backoff");
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
}

#[test]
fn a_restart_happens_once_for_each_request_however_often_it_is_interrupted() {
    for broken in 0..12 {
        let mut env = Environment::new(block());
        env.edit(|block| block.guest_shutdown_stops = true);
        env.settle();
        let key = names::ANNOTATION_RESTART_REQUESTED;
        annotate(env.machine_mut(), key, "now");
        for _ in 0..broken {
            env.pass_until(broken % 3);
        }
        env.settle();
        assert_eq!(state(&env), Some(State::Running), "{broken}");
        assert_eq!(times(&env, "start"), 2, "{broken}: {:#?}", env.host.calls());
        let last = env.machine().status.last_restart.clone();
        assert_eq!(last.map(|last| last.request).as_deref(), Some("now"));
        env.settle();
        assert_eq!(times(&env, "start"), 2);
    }
}

#[test]
fn a_restart_request_starts_a_guest_that_shut_itself_down_once_however_often_it_is_broken_off() {
    for broken in 0..12 {
        let mut env = Environment::new(block());
        env.edit(|block| block.guest_shutdown_stops = true);
        env.settle();
        env.host.guest_shuts_down(domain_uuid(UID));
        env.settle();
        assert_eq!(state(&env), Some(State::ShutOff));
        let conditions = &env.machine().status.conditions;
        let ready = conditions.iter().find(|it| it.kind == "Ready").unwrap();
        let key = names::ANNOTATION_RESTART_REQUESTED;
        assert!(ready.message.contains(key), "{}", ready.message);
        annotate(env.machine_mut(), key, "now");
        for _ in 0..broken {
            env.pass_until(broken % 3);
        }
        env.settle();
        assert_eq!(state(&env), Some(State::Running), "{broken}");
        assert_eq!(times(&env, "start"), 2, "{broken}: {:#?}", env.host.calls());
        assert_eq!(times(&env, "shutdown"), 0, "it is not restarted once more");
        let last = env.machine().status.last_restart.clone();
        assert_eq!(last.map(|last| last.request).as_deref(), Some("now"));
        // The request is used up: the next shutdown stays again.
        env.host.guest_shuts_down(domain_uuid(UID));
        env.settle();
        assert_eq!(state(&env), Some(State::ShutOff));
    }
}

#[test]
fn a_requested_reset_is_the_last_action_and_recorded_unless_it_failed() {
    let mut env = Environment::new(block());
    env.settle();
    annotate(
        env.machine_mut(),
        names::ANNOTATION_RESET_REQUESTED,
        "hangs",
    );
    env.edit(|block| block.disks[0].size = Bytes::mib(100 * 1024));
    let plan = env.plan_after(None).unwrap();
    assert!(plan.actions.len() > 1, "{:?}", plan.actions);
    assert_eq!(plan.actions.last(), Some(&Action::Reset));
    for (subject, reason, result) in [
        (Subject::Reset, None, None),
        (Subject::Storage, None, Some(ResetResult::Done)),
        (Subject::Reset, Some(REFUSED), Some(ResetResult::Refused)),
    ] {
        let refusal = Refusal {
            subject,
            reason,
            message: "why".into(),
        };
        let plan = env.plan_after(Some(&refusal)).unwrap();
        let resets = plan.actions.contains(&Action::Reset);
        assert_eq!(resets, result == Some(ResetResult::Done), "{refusal:?}");
        let status = plan.status.unwrap();
        let last = status.last_reset.and_then(|last| last.result);
        assert_eq!(last, result, "{refusal:?}");
        // A reset that is refused for good is no fault of the guest.
        let is_why = status
            .conditions
            .iter()
            .any(|it| it.message.contains("why"));
        assert_eq!(is_why, reason.is_none(), "{refusal:?}");
    }
    env.settle();
    let last = env.machine().status.last_reset.clone().unwrap();
    assert_eq!(last.result, Some(ResetResult::Done));
    assert_eq!(times(&env, "reset"), 1);
}

#[test]
fn a_guest_that_is_stopped_or_restarted_or_off_is_not_reset() {
    let reset = names::ANNOTATION_RESET_REQUESTED;
    let restart = names::ANNOTATION_RESTART_REQUESTED;
    for (power, restarts, why) in [
        (PowerState::Stopped, false, "spec.powerState is Stopped"),
        (PowerState::Stopped, true, "spec.powerState is Stopped"),
        (PowerState::Running, true, "is being restarted"),
    ] {
        let mut env = Environment::new(block());
        env.settle();
        env.power(power);
        annotate(env.machine_mut(), reset, "hangs");
        if restarts {
            annotate(env.machine_mut(), restart, "now");
        }
        env.pass();
        let last = env.machine().status.last_reset.clone().unwrap();
        assert_eq!(last.result, Some(ResetResult::Refused), "{why}");
        assert!(last.message.unwrap().contains(why));
        env.settle();
        assert_eq!(times(&env, "reset"), 0, "not later either");
        assert_eq!(
            times(&env, "start"),
            1 + usize::from(power == PowerState::Running)
        );
    }
    // A guest that is about to be started is off, too.
    let mut env = Environment::new(block());
    env.power(PowerState::Stopped);
    env.settle();
    env.power(PowerState::Running);
    annotate(env.machine_mut(), reset, "hangs");
    env.settle();
    assert_eq!(times(&env, "reset"), 0);
    let last = env.machine().status.last_reset.clone().unwrap();
    assert_eq!(last.result, Some(ResetResult::Refused));
}
