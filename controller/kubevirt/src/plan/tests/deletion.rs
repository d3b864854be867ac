//! Plans of Machines under deletion.

use common::api::choice::ReclaimPolicy;
use common::api::normalized::NormalizedTpm;
use common::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::{edit, message, reported};
use crate::apply::claim_user::UserKind;
use crate::environment::{FakeCluster, decode};
use crate::objects::Claim;
use crate::plan::action::{Action, Plan};
use controller_core::fixtures::{block, disk, machine, pause};
use controller_core::machine::Block;
use controller_core::objects::Meta as _;

/// A running Machine with a disk that is deleted with it and one that is kept.
fn running() -> FakeCluster {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    let mut environment = FakeCluster::new(machine(block));
    environment.settle();
    environment
}

#[test]
fn a_deletion_removes_the_guest_then_the_disks_then_the_finalizer() {
    let mut environment = running();
    environment.delete_machine();
    assert_eq!(environment.pass(), ["deleted the VirtualMachine"]);
    assert_eq!(reported(&environment, "Ready"), ("False", "Deleting"));
    assert_eq!(
        environment.pass(),
        [""; 0],
        "the VirtualMachine is still there"
    );
    assert!(message(&environment, "Ready").contains("VirtualMachine web is being shut down"));

    // The VirtualMachine may be gone before its instance, and the guest still writes then.
    environment.vm = None;
    assert_eq!(environment.pass(), [""; 0], "the instance is still there");
    assert!(
        message(&environment, "Ready").contains("the guest of VirtualMachine web is shutting down")
    );
    assert_eq!(environment.claims.len(), 2);

    environment.instance = None;
    assert_eq!(
        environment.pass(),
        [
            "confirmed that the guest is gone",
            "updated PersistentVolumeClaim web-data",
            "deleted PersistentVolumeClaim web-root",
            "removed the finalizer",
        ]
    );
    assert!(environment.machine.is_none());
    let kept = &environment.claims["web-data"];
    assert_eq!(environment.claims.len(), 1);
    assert_eq!(kept.machine(), Some("web"));
    assert_eq!(kept.annotation(names::ANNOTATION_MACHINE_UID), None);
    assert_eq!(
        kept.annotation(names::ANNOTATION_RETAINED_FROM),
        Some("uid-of-web")
    );
}

#[test]
fn a_machine_without_objects_is_deleted_at_once() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.machine_mut().metadata.finalizers = Some(vec![names::FINALIZER.into()]);
    environment.delete_machine();
    assert_eq!(
        environment.pass(),
        ["confirmed that the guest is gone", "removed the finalizer"]
    );
    assert!(environment.machine.is_none());
}

#[test]
fn nothing_is_done_without_our_finalizer() {
    let mut environment = running();
    environment.machine_mut().metadata.finalizers = Some(vec!["another/one".into()]);
    environment.machine_mut().metadata.deletion_timestamp = Some(crate::environment::some_time());
    assert_eq!(environment.plan(), Plan::default());
}

#[test]
fn a_machine_with_an_unreadable_spec_can_be_deleted() {
    for block in [
        Block::Missing,
        Block::Stale,
        Block::Unreadable("why".into()),
    ] {
        let mut environment = running();
        environment.machine_mut().block = block;
        (environment.kubevirt, environment.multus) = (false, false);
        environment.classes.clear();
        environment.delete_machine();
        environment.settle();
        assert!(environment.machine.is_none());
        assert_eq!(environment.claims.keys().collect::<Vec<_>>(), ["web-data"]);
    }
}

#[test]
fn a_claim_whose_policy_is_not_delete_is_kept() {
    let mut environment = running();
    let annotations = |environment: &mut FakeCluster, value: Option<&str>| {
        let claim = environment.claims.get_mut("web-root").unwrap();
        let annotations = claim.metadata.annotations.as_mut().unwrap();
        annotations.remove(names::ANNOTATION_RECLAIM_POLICY);
        annotations.extend(value.map(|value| {
            (
                names::ANNOTATION_RECLAIM_POLICY.to_owned(),
                value.to_owned(),
            )
        }));
    };
    for value in [None, Some("delete"), Some("")] {
        let mut environment = environment.clone();
        annotations(&mut environment, value);
        environment.delete_machine();
        // Observed as it is: a pass before the deletion would have restored the annotation.
        environment.settle();
        assert!(environment.machine.is_none());
        assert!(environment.claims.contains_key("web-root"), "{value:?}");
    }
    annotations(&mut environment, Some("Delete"));
    environment.delete_machine();
    environment.settle();
    assert!(!environment.claims.contains_key("web-root"));
}

#[test]
fn objects_that_are_not_the_machines_survive_its_deletion() {
    let mut environment = running();
    for (name, labels) in [
        ("web-foreign", json!({})),
        // Of a former Machine of this name.
        (
            "web-former",
            json!({names::LABEL_MANAGED_BY: names::MANAGED_BY, names::LABEL_MACHINE: "web"}),
        ),
    ] {
        let claim = json!({"metadata": {
            "name": name, "uid": name, "labels": labels,
            "annotations": {
                names::ANNOTATION_MACHINE_UID: "uid-of-another",
                names::ANNOTATION_RECLAIM_POLICY: "Delete",
            },
        }});
        environment.claims.insert(name.into(), decode(claim));
    }
    environment.vm.as_mut().unwrap().metadata.annotations = None;
    environment.delete_machine();
    let done = environment.pass();
    assert!(
        !done.iter().any(|action| action.contains("VirtualMachine")),
        "{done:?}"
    );
    assert!(environment.machine.is_none());
    assert!(environment.vm.is_some());
    let left: Vec<_> = environment.claims.keys().collect();
    assert_eq!(
        left,
        ["web-data", "web-foreign", "web-former", "web-root"],
        "the VirtualMachine that stays has web-root as a disk"
    );
}

#[test]
fn a_paused_machine_waits_for_its_deletion() {
    let mut environment = running();
    pause(environment.machine_mut());
    environment.delete_machine();
    assert_eq!(environment.pass(), [""; 0]);
    assert_eq!(reported(&environment, "Ready"), ("False", "Deleting"));
    assert!(message(&environment, "Ready").contains(names::ANNOTATION_PAUSED));
    environment.machine_mut().metadata.annotations = None;
    environment.settle();
    assert!(environment.machine.is_none());
}

#[test]
fn stale_caches_without_the_guest_release_no_disk() {
    let mut environment = running();
    let behind = {
        let mut before = environment.clone();
        (before.vm, before.instance) = (None, None);
        before.delete_machine();
        before.plan()
    };
    assert_eq!(behind.actions.first(), Some(&Action::ConfirmGuestGone));
    environment.delete_machine();
    assert_eq!(
        environment.carry_out(&behind, behind.actions.len()),
        [""; 0]
    );
    assert_eq!(environment.claims.len(), 2);
    assert!(environment.machine().has_finalizer(names::FINALIZER));
}

/// The same field manager wrote it, so that an apply would conflict with nothing.
#[test]
fn a_plan_from_stale_caches_takes_over_no_virtual_machine_of_a_former_machine() {
    let mut environment = running();
    let mut next = environment.machine().clone();
    next.metadata.uid = Some("uid-of-next".to_owned());
    let creates = |action: &Action| matches!(action, Action::CreateVm(_));
    let mut behind = FakeCluster::new(next.clone());
    let create = loop {
        let plan = behind.plan();
        match plan.actions.into_iter().find(creates) {
            Some(create) => break create,
            None => assert_ne!(behind.pass(), [""; 0], "the VirtualMachine is created"),
        }
        behind.advance_kubevirt();
    };
    let plan = Plan {
        actions: vec![create],
        ..Plan::default()
    };
    environment.machine = Some(next);
    let before = environment.vm.clone().unwrap();
    assert_eq!(environment.carry_out(&plan, 1), [""; 0]);
    let after = environment.vm.as_ref().unwrap();
    assert_eq!(after.metadata.annotations, before.metadata.annotations);
    // Without another one of the name it is created.
    environment.vm = None;
    assert_eq!(environment.carry_out(&plan, 1).len(), 1);
}

/// After a restore from a backup: VirtualMachine and claims carry the uid of the Machine before the restore.
fn restored() -> FakeCluster {
    let mut environment = running();
    let former = |metadata: &mut ObjectMeta| {
        let annotations = metadata.annotations.get_or_insert_default();
        let uid = "uid-before-the-restore".to_owned();
        annotations.insert(names::ANNOTATION_MACHINE_UID.to_owned(), uid);
    };
    former(&mut environment.vm.as_mut().unwrap().metadata);
    for claim in environment.claims.values_mut() {
        former(&mut claim.metadata);
    }
    environment
}

#[test]
fn claims_of_a_restored_virtual_machine_survive_the_deletion_of_the_machine_of_its_name() {
    let mut environment = restored();
    environment.settle();
    assert_eq!(
        reported(&environment, "VirtualMachineReady"),
        ("False", "NameConflict")
    );
    environment.delete_machine();
    let done = environment.settle();
    assert!(environment.machine.is_none());
    assert!(environment.vm.is_some() && environment.instance.is_some());
    let left: Vec<_> = environment.claims.keys().collect();
    assert_eq!(left, ["web-data", "web-root"], "{done:?}");
}

#[test]
fn a_claim_that_a_cache_does_not_know_to_be_used_is_not_deleted() {
    let volumes = json!([{"persistentVolumeClaim": {"claimName": "web-root"}}]);
    let guest = json!({"metadata": {"name": "db"}, "spec": {"volumes": volumes}});
    let vm =
        json!({"metadata": {"name": "db"}, "spec": {"template": {"spec": {"volumes": volumes}}}});
    for (kind, user) in [
        (UserKind::VirtualMachine, &vm),
        (UserKind::Instance, &guest),
        (UserKind::Pod, &guest),
    ] {
        let mut environment = running();
        environment.delete_machine();
        environment.claim_users = vec![(kind, user.clone())];
        for _ in 0..10 {
            environment.advance_kubevirt();
            environment.pass();
        }
        assert!(environment.claims.contains_key("web-root"), "{kind:?}");
        assert!(
            environment.machine.is_some(),
            "{kind:?}: the claim is not released"
        );

        environment.claim_users.clear();
        environment.settle();
        assert!(environment.machine.is_none(), "{kind:?}");
        assert!(!environment.claims.contains_key("web-root"), "{kind:?}");
    }
}

#[test]
fn a_claim_in_use_whose_policy_was_changed_to_retain_ends_the_wait() {
    let mut environment = running();
    let guest = json!({
        "metadata": {"name": "db"},
        "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "web-root"}}]},
    });
    environment.claim_users = vec![(UserKind::VirtualMachine, guest)];
    environment.delete_machine();
    for _ in 0..10 {
        environment.advance_kubevirt();
        environment.pass();
    }
    assert!(environment.machine.is_some());
    let claim = environment.claims.get_mut("web-root").unwrap();
    let annotations = claim.metadata.annotations.as_mut().unwrap();
    annotations.insert(names::ANNOTATION_RECLAIM_POLICY.into(), "Retain".into());
    environment.settle();
    assert!(environment.machine.is_none());
    assert!(environment.claims.contains_key("web-root"));
}

#[test]
fn an_instance_of_another_owner_delays_no_deletion_and_keeps_its_claims() {
    let mut environment = running();
    environment.vm = None;
    environment.instance.as_mut().unwrap().metadata.labels = None;
    environment.delete_machine();
    environment.pass();
    assert!(environment.machine.is_none());
    assert!(environment.claims.contains_key("web-root"));
}

/// A claim as KubeVirt makes it for EFI variables and the TPM of the guest.
pub(super) fn state_claim(environment: &FakeCluster) -> Claim {
    let owner = environment.vm.as_ref().unwrap().uid();
    decode(json!({
        "metadata": {
            "name": "persistent-state-for-web-x2x9k", "namespace": "default",
            "uid": "state", "resourceVersion": "1",
            "labels": {names::LABEL_STATE: "web"},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": owner,
            }],
        },
        "status": {"phase": "Bound"},
    }))
}

/// Makes the claim of the state, and deletes the Machine.
fn delete_with_state(environment: &mut FakeCluster) -> String {
    let claim = state_claim(environment);
    let name = claim.name().to_owned();
    environment.claims.insert(name.clone(), claim);
    environment.delete_machine();
    name
}

#[test]
fn the_state_of_a_guest_is_taken_from_its_virtual_machine_before_that_goes_if_a_disk_is_kept() {
    let mut environment = running();
    let name = delete_with_state(&mut environment);
    let kept = format!("kept PersistentVolumeClaim {name} with the state of the guest");
    assert_eq!(environment.pass(), [kept.as_str()]);
    let claim = &environment.claims[&name];
    assert_eq!(claim.metadata.owner_references, Some(vec![]));
    // KubeVirt makes another claim for a running guest without a labelled one.
    assert_eq!(claim.label(names::LABEL_STATE), Some("web"));
    assert_eq!(environment.pass(), ["deleted the VirtualMachine"]);
    environment.vm = None;
    assert_eq!(environment.pass(), [""; 0]);
    environment.instance = None;
    let last = environment.pass();
    assert!(last.contains(&kept), "{last:?}");
    assert!(environment.machine.is_none());
    let claim = &environment.claims[&name];
    assert_eq!(claim.label(names::LABEL_STATE), None);
    assert_eq!(claim.label(names::LABEL_RETAINED_STATE), Some("web"));
}

/// The kinds of the owners of a claim.
fn owners(environment: &FakeCluster, claim: &str) -> Vec<String> {
    let owners = environment.claims[claim].metadata.owner_references.clone();
    let owners = owners.into_iter().flatten();
    owners.map(|owner| owner.kind).collect()
}

/// The garbage collector deletes an object with the last of its owners.
#[test]
fn the_state_of_a_guest_outlives_a_virtual_machine_that_is_deleted_by_hand() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    let mut claim = state_claim(&environment);
    let name = claim.name().to_owned();
    let kept = format!("kept PersistentVolumeClaim {name} with the state of the guest");
    // The cache drops owners of other kinds.
    let of_others = json!({"apiVersion": "v1", "kind": "Backup", "name": "b", "uid": "of-others"});
    let of_claim = claim.metadata.owner_references.get_or_insert_default();
    of_claim.push(decode(of_others));
    environment.claims.insert(name.clone(), claim.clone());
    assert_eq!(environment.pass(), [kept.as_str()]);
    let expected = ["VirtualMachine", "Backup", "Machine"];
    assert_eq!(owners(&environment, &name), expected);
    assert_eq!(environment.pass(), [""; 0]);

    // A claim that KubeVirt did not make for the VirtualMachine is not taken.
    let mut of_another = claim;
    of_another.metadata.owner_references = None;
    environment.claims.insert(name.clone(), of_another);
    assert_eq!(environment.pass(), [""; 0]);
}

/// A deletion in the foreground deletes what the Machine and its VirtualMachine own before the controller has seen it.
#[test]
fn the_state_of_a_guest_has_no_owner_while_a_disk_is_kept() {
    let mut environment = running();
    let claim = state_claim(&environment);
    let name = claim.name().to_owned();
    let kept = format!("kept PersistentVolumeClaim {name} with the state of the guest");
    environment.claims.insert(name.clone(), claim);
    assert_eq!(environment.pass(), [kept.as_str()]);
    assert_eq!(owners(&environment, &name), [""; 0]);
    assert_eq!(environment.pass(), [""; 0]);

    // Once no disk of the Machine is kept, the state is deleted with it.
    edit(&mut environment, |block| {
        for disk in &mut block.disks {
            disk.reclaim_policy = ReclaimPolicy::Delete;
        }
    });
    let passes = environment.settle();
    assert!(passes.contains(&kept), "{passes:?}");
    assert_eq!(owners(&environment, &name), ["Machine"]);
    let claim = &environment.claims[&name];
    assert_eq!(claim.annotation(names::ANNOTATION_RETAINED_FROM), None);
    assert_eq!(environment.pass(), [""; 0]);
}

#[test]
fn the_state_of_a_guest_without_kept_disks_goes_with_its_virtual_machine() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    let name = delete_with_state(&mut environment);
    assert_eq!(environment.pass(), ["deleted the VirtualMachine"]);
    let claim = &environment.claims[&name];
    assert_eq!(claim.annotation(names::ANNOTATION_RETAINED_FROM), None);
}

/// A disk that is encrypted with a key of the TPM cannot be read without it.
#[test]
fn the_state_of_a_guest_is_kept_with_a_disk_that_left_the_spec() {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Delete));
    let mut environment = FakeCluster::new(machine(block));
    environment.settle();
    edit(&mut environment, |block| block.disks.truncate(1));
    for _ in 0..2 {
        environment.instance = None;
        environment.settle();
    }
    let name = delete_with_state(&mut environment);
    let kept = format!("kept PersistentVolumeClaim {name} with the state of the guest");
    assert_eq!(environment.pass(), [kept.as_str()]);
    assert_eq!(owners(&environment, &name), [""; 0]);
}

/// Another client gave the guest a volume, whose content it may have encrypted with a key of the TPM.
#[test]
fn the_state_of_a_guest_is_kept_with_a_claim_of_others_until_the_machine_is_gone() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    let volume = json!({"name": "other", "persistentVolumeClaim": {"claimName": "other"}});
    let vm = environment.vm.as_mut().unwrap();
    vm.spec.template.spec.volumes.push(decode(volume));
    let name = delete_with_state(&mut environment);
    let done = environment.settle();
    assert!(environment.machine.is_none(), "{done:?}");
    assert_eq!(owners(&environment, &name), [""; 0]);
    let claim = &environment.claims[&name];
    assert_eq!(claim.label(names::LABEL_RETAINED_STATE), Some("web"));
}

/// One of them might have the VirtualMachine as its only owner.
#[test]
fn a_deletion_waits_for_the_claims_with_the_state_of_the_guest() {
    let mut environment = running();
    edit(&mut environment, |block| {
        block.tpm = Some(NormalizedTpm { persistent: true });
    });
    environment.settle();
    environment.state_claims_error = Some("the API server did not answer within 5 s".into());
    environment.delete_machine();
    assert_eq!(environment.settle(), [""; 0]);
    assert!(environment.vm.is_some());
    assert_eq!(reported(&environment, "Ready"), ("False", "Deleting"));
    let text = message(&environment, "Ready");
    assert!(text.contains("did not answer within 5 s"), "{text}");
    let retry = environment.plan().requeue_after;
    assert!(retry.is_some(), "no event would come");

    environment.state_claims_error = None;
    environment.settle();
    assert!(environment.machine.is_none());
}
