//! The end of a Machine.

use common::api::choice::ReclaimPolicy;
use common::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::{message, told};
use crate::apply::claim_user::UserKind;
use crate::environment::{World, decode};
use crate::plan::action::{Action, Plan};
use controller_core::fixtures::{block, disk, machine, pause};
use controller_core::machine::Block;
use controller_core::objects::Meta as _;

/// A running Machine with a disk that goes and one that stays.
fn running() -> World {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    let mut world = World::new(machine(block));
    world.settle();
    world
}

#[test]
fn the_guest_goes_first_then_the_disks_then_the_finalizer() {
    let mut world = running();
    world.delete_machine();
    assert_eq!(world.pass(), ["deleted the VirtualMachine"]);
    assert_eq!(told(&world, "Ready"), ("False", "Deleting"));
    assert_eq!(world.pass(), [""; 0], "the VirtualMachine is still there");
    assert!(message(&world, "Ready").contains("VirtualMachine web is being shut down"));

    // The VirtualMachine may be gone before its instance, and the guest still writes then.
    world.vm = None;
    assert_eq!(world.pass(), [""; 0], "the instance is still there");
    assert!(message(&world, "Ready").contains("the guest of VirtualMachine web is shutting down"));
    assert_eq!(world.claims.len(), 2);

    world.instance = None;
    assert_eq!(
        world.pass(),
        [
            "made sure that the guest is gone",
            "changed PersistentVolumeClaim web-data",
            "deleted PersistentVolumeClaim web-root",
            "removed the finalizer",
        ]
    );
    assert!(world.machine.is_none());
    let kept = &world.claims["web-data"];
    assert_eq!(world.claims.len(), 1);
    assert_eq!(kept.machine(), Some("web"));
    assert_eq!(kept.annotation(names::ANNOTATION_MACHINE_UID), None);
    assert_eq!(
        kept.annotation(names::ANNOTATION_RETAINED_FROM),
        Some("uid-of-web")
    );
}

#[test]
fn a_machine_that_never_made_anything_goes_at_once() {
    let mut world = World::new(machine(block()));
    world.machine_mut().metadata.finalizers = Some(vec![names::FINALIZER.into()]);
    world.delete_machine();
    assert_eq!(
        world.pass(),
        ["made sure that the guest is gone", "removed the finalizer"]
    );
    assert!(world.machine.is_none());
}

#[test]
fn nothing_is_done_without_our_finalizer() {
    let mut world = running();
    world.machine_mut().metadata.finalizers = Some(vec!["another/one".into()]);
    world.machine_mut().metadata.deletion_timestamp = Some(crate::environment::sometime());
    assert_eq!(world.plan(), Plan::default());
}

#[test]
fn a_spec_that_cannot_be_read_holds_nothing_up() {
    for block in [
        Block::Missing,
        Block::Stale,
        Block::Unreadable("why".into()),
    ] {
        let mut world = running();
        world.machine_mut().block = block;
        (world.kubevirt, world.multus) = (false, false);
        world.classes.clear();
        world.delete_machine();
        world.settle();
        assert!(world.machine.is_none());
        assert_eq!(world.claims.keys().collect::<Vec<_>>(), ["web-data"]);
    }
}

#[test]
fn a_claim_without_the_word_delete_stays() {
    let mut world = running();
    let annotations = |world: &mut World, value: Option<&str>| {
        let claim = world.claims.get_mut("web-root").unwrap();
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
        let mut world = world.clone();
        annotations(&mut world, value);
        world.delete_machine();
        // As it is found: had the controller seen it before, it would have mended it.
        world.settle();
        assert!(world.machine.is_none());
        assert!(world.claims.contains_key("web-root"), "{value:?}");
    }
    annotations(&mut world, Some("Delete"));
    world.delete_machine();
    world.settle();
    assert!(!world.claims.contains_key("web-root"));
}

#[test]
fn what_is_not_ours_survives() {
    let mut world = running();
    for (name, labels) in [
        ("web-foreign", json!({})),
        // Of a Machine of this name that lived before.
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
        world.claims.insert(name.into(), decode(claim));
    }
    world.vm.as_mut().unwrap().metadata.annotations = None;
    world.delete_machine();
    let done = world.pass();
    assert!(
        !done.iter().any(|action| action.contains("VirtualMachine")),
        "{done:?}"
    );
    assert!(world.machine.is_none());
    assert!(world.vm.is_some());
    let left: Vec<_> = world.claims.keys().collect();
    assert_eq!(
        left,
        ["web-data", "web-foreign", "web-former", "web-root"],
        "the VirtualMachine that stays has web-root as a disk"
    );
}

#[test]
fn a_paused_machine_waits_for_its_deletion() {
    let mut world = running();
    pause(world.machine_mut());
    world.delete_machine();
    assert_eq!(world.pass(), [""; 0]);
    assert_eq!(told(&world, "Ready"), ("False", "Deleting"));
    assert!(message(&world, "Ready").contains(names::ANNOTATION_PAUSED));
    world.machine_mut().metadata.annotations = None;
    world.settle();
    assert!(world.machine.is_none());
}

#[test]
fn caches_that_know_of_no_guest_are_not_believed() {
    let mut world = running();
    let behind = {
        let mut before = world.clone();
        (before.vm, before.instance) = (None, None);
        before.delete_machine();
        before.plan()
    };
    assert_eq!(behind.actions.first(), Some(&Action::ConfirmGuestGone));
    world.delete_machine();
    assert_eq!(world.carry_out(&behind, behind.actions.len()), [""; 0]);
    assert_eq!(world.claims.len(), 2);
    assert!(world.machine().has_finalizer(names::FINALIZER));
}

/// After a restore from a backup: VirtualMachine and claims carry the uid of the Machine before the restore.
fn restored() -> World {
    let mut world = running();
    let former = |metadata: &mut ObjectMeta| {
        let annotations = metadata.annotations.get_or_insert_default();
        let uid = "uid-before-the-restore".to_owned();
        annotations.insert(names::ANNOTATION_MACHINE_UID.to_owned(), uid);
    };
    former(&mut world.vm.as_mut().unwrap().metadata);
    for claim in world.claims.values_mut() {
        former(&mut claim.metadata);
    }
    world
}

#[test]
fn claims_of_a_restored_virtual_machine_survive_the_deletion_of_the_machine_of_its_name() {
    let mut world = restored();
    world.settle();
    assert_eq!(
        told(&world, "VirtualMachineReady"),
        ("False", "NameConflict")
    );
    world.delete_machine();
    let done = world.settle();
    assert!(world.machine.is_none());
    assert!(world.vm.is_some() && world.instance.is_some());
    let left: Vec<_> = world.claims.keys().collect();
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
        let mut world = running();
        world.delete_machine();
        world.claim_users = vec![(kind, user.clone())];
        for _ in 0..10 {
            world.kubevirt_moves();
            world.pass();
        }
        assert!(world.claims.contains_key("web-root"), "{kind:?}");
        assert!(
            world.machine.is_some(),
            "{kind:?}: the claim is not released"
        );

        world.claim_users.clear();
        world.settle();
        assert!(world.machine.is_none(), "{kind:?}");
        assert!(!world.claims.contains_key("web-root"), "{kind:?}");
    }
}

#[test]
fn a_claim_in_use_whose_policy_was_changed_to_retain_ends_the_wait() {
    let mut world = running();
    let guest = json!({
        "metadata": {"name": "db"},
        "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "web-root"}}]},
    });
    world.claim_users = vec![(UserKind::VirtualMachine, guest)];
    world.delete_machine();
    for _ in 0..10 {
        world.kubevirt_moves();
        world.pass();
    }
    assert!(world.machine.is_some());
    let claim = world.claims.get_mut("web-root").unwrap();
    let annotations = claim.metadata.annotations.as_mut().unwrap();
    annotations.insert(names::ANNOTATION_RECLAIM_POLICY.into(), "Retain".into());
    world.settle();
    assert!(world.machine.is_none());
    assert!(world.claims.contains_key("web-root"));
}
