//! Conditions that repeat what KubeVirt reports of the running guest.

use serde_json::json;

use super::{message, reported};
use crate::environment::{FakeCluster, decode};
use controller_core::fixtures::{block, machine, pause};

fn running() -> FakeCluster {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    environment
}

/// KubeVirt reports more of the running guest.
fn report(environment: &mut FakeCluster, more: &serde_json::Value) {
    let instance = environment.instance.as_mut().unwrap();
    let mut status = json!(instance.status);
    for (key, value) in more.as_object().unwrap() {
        status[key] = value.clone();
    }
    instance.status = decode(status);
    environment.pass();
}

#[test]
fn whether_the_guest_can_migrate_is_reported_with_the_reason() {
    let mut environment = running();
    assert_eq!(reported(&environment, "LiveMigratable"), ("", ""));
    let says = |status: &str, reason: &str| json!({"conditions": [{"type": "LiveMigratable", "status": status, "reason": reason, "message": "PVC web-root is not shared"}]});
    report(&mut environment, &says("True", ""));
    let expected = ("True", "LiveMigratable");
    assert_eq!(reported(&environment, "LiveMigratable"), expected);
    for (kubevirt, ours) in [
        ("DisksNotLiveMigratable", "DisksNotLiveMigratable"),
        ("InterfaceNotLiveMigratable", "InterfaceNotLiveMigratable"),
        ("NewInSomeVersion", "NotLiveMigratable"),
    ] {
        report(&mut environment, &says("False", kubevirt));
        assert_eq!(reported(&environment, "LiveMigratable"), ("False", ours));
        let text = message(&environment, "LiveMigratable");
        assert!(text.ends_with(": PVC web-root is not shared"), "{text}");
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    }
}

#[test]
fn what_a_drain_does_with_a_guest_that_cannot_migrate_depends_on_its_strategy() {
    let mut environment = running();
    for (strategy, effect) in [
        ("", "draining its node shuts it down"),
        ("None", "draining its node shuts it down"),
        ("LiveMigrateIfPossible", "draining its node shuts it down"),
        (
            "LiveMigrate",
            "a drain of its node waits until the guest is stopped",
        ),
        (
            "External",
            "a drain of its node waits until the guest is stopped",
        ),
    ] {
        let instance = environment.instance.as_mut().unwrap();
        instance.spec.eviction_strategy = strategy.into();
        let obstacle = json!({"type": "LiveMigratable", "status": "False", "message": "no"});
        report(&mut environment, &json!({"conditions": [obstacle]}));
        let text = message(&environment, "LiveMigratable");
        assert!(
            text.contains(&format!("so {effect}: no")),
            "{strategy}: {text}"
        );
    }
}

/// KubeVirt sets these in the moment before the VirtualMachine is up: one status write instead of two.
#[test]
fn what_a_guest_reports_while_it_starts_is_written_when_it_is_up() {
    let mut environment = running();
    environment.set_printable_status("Starting");
    let condition = json!({"type": "LiveMigratable", "status": "True"});
    let more = json!({"conditions": [condition], "nodeName": "node-1"});
    report(&mut environment, &more);
    let status = &environment.machine().status;
    assert_eq!(status.vmi_name.as_deref(), Some("web"));
    assert_eq!(status.node_name, None);
    assert_eq!(reported(&environment, "LiveMigratable"), ("", ""));
    environment.set_printable_status("Running");
    environment.pass();
    let status = &environment.machine().status;
    assert_eq!(status.node_name.as_deref(), Some("node-1"));
    let expected = ("True", "LiveMigratable");
    assert_eq!(reported(&environment, "LiveMigratable"), expected);
}

#[test]
fn an_eviction_and_the_progress_of_a_migration_are_reported() {
    let mut environment = running();
    report(&mut environment, &json!({"evacuationNodeName": "node-1"}));
    let requested = ("True", "EvictionRequested");
    assert_eq!(reported(&environment, "EvictionRequested"), requested);
    let text = message(&environment, "EvictionRequested");
    assert!(text.contains("leave node-1"), "{text}");
    let mut migration = json!({"sourceNode": "node-1", "targetNode": "node-2"});
    report(&mut environment, &json!({"migrationState": migration}));
    assert_eq!(reported(&environment, "Migrating"), ("True", "Migrating"));
    let text = message(&environment, "Migrating");
    assert!(text.contains("from node-1 to node-2"), "{text}");

    migration["completed"] = json!(true);
    let mut failed = migration.clone();
    failed["failed"] = json!(true);
    failed["failureReason"] = json!("the target is gone");
    report(&mut environment, &json!({"migrationState": failed}));
    let expected = ("False", "MigrationFailed");
    assert_eq!(reported(&environment, "Migrating"), expected);
    let text = message(&environment, "Migrating");
    assert!(text.ends_with(": the target is gone"), "{text}");

    let conditions = json!([{"type": "EvictionRequested", "status": "True"}]);
    let done = json!({
        "migrationState": migration, "evacuationNodeName": "", "conditions": conditions,
    });
    report(&mut environment, &done);
    assert_eq!(reported(&environment, "Migrating"), ("", ""));
    assert_eq!(reported(&environment, "EvictionRequested"), requested);
    report(&mut environment, &json!({"conditions": []}));
    assert_eq!(reported(&environment, "EvictionRequested"), ("", ""));
}

#[test]
fn a_paused_machine_says_that_it_is_paused_instead_of_what_it_would_do() {
    let mut environment = FakeCluster::new(machine(block()));
    pause(environment.machine_mut());
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("False", "Paused"));

    let mut environment = running();
    pause(environment.machine_mut());
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    super::edit(&mut environment, |block| {
        block.power_state = common::api::choice::PowerState::Stopped;
    });
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("False", "Paused"));
}
