//! Disks that grow, go, and come back.

use common::api::choice::{Phase, ReclaimPolicy};
use common::names;
use common::quantity::Bytes;
use serde_json::json;

use super::{edit, message, phase, rich, told};
use crate::environment::{World, claims_of, decode};
use crate::objects::ForeignCondition;
use controller_core::fixtures::{block, disk, machine};
use controller_core::objects::Meta as _;

#[test]
fn only_a_bound_claim_grows() {
    let mut world = World::new(machine(block()));
    world.pass();
    let larger = Bytes::mib(30 * 1024);
    edit(&mut world, |block| block.disks[0].size = larger);
    assert_eq!(world.pass(), [""; 0]);
    assert_eq!(world.settle(), ["changed PersistentVolumeClaim web-root"]);
    let claim = &world.claims["web-root"];
    assert_eq!(claim.spec.resources.requests.storage, Some(larger));
}

#[test]
fn a_volume_that_grows_is_told_until_it_has() {
    let mut world = World::new(machine(block()));
    world.settle();
    edit(&mut world, |block| {
        block.disks[0].size = Bytes::mib(30 * 1024);
    });
    // Told with the first step, so that the next one is no news.
    assert_eq!(world.pass(), ["changed PersistentVolumeClaim web-root"]);
    let grows = "PersistentVolumeClaim web-root grows from 20Gi to 30Gi";
    assert_eq!(told(&world, "StorageReady"), ("True", "PVCResizing"));
    assert_eq!(message(&world, "StorageReady"), grows);
    assert_eq!(told(&world, "Ready"), ("True", "Running"));
    for (kind, told) in [
        ("Resizing", ""),
        ("ControllerResizeError", "; that failed and is tried again"),
        (
            "FileSystemResizePending",
            "; the volume has, its file system",
        ),
        ("SomethingNew", ""),
    ] {
        let claim = world.claims.get_mut("web-root").unwrap();
        claim.status.conditions = vec![ForeignCondition {
            kind: kind.into(),
            status: "True".into(),
            message: "changes with every attempt".into(),
            ..ForeignCondition::default()
        }];
        assert_eq!(world.settle(), [""; 0], "{kind}");
        let says = message(&world, "StorageReady");
        assert!(says.starts_with(&format!("{grows}{told}")), "{says}");
        assert!(!says.contains("changes with every attempt"), "{says}");
    }
    let claim = world.claims.get_mut("web-root").unwrap();
    claim.status.conditions.clear();
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(told(&world, "StorageReady"), ("True", "PVCBound"));
}

#[test]
fn a_volume_that_cannot_grow_is_told_and_holds_up_nothing() {
    let mut world = World::new(machine(block()));
    world.settle();
    world.classes.insert("standard".into(), false);
    edit(&mut world, |block| {
        block.disks[0].size = Bytes::mib(30 * 1024);
        block.cpu.cores = 8;
    });
    assert_eq!(world.settle(), ["changed the VirtualMachine"]);
    let fault = ("False", "VolumeExpansionNotAllowed");
    assert_eq!(told(&world, "StorageReady"), fault);
    assert_eq!(told(&world, "Ready"), fault);
    assert_eq!(phase(&world), Some(Phase::Running));
    let says = message(&world, "Ready");
    assert!(
        says.contains("disk 'root' cannot grow from 20Gi to 30Gi"),
        "{says}"
    );

    world.classes.insert("standard".into(), true);
    assert_eq!(world.settle(), ["changed PersistentVolumeClaim web-root"]);
    assert_eq!(told(&world, "Ready"), ("True", "Running"));

    // Storage that gave more than it was asked for has no need to grow.
    let mut world = World::new(machine(block()));
    world.settle();
    world.classes.insert("standard".into(), false);
    let claim = world.claims.get_mut("web-root").unwrap();
    claim.status.capacity.storage = Some(Bytes::mib(30 * 1024));
    claim.status.conditions.push(ForeignCondition::default());
    edit(&mut world, |block| {
        block.disks[0].size = Bytes::mib(30 * 1024);
    });
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(told(&world, "StorageReady"), ("True", "PVCBound"));
}

#[test]
fn a_removed_disk_is_let_go_when_the_guest_has_let_it_go() {
    let mut world = rich();
    edit(&mut world, |block| {
        block.disks.push(disk("old", ReclaimPolicy::Delete));
    });
    world.settle();
    edit(&mut world, |block| block.disks.truncate(1));
    assert_eq!(world.settle(), ["changed the VirtualMachine"]);
    let wanted: Vec<_> = claims_of(world.vm.as_ref().unwrap())
        .map(ToOwned::to_owned)
        .collect();
    assert_eq!(wanted, ["web-root"]);
    assert_eq!(world.claims.len(), 3, "the guest still has them");

    // A restart: the new instance is without them.
    world.instance = None;
    let done = world.settle();
    assert!(
        done.contains(&"changed PersistentVolumeClaim web-data".to_owned()),
        "{done:?}"
    );
    assert!(
        done.contains(&"deleted PersistentVolumeClaim web-old".to_owned()),
        "{done:?}"
    );
    let kept = &world.claims["web-data"];
    assert_eq!(
        kept.annotation(names::ANNOTATION_RETAINED_FROM),
        Some("uid-of-web")
    );
    assert_eq!(kept.annotation(names::ANNOTATION_MACHINE_UID), None);

    // Wished again, it comes back with what is on it.
    let uid = kept.uid().to_owned();
    edit(&mut world, |block| {
        block.disks.push(disk("data", ReclaimPolicy::Retain));
    });
    world.settle();
    assert_eq!(world.claims["web-data"].uid(), uid);
    assert!(world.claims["web-data"].belongs_to("web", "uid-of-web"));
    assert_eq!(told(&world, "StorageReady"), ("True", "PVCBound"));
}

#[test]
fn a_kept_claim_comes_back_only_if_it_fits_and_nobody_has_it() {
    let kept = |change: fn(&mut serde_json::Value)| {
        let mut claim = json!({
            "metadata": {
                "name": "web-root", "namespace": "default", "uid": "kept",
                "labels": {
                    names::LABEL_MANAGED_BY: names::MANAGED_BY,
                    names::LABEL_MACHINE: "web", names::LABEL_DISK: "root",
                },
                "annotations": {names::ANNOTATION_RETAINED_FROM: "uid-of-former"},
            },
            "spec": {
                "storageClassName": "standard", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "20Gi"}},
            },
            "status": {"phase": "Bound"},
        });
        change(&mut claim);
        let mut world = World::new(machine(block()));
        world.living.insert("uid-of-living".into());
        world.claims.insert("web-root".into(), decode(claim));
        world.settle();
        let adopted = world.claims["web-root"].belongs_to("web", "uid-of-web");
        let conflict = told(&world, "StorageReady") == ("False", "NameConflict");
        assert_ne!(adopted, conflict);
        adopted
    };
    assert!(kept(|_| {}));
    assert!(kept(
        |claim| claim["spec"]["resources"]["requests"]["storage"] = "10Gi".into()
    ));
    assert!(kept(|claim| {
        claim["metadata"]["annotations"] = json!({names::ANNOTATION_MACHINE_UID: "uid-of-dead"});
    }));
    assert!(!kept(|claim| {
        claim["metadata"]["annotations"] = json!({names::ANNOTATION_MACHINE_UID: "uid-of-living"});
    }));
    assert!(!kept(
        |claim| claim["spec"]["resources"]["requests"]["storage"] = "30Gi".into()
    ));
    assert!(!kept(
        |claim| claim["spec"]["storageClassName"] = "fast".into()
    ));
    assert!(!kept(
        |claim| claim["spec"]["accessModes"] = json!(["ReadWriteMany"])
    ));
    assert!(!kept(|claim| claim["spec"]["volumeMode"] = "Block".into()));
    assert!(!kept(|claim| {
        // Machine `a` with disk `b-c` and Machine `a-b` with disk `c` want the same name.
        claim["metadata"]["labels"][names::LABEL_DISK] = "other".into();
    }));
    assert!(!kept(|claim| {
        claim["metadata"]["labels"][names::LABEL_MANAGED_BY] = "other".into();
    }));
}
