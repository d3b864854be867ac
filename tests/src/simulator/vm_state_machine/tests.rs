//! The transitions of one VirtualMachine.

use super::*;

fn machine(strategy: &str) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default", "generation": 1},
        "spec": {"runStrategy": strategy, "template": {"spec": {"volumes": []}}},
    })
}

fn instance(phase: &str) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"volumes": []},
        "status": {"phase": phase},
    })
}

fn step(machine: &Value, instance: Option<&Value>, scenario: Scenario) -> (Change, String) {
    let input = Input {
        machine,
        instance,
        has_launcher: false,
        claims: Claims::Bound,
        dependency_missing: false,
        migratable: true,
        hotplug: hotplug::Gate::Enabled,
        scenario,
        age: Duration::ZERO,
        start_pause: Duration::from_secs(10),
        now: Timestamp::UNIX_EPOCH,
    };
    let next = next(&input);
    (
        next.change,
        text(&next.status["printableStatus"]).to_owned(),
    )
}

#[test]
fn a_vm_with_run_strategy_always_gets_an_instance() {
    let (change, shown) = step(&machine("Always"), None, Scenario::Happy);
    assert_eq!((change, shown.as_str()), (Change::Create, "Starting"));
    let (change, shown) = step(&machine("Halted"), None, Scenario::Happy);
    assert_eq!((change, shown.as_str()), (Change::Nothing, "Stopped"));
}

#[test]
fn a_guest_that_shut_down_is_started_again_unless_the_strategy_is_rerun_on_failure() {
    let ended = instance("Succeeded");
    let (change, _) = step(&machine("Always"), Some(&ended), Scenario::Happy);
    assert_eq!(change, Change::Delete);
    let (change, shown) = step(&machine("RerunOnFailure"), Some(&ended), Scenario::Happy);
    assert_eq!((change, shown.as_str()), (Change::Delete, "Stopped"));
}

#[test]
fn rerun_on_failure_starts_no_new_instance_unless_the_guest_failed() {
    let mut machine = machine("RerunOnFailure");
    assert_eq!(step(&machine, None, Scenario::Happy).0, Change::Create);
    let shown = |machine: &Value, instance: &Value| {
        let input = Input {
            machine,
            instance: Some(instance),
            has_launcher: true,
            claims: Claims::Bound,
            dependency_missing: false,
            migratable: true,
            hotplug: hotplug::Gate::Enabled,
            scenario: Scenario::Happy,
            start_pause: Duration::from_secs(10),
            age: Duration::ZERO,
            now: Timestamp::UNIX_EPOCH,
        };
        next(&input).status
    };
    machine["status"] = shown(&machine, &instance("Running"));
    let (change, word) = step(&machine, None, Scenario::Happy);
    assert_eq!((change, word.as_str()), (Change::Nothing, "Stopped"));
    // Unless it failed, or was started by another strategy.
    let mut failed = machine.clone();
    failed["status"] = shown(&machine, &instance("Failed"));
    assert_eq!(step(&failed, None, Scenario::Happy).0, Change::Create);
    machine["status"]["runStrategy"] = json!("Always");
    assert_eq!(step(&machine, None, Scenario::Happy).0, Change::Create);
}

#[test]
fn a_start_that_failed_is_repeated_after_a_pause() {
    let mut crashes = machine("Always");
    let mut failed = instance("Failed");
    failed["metadata"]["uid"] = json!("a");
    let input = Input {
        machine: &crashes,
        instance: Some(&failed),
        has_launcher: false,
        claims: Claims::Bound,
        dependency_missing: false,
        migratable: true,
        hotplug: hotplug::Gate::Enabled,
        scenario: Scenario::Crash,
        start_pause: Duration::from_secs(10),
        age: Duration::ZERO,
        now: Timestamp::now(),
    };
    let next = next(&input);
    assert_eq!(next.change, Change::Delete);
    assert_eq!(next.status["startFailure"]["consecutiveFailCount"], 1);
    crashes["status"] = next.status;
    let retry = &mut crashes["status"]["startFailure"]["retryAfterTimestamp"];
    *retry = json!("2100-01-01T00:00:00Z");
    let (change, shown) = step(&crashes, None, Scenario::Crash);
    assert_eq!(change, Change::Nothing);
    assert_eq!(shown, "CrashLoopBackOff");
}

#[test]
fn a_stop_request_deletes_the_instance_and_a_start_request_makes_another_one() {
    let mut machine = machine("RerunOnFailure");
    let mut running = instance("Running");
    running["metadata"]["uid"] = json!("a");
    let requests = json!([{"action": "Stop", "uid": "a"}, {"action": "Start"}]);
    machine["status"] = json!({"runStrategy": "RerunOnFailure", "stateChangeRequests": requests});
    let (change, _) = step(&machine, Some(&running), Scenario::Happy);
    assert_eq!(change, Change::Delete);
    assert_eq!(step(&machine, None, Scenario::Happy).0, Change::Create);
}

#[test]
fn a_deleted_vm_stays_until_its_instance_has_ended() {
    let mut deleted = machine("Always");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let (change, shown) = step(&deleted, Some(&instance("Running")), Scenario::Happy);
    assert_eq!((change, shown.as_str()), (Change::Delete, "Terminating"));
    for (phase, change) in [("Running", Change::Nothing), ("Succeeded", Change::Release)] {
        let mut going = instance(phase);
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(step(&deleted, Some(&going), Scenario::Happy).0, change);
    }
}

#[test]
fn a_changed_template_needs_a_restart() {
    let mut changed = machine("Always");
    changed["spec"]["template"]["spec"]["volumes"] = json!([{"name": "new"}]);
    let running = instance("Running");
    let input = Input {
        machine: &changed,
        instance: Some(&running),
        has_launcher: true,
        claims: Claims::Bound,
        dependency_missing: false,
        migratable: true,
        hotplug: hotplug::Gate::Enabled,
        scenario: Scenario::Happy,
        start_pause: Duration::from_secs(10),
        age: Duration::ZERO,
        now: Timestamp::UNIX_EPOCH,
    };
    let conditions = next(&input).status["conditions"].clone();
    assert_eq!(conditions[0]["type"], "RestartRequired");
}
