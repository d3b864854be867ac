//! Disks on existing claims: used as they are, by one guest at a time, and never written.

use common::api::choice::{Phase, PowerState, ReclaimPolicy};
use common::catalog::ClaimUser;
use common::names;
use serde_json::{Value, json};

use super::{edit, message, phase, reported};
use crate::apply::claim_user::UserKind;
use crate::environment::{FakeCluster, claims_of, decode, some_time};
use crate::objects::{Claim, Instance};
use controller_core::fixtures::{annotate, block, disk, existing_disk, machine};
use controller_core::objects::Meta as _;

/// A claim that a user made, with labels and annotations of theirs.
fn claim() -> Value {
    json!({
        "metadata": {
            "name": "old-disk", "namespace": "default", "uid": "uid-of-old-disk", "resourceVersion": "7",
            "labels": {"app": "legacy"}, "annotations": {"owner": "ops"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeName": "pv-old",
            "resources": {"requests": {"storage": "30Gi"}},
        },
        "status": {"phase": "Bound", "capacity": {"storage": "30Gi"}},
    })
}

/// A Machine with a disk of its own and one on an existing claim.
fn new() -> FakeCluster {
    let mut block = block();
    block.existing_disks.push(existing_disk("old", "old-disk"));
    block.deletion_protection = true;
    let mut environment = FakeCluster::new(machine(block));
    environment
        .claims
        .insert("old-disk".into(), decode(claim()));
    environment
}

fn is_untouched(environment: &FakeCluster) -> bool {
    // Kubernetes and the storage write the status.
    let written = |claim: &Claim| json!([claim.metadata, claim.spec]);
    let live = environment.claims.get("old-disk");
    live.is_some_and(|live| written(live) == written(&decode(claim())))
}

fn pod(phase: &str) -> (UserKind, Value) {
    let volumes = json!([{"persistentVolumeClaim": {"claimName": "old-disk"}}]);
    let pod = json!({
        "metadata": {"name": "backup"}, "spec": {"volumes": volumes}, "status": {"phase": phase},
    });
    (UserKind::Pod, pod)
}

#[test]
fn the_guest_gets_the_claim_and_nothing_ever_writes_it() {
    let mut environment = new();
    environment.machine_mut().is_protected = true;
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    let vm = environment.vm.clone().unwrap();
    assert!(claims_of(&vm).any(|claim| claim == "old-disk"));
    let volumes = &environment.machine().status.volumes;
    assert_eq!(volumes[1].claim_name, "old-disk");
    assert_eq!(volumes[1].capacity.as_deref(), Some("30Gi"));
    assert!(is_untouched(&environment));

    edit(&mut environment, |block| block.existing_disks.clear());
    environment.settle();
    assert!(is_untouched(&environment), "a disk left the spec");
    edit(&mut environment, |block| {
        block.existing_disks.push(existing_disk("old", "old-disk"));
        block.deletion_protection = false;
    });
    environment.settle();
    environment.delete_machine();
    environment.settle();
    assert!(environment.machine.is_none(), "the deletion did not end");
    assert!(is_untouched(&environment));
    assert!(!environment.claims.contains_key("web-root"));
}

#[test]
fn a_claim_that_a_pod_uses_is_given_to_no_guest_until_the_pod_has_ended() {
    let mut environment = new();
    environment.claim_users.push(pod("Running"));
    environment.settle();
    let expected = ("False", "ClaimInUse");
    assert_eq!(reported(&environment, "StorageReady"), expected);
    assert!(environment.vm.is_none());
    let message = message(&environment, "StorageReady");
    assert!(message.contains("is used by Pod 'backup'"), "{message}");
    assert!(environment.plan().requeue_after.is_some());

    environment.claim_users[0] = pod("Succeeded");
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    // The guest keeps the claim, whoever comes later.
    environment.claim_users[0] = pod("Running");
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    assert!(is_untouched(&environment));
}

/// The guest that replaces it would have the claim.
#[test]
fn a_guest_is_not_restarted_while_a_pod_uses_the_claim_that_it_would_get() {
    let mut environment = new();
    edit(&mut environment, |block| block.existing_disks.clear());
    environment.settle();
    let runs = environment.instance.clone().unwrap();
    edit(&mut environment, |block| {
        block.existing_disks.push(existing_disk("old", "old-disk"));
    });
    environment.settle();
    environment.claim_users.push(pod("Running"));
    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(environment.machine_mut(), key, "now");
    environment.settle();
    assert_eq!(environment.restarted, [""; 0]);
    assert_eq!(
        environment.instance.as_ref().map(Instance::uid),
        Some(runs.uid())
    );
    let expected = ("False", "ClaimInUse");
    assert_eq!(reported(&environment, "StorageReady"), expected);

    environment.claim_users[0] = pod("Succeeded");
    environment.settle();
    assert_eq!(environment.restarted, [runs.uid()]);
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

#[test]
fn a_machine_that_is_off_is_not_started_while_another_guest_has_the_claim() {
    let mut environment = new();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
    let volumes = json!([{"persistentVolumeClaim": {"claimName": "old-disk"}}]);
    let template = json!({"spec": {"volumes": volumes}});
    let vm = |strategy: &str| json!({"metadata": {"name": "legacy"}, "spec": {"runStrategy": strategy, "template": template}});
    let kind = UserKind::VirtualMachine;
    environment.claim_users.push((kind, vm("Always")));
    edit(&mut environment, |block| {
        block.power_state = PowerState::Running;
    });
    environment.settle();
    assert!(environment.instance.is_none());
    let live = environment
        .vm
        .as_ref()
        .map(|vm| vm.spec.run_strategy.as_str());
    assert_eq!(live, Some("Halted"));
    let message = message(&environment, "StorageReady");
    assert!(message.contains("VirtualMachine 'legacy'"), "{message}");

    // One that is off only names the claim.
    environment.claim_users[0] = (kind, vm("Halted"));
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

#[test]
fn the_younger_of_two_machines_on_one_claim_waits_unless_its_guest_has_it() {
    let holder = |own_disk: Option<&str>| ClaimUser {
        machine: "db".into(),
        own_disk: own_disk.map(str::to_owned),
        is_shareable: false,
    };
    for own_disk in [None, Some("root")] {
        let mut environment = new();
        environment.claim_holder = Some(holder(own_disk));
        environment.settle();
        let expected = ("False", "ClaimInUse");
        assert_eq!(reported(&environment, "StorageReady"), expected);
        let message = message(&environment, "StorageReady");
        assert!(message.contains("Machine 'db'"), "{message}");
        assert!(environment.vm.is_none());
        assert_eq!(phase(&environment), Some(Phase::Failed));

        environment.claim_holder = None;
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        environment.claim_holder = Some(holder(own_disk));
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    }
}

#[test]
fn a_claim_that_is_missing_or_being_deleted_is_waited_for_and_never_made() {
    let mut environment = new();
    environment.claims.remove("old-disk");
    environment.settle();
    let expected = ("False", "ClaimNotFound");
    assert_eq!(reported(&environment, "StorageReady"), expected);
    assert!(!environment.claims.contains_key("old-disk"));
    assert!(environment.vm.is_none());

    let mut deleted: Claim = decode(claim());
    deleted.metadata.deletion_timestamp = Some(some_time());
    environment.claims.insert("old-disk".into(), deleted);
    environment.settle();
    let expected = ("False", "PVCDeleting");
    assert_eq!(reported(&environment, "StorageReady"), expected);
    assert!(environment.vm.is_none());

    environment
        .claims
        .insert("old-disk".into(), decode(claim()));
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

/// The claim of a disk that left the spec, named as an existing one before the guest has let go of it.
#[test]
fn a_former_disk_that_is_named_as_an_existing_claim_is_released_once_and_outlives_the_machine() {
    let mut machine_block = block();
    machine_block
        .disks
        .push(disk("data", ReclaimPolicy::Delete));
    let mut environment = FakeCluster::new(machine(machine_block));
    environment.settle();
    edit(&mut environment, |block| {
        block.disks.truncate(1);
        block.existing_disks.push(existing_disk("old", "web-data"));
    });
    environment.settle();
    let released = environment.claims["web-data"].clone();
    let annotations = released.metadata.annotations.clone().unwrap_or_default();
    assert!(!annotations.contains_key(names::ANNOTATION_MACHINE_UID));
    assert!(annotations.contains_key(names::ANNOTATION_RETAINED_FROM));

    environment.delete_machine();
    environment.settle();
    assert!(environment.machine.is_none(), "the deletion did not end");
    let kept = &environment.claims["web-data"];
    assert_eq!(json!(kept.metadata), json!(released.metadata));
}
