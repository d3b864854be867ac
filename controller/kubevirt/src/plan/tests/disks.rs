//! Disks that grow, are removed, and are adopted again.

use common::api::choice::{Phase, PowerState, ReclaimPolicy};
use common::api::normalized::Normalized;
use common::names;
use common::quantity::Bytes;
use serde_json::json;

use super::{edit, machine_with_every_object, message, phase, reported};
use crate::environment::{FakeCluster, claims_of, decode};
use crate::objects::ForeignCondition;
use controller_core::fixtures::{block, disk, machine};
use controller_core::objects::Meta as _;

#[test]
fn only_a_bound_claim_grows() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.pass();
    let larger = Bytes::mib(30 * 1024);
    edit(&mut environment, |block| block.disks[0].size = larger);
    assert_eq!(environment.pass(), [""; 0]);
    assert_eq!(
        environment.settle(),
        ["updated PersistentVolumeClaim web-root"]
    );
    let claim = &environment.claims["web-root"];
    assert_eq!(claim.spec.resources.requests.storage, Some(larger));
}

#[test]
fn a_growing_volume_is_reported_until_it_has_its_size() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    edit(&mut environment, |block| {
        block.disks[0].size = Bytes::mib(30 * 1024);
    });
    // Reported with the first step, so that the next one needs no status write.
    assert_eq!(
        environment.pass(),
        ["updated PersistentVolumeClaim web-root"]
    );
    let grows = "PersistentVolumeClaim web-root grows from 20Gi to 30Gi";
    assert_eq!(
        reported(&environment, "StorageReady"),
        ("True", "PVCResizing")
    );
    assert_eq!(message(&environment, "StorageReady"), grows);
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    for (kind, condition) in [
        ("Resizing", ""),
        ("ControllerResizeError", "; that failed and is tried again"),
        (
            "FileSystemResizePending",
            "; the volume has, its file system",
        ),
        ("SomethingNew", ""),
    ] {
        let claim = environment.claims.get_mut("web-root").unwrap();
        claim.status.conditions = vec![ForeignCondition {
            kind: kind.into(),
            status: "True".into(),
            message: "changes with every attempt".into(),
            ..ForeignCondition::default()
        }];
        assert_eq!(environment.settle(), [""; 0], "{kind}");
        let text = message(&environment, "StorageReady");
        assert!(text.starts_with(&format!("{grows}{condition}")), "{text}");
        assert!(!text.contains("changes with every attempt"), "{text}");
    }
    let claim = environment.claims.get_mut("web-root").unwrap();
    claim.status.conditions.clear();
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(reported(&environment, "StorageReady"), ("True", "PVCBound"));
}

#[test]
fn a_volume_that_cannot_grow_is_reported_and_blocks_no_other_action() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    environment.classes.insert("standard".into(), false);
    edit(&mut environment, |block| {
        block.disks[0].size = Bytes::mib(30 * 1024);
        block.cpu.cores = 8;
    });
    assert_eq!(environment.settle(), ["updated the VirtualMachine"]);
    let fault = ("False", "VolumeExpansionNotAllowed");
    assert_eq!(reported(&environment, "StorageReady"), fault);
    assert_eq!(reported(&environment, "Ready"), fault);
    assert_eq!(phase(&environment), Some(Phase::Running));
    let text = message(&environment, "Ready");
    assert!(
        text.contains("disk 'root' cannot grow from 20Gi to 30Gi"),
        "{text}"
    );

    environment.classes.insert("standard".into(), true);
    assert_eq!(
        environment.settle(),
        ["updated PersistentVolumeClaim web-root"]
    );
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));

    // A volume that is larger than requested does not need to grow.
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    environment.classes.insert("standard".into(), false);
    let claim = environment.claims.get_mut("web-root").unwrap();
    claim.status.capacity.storage = Some(Bytes::mib(30 * 1024));
    claim.status.conditions.push(ForeignCondition::default());
    edit(&mut environment, |block| {
        block.disks[0].size = Bytes::mib(30 * 1024);
    });
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(reported(&environment, "StorageReady"), ("True", "PVCBound"));
}

#[test]
fn a_removed_disk_is_kept_whatever_its_policy_once_the_guest_no_longer_has_it() {
    let mut environment = machine_with_every_object();
    edit(&mut environment, |block| {
        block.disks.push(disk("old", ReclaimPolicy::Delete));
    });
    environment.settle();
    edit(&mut environment, |block| block.disks.truncate(1));
    assert_eq!(environment.settle(), ["updated the VirtualMachine"]);
    let wanted: Vec<_> = claims_of(environment.vm.as_ref().unwrap())
        .map(ToOwned::to_owned)
        .collect();
    assert_eq!(wanted, ["web-root"]);
    assert_eq!(environment.claims.len(), 3, "the guest still has them");

    // After a restart the instance does not have them.
    environment.instance = None;
    let done = environment.settle();
    for name in ["web-data", "web-old"] {
        let kept = format!("updated PersistentVolumeClaim {name}");
        assert!(done.contains(&kept), "{done:?}");
        let claim = &environment.claims[name];
        let former = claim.annotation(names::ANNOTATION_RETAINED_FROM);
        assert_eq!(former, Some("uid-of-web"), "{name}");
    }
    let kept = &environment.claims["web-data"];
    assert_eq!(kept.annotation(names::ANNOTATION_MACHINE_UID), None);

    // In the spec again, the disk is adopted with its data.
    let uid = kept.uid().to_owned();
    edit(&mut environment, |block| {
        block.disks.push(disk("data", ReclaimPolicy::Retain));
    });
    environment.settle();
    assert_eq!(environment.claims["web-data"].uid(), uid);
    assert!(environment.claims["web-data"].belongs_to("web", "uid-of-web"));
    assert_eq!(reported(&environment, "StorageReady"), ("True", "PVCBound"));
}

#[test]
fn a_disk_that_is_renamed_on_a_stopped_machine_keeps_its_claim() {
    let mut environment = FakeCluster::new(machine(block()));
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
        block.disks.push(disk("data", ReclaimPolicy::Delete));
    });
    environment.settle();
    edit(&mut environment, |block| {
        block.disks[1].name = "data2".into();
    });
    environment.settle();
    let claims: Vec<_> = environment.claims.keys().collect();
    assert_eq!(claims, ["web-data", "web-data2", "web-root"]);
    // The former disk is not the Machine's any more: it survives the Machine, the new one does not.
    environment.delete_machine();
    environment.settle();
    let claims: Vec<_> = environment.claims.keys().collect();
    assert_eq!(claims, ["web-data"]);
}

#[test]
fn a_disk_that_was_removed_or_set_to_retain_right_before_the_deletion_of_the_machine_is_kept() {
    type Edit = fn(&mut Normalized);
    let edits: [(&str, Edit); 2] = [
        ("removed", |block| block.disks.truncate(1)),
        ("set to retain", |block| {
            block.disks[1].reclaim_policy = ReclaimPolicy::Retain;
        }),
    ];
    for (case, change) in edits {
        let mut environment = FakeCluster::new(machine(block()));
        edit(&mut environment, |block| {
            block.disks.push(disk("data", ReclaimPolicy::Delete));
        });
        environment.settle();
        edit(&mut environment, change);
        // No pass in between: the annotation of the claim still says Delete.
        environment.delete_machine();
        environment.settle();
        assert!(environment.machine.is_none(), "{case}");
        let claims: Vec<_> = environment.claims.keys().collect();
        assert_eq!(claims, ["web-data"], "{case}");
    }
}

#[test]
fn a_kept_claim_is_adopted_only_if_it_fits_and_no_machine_owns_it() {
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
        let mut environment = FakeCluster::new(machine(block()));
        environment.existing_uids.insert("uid-of-living".into());
        environment.claims.insert("web-root".into(), decode(claim));
        environment.settle();
        let adopted = environment.claims["web-root"].belongs_to("web", "uid-of-web");
        let conflict = reported(&environment, "StorageReady") == ("False", "NameConflict");
        assert_ne!(adopted, conflict);
        adopted
    };
    assert!(kept(|_| {}));
    assert!(kept(
        |claim| claim["spec"]["resources"]["requests"]["storage"] = "10Gi".into()
    ));
    assert!(kept(|claim| {
        claim["metadata"]["annotations"] = json!({names::ANNOTATION_MACHINE_UID: "uid-of-deleted"});
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
        // Machine `a` with disk `b-c` and Machine `a-b` with disk `c` need the same name.
        claim["metadata"]["labels"][names::LABEL_DISK] = "other".into();
    }));
    assert!(!kept(|claim| {
        claim["metadata"]["labels"][names::LABEL_MANAGED_BY] = "other".into();
    }));
}
