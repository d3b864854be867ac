//! Claims that were kept of a former Machine: adopted only while nobody else uses them.

use common::api::choice::{PowerState, ReclaimPolicy};
use common::names;
use serde_json::{Value, json};

use super::{edit, message, reported};
use crate::apply::claim_user::UserKind;
use crate::environment::{FakeCluster, decode};
use controller_core::fixtures::{block, disk, machine};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;

const CLAIM: &str = "web-data";

/// The Machine `web` with a disk that outlives it.
fn web(uid: &str, created: &str) -> Machine {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    let mut machine = machine(block);
    machine.metadata.uid = Some(uid.into());
    machine.metadata.creation_timestamp = Some(decode(json!(created)));
    machine
}

/// The Machine was deleted, its claim `web-data` was kept, and a Machine of the same name was created.
fn created_again() -> FakeCluster {
    let mut environment = FakeCluster::new(web("uid-of-former", "2026-01-01T00:00:00Z"));
    environment.settle();
    let claim = environment.claims.get_mut(CLAIM).unwrap();
    claim.metadata.creation_timestamp = Some(decode(json!("2026-01-01T00:00:01Z")));
    environment.delete_machine();
    environment.settle();
    assert!(environment.machine.is_none() && environment.claims.contains_key(CLAIM));
    environment.machine = Some(web("uid-of-web", "2026-02-01T00:00:00Z"));
    environment
}

fn user(kind: UserKind, name: &str, phase: &str) -> (UserKind, Value) {
    let volumes = json!([{"persistentVolumeClaim": {"claimName": CLAIM}}]);
    let mut spec = json!({"volumes": volumes});
    if kind == UserKind::VirtualMachine {
        spec = json!({"runStrategy": phase, "template": {"spec": spec}});
    }
    let object = json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}});
    (kind, object)
}

fn is_adopted(environment: &FakeCluster) -> bool {
    let uid = environment.machine().uid();
    environment.claims[CLAIM].belongs_to("web", uid)
}

fn is_waiting(environment: &FakeCluster, user: &str) {
    let expected = ("False", "ClaimInUse");
    assert_eq!(reported(environment, "StorageReady"), expected);
    let message = message(environment, "StorageReady");
    let part = format!("PersistentVolumeClaim web-data of disk 'data' is used by {user}");
    assert!(message.contains(&part), "{message}");
    assert!(environment.instance.is_none());
    assert!(environment.plan().requeue_after.is_some());
}

#[test]
fn a_kept_claim_that_others_use_since_the_plan_was_made_is_not_adopted() {
    let mut environment = created_again();
    let plan = environment.plan();
    let all = plan.steps().count();
    let mut free = environment.clone();
    free.carry_out(&plan, all);
    assert!(is_adopted(&free));
    environment
        .claim_users
        .push(user(UserKind::Pod, "rescue", "Running"));
    environment.carry_out(&plan, all);
    assert!(!is_adopted(&environment));
}

/// Its VirtualMachine has the name of the Machine, and so has its instance.
#[test]
fn a_kept_claim_is_not_adopted_while_a_guest_of_another_owner_of_the_name_has_it() {
    let mut environment = created_again();
    let vm = user(UserKind::VirtualMachine, "web", "Always");
    environment.claim_users.push(vm);
    let (_, instance) = user(UserKind::Instance, "web", "Running");
    environment.instance = Some(decode(instance));
    environment.kubevirt = false;
    let steps = environment.pass();
    let expected = [
        "added the finalizer",
        "created PersistentVolumeClaim web-root",
    ];
    assert_eq!(steps, expected);
    let expected = ("False", "ClaimInUse");
    assert_eq!(reported(&environment, "StorageReady"), expected);
}

#[test]
fn a_kept_claim_is_not_adopted_while_others_use_it() {
    for (user, title) in [
        (user(UserKind::Pod, "rescue", "Running"), "Pod 'rescue'"),
        (
            user(UserKind::VirtualMachine, "db", "Always"),
            "VirtualMachine 'db'",
        ),
    ] {
        let mut environment = created_again();
        environment.claim_users.push(user);
        environment.settle();
        is_waiting(&environment, title);
        assert!(environment.vm.is_none() && !is_adopted(&environment));

        environment.claim_users.clear();
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        assert!(is_adopted(&environment));
        // A guest that has the claim is not ended because of a user that comes later.
        let later = self::user(UserKind::Pod, "backup", "Running");
        environment.claim_users.push(later);
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    }
}

#[test]
fn a_machine_that_is_off_adopts_no_claim_in_use_either() {
    let mut environment = created_again();
    environment
        .claim_users
        .push(user(UserKind::Pod, "rescue", "Running"));
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    environment.settle();
    is_waiting(&environment, "Pod 'rescue'");
    assert!(!is_adopted(&environment));
}

#[test]
fn a_machine_is_not_started_on_an_adopted_claim_that_others_use_by_then() {
    let mut environment = created_again();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    environment.settle();
    assert!(is_adopted(&environment));
    environment
        .claim_users
        .push(user(UserKind::VirtualMachine, "db", "Always"));
    edit(&mut environment, |block| {
        block.power_state = PowerState::Running;
    });
    environment.settle();
    is_waiting(&environment, "VirtualMachine 'db'");
    let live = environment.vm.as_ref();
    let strategy = live.map(|vm| vm.spec.run_strategy.as_str());
    assert_eq!(strategy, Some("Halted"));

    environment.claim_users[0] = user(UserKind::VirtualMachine, "db", "Halted");
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

/// Labels and annotations of the VirtualMachine are copied with it.
#[test]
fn a_running_copy_of_the_virtual_machine_uses_the_claim_like_any_other() {
    let mut environment = created_again();
    let (kind, mut copy) = user(UserKind::VirtualMachine, "copy", "Always");
    let metadata = &mut copy["metadata"];
    metadata["labels"] = json!({names::LABEL_MACHINE: "web"});
    metadata["annotations"] = json!({names::ANNOTATION_MACHINE_UID: "uid-of-web"});
    environment.claim_users.push((kind, copy));
    environment.settle();
    is_waiting(&environment, "VirtualMachine 'copy'");
}
