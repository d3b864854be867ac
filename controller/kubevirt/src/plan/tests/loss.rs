//! Claims of disks that are deleted by others.

use common::api::choice::{PowerState, ReclaimPolicy};
use common::api::normalized::NormalizedTpm;
use common::names;
use serde_json::json;

use super::images::image;
use super::{edit, message, reported};
use crate::environment::{FakeCluster, decode, some_time};
use controller_core::fixtures::{annotate, block, disk, machine};
use controller_core::machine::Block;
use controller_core::objects::Meta as _;

/// A Machine that ran once and is off now.
fn off() -> FakeCluster {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Delete));
    let mut environment = FakeCluster::new(machine(block));
    environment.settle();
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
    environment
}

fn confirm(environment: &mut FakeCluster, disks: &str) {
    annotate(
        environment.machine_mut(),
        names::ANNOTATION_RECREATE_VOLUME,
        disks,
    );
}

fn phase_of<'a>(environment: &'a FakeCluster, disk: &str) -> Option<&'a str> {
    let mut volumes = environment.machine().status.volumes.iter();
    volumes.find(|it| it.name == disk)?.phase.as_deref()
}

#[test]
fn a_claim_that_vanished_is_not_made_anew_until_the_user_confirms_it_once() {
    let mut environment = off();
    environment.claims.remove("web-data");
    for _ in 0..3 {
        assert_eq!(environment.settle(), [""; 0]);
        assert_eq!(reported(&environment, "StorageReady"), ("False", "PVCLost"));
        assert_eq!(reported(&environment, "Ready"), ("False", "PVCLost"));
        assert_eq!(phase_of(&environment, "data"), Some("Lost"));
    }
    let message = message(&environment, "Ready");
    let command =
        "kubectl annotate machine -n default web machine.vitistack.io/recreate-volume=data";
    assert!(message.ends_with(command), "{message}");

    // Neither another disk nor a start makes it.
    confirm(&mut environment, "root");
    let removed = "removed the annotation machine.vitistack.io/recreate-volume";
    assert_eq!(environment.settle(), [removed]);
    confirm(&mut environment, "root, data");
    assert_eq!(
        environment.settle(),
        ["created PersistentVolumeClaim web-data", removed]
    );
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
    assert_eq!(
        environment
            .machine()
            .annotation(names::ANNOTATION_RECREATE_VOLUME),
        None
    );
    // The confirmation is used up.
    environment.claims.remove("web-data");
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(reported(&environment, "Ready"), ("False", "PVCLost"));
}

#[test]
fn a_confirmation_waits_until_the_claim_can_be_made() {
    let mut environment = off();
    environment.claims.remove("web-data");
    environment.settle();
    let class = environment.classes.remove("standard").unwrap();
    confirm(&mut environment, "data");
    assert_eq!(environment.settle(), [""; 0]);
    environment.classes.insert("standard".into(), class);
    assert_eq!(environment.settle().len(), 2);
    assert!(environment.claims.contains_key("web-data"));
}

#[test]
fn a_restored_claim_continues_the_machine() {
    let mut environment = off();
    let lost = environment.claims.remove("web-data").unwrap();
    environment.settle();
    // A backup restores the labels, and the uid of the Machine if that is the same.
    let mut restored = lost.clone();
    restored.metadata.uid = Some("restored".into());
    environment.claims.insert("web-data".into(), restored);
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
    assert_eq!(environment.claims["web-data"].uid(), "restored");

    let mut by_hand = lost;
    by_hand.metadata.annotations = None;
    environment.claims.insert("web-data".into(), by_hand);
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
}

/// There was nothing in it, and an import starts again with another image.
#[test]
fn a_claim_that_never_had_a_volume_is_made_anew() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.pass();
    environment.claims.remove("web-root");
    assert_eq!(
        environment.pass(),
        ["created PersistentVolumeClaim web-root"]
    );
}

/// Without a usable block the disks are not known, and what was reported of their claims is all that is.
#[test]
fn that_a_claim_never_had_a_volume_is_known_after_the_block_was_unusable() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.pass();
    assert_eq!(phase_of(&environment, "root"), Some("Pending"));
    let block = std::mem::replace(&mut environment.machine_mut().block, Block::Stale);
    environment.pass();
    assert_eq!(phase_of(&environment, "root"), Some("Pending"));
    environment.machine_mut().block = block;
    environment.claims.remove("web-root");
    assert_eq!(
        environment.pass(),
        ["created PersistentVolumeClaim web-root"]
    );
}

/// A former claim of the name that still exists, even one that the controller did not create.
#[test]
fn no_guest_gets_a_claim_that_is_being_deleted() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.settle();
    let mut former = environment.claims["web-root"].clone();
    former.metadata.labels = None;
    former.metadata.annotations = None;
    former.metadata.deletion_timestamp = Some(some_time());
    let mut environment = FakeCluster::new(machine(block()));
    environment.claims.insert("web-root".into(), former);
    assert_eq!(environment.settle(), ["added the finalizer"]);
    assert_eq!(reported(&environment, "Ready"), ("False", "PVCDeleting"));
    environment.claims.remove("web-root");
    let done = environment.settle();
    assert_eq!(done[0], "created PersistentVolumeClaim web-root");
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

#[test]
fn a_claim_that_is_deleted_under_a_running_guest_is_reported_with_what_is_lost() {
    let mut block = block();
    block.disks.push(disk("data", ReclaimPolicy::Retain));
    let mut environment = FakeCluster::new(machine(block));
    environment.settle();
    let claim = environment.claims.get_mut("web-data").unwrap();
    claim.metadata.deletion_timestamp = Some(some_time());
    claim.spec.volume_name = Some("pv-7".into());
    assert_eq!(environment.pass(), [""; 0]);
    assert_eq!(reported(&environment, "Ready"), ("False", "PVCDeleting"));
    let message = message(&environment, "StorageReady");
    for part in [
        "all its content is lost as soon as the guest stops",
        "kubectl patch pv pv-7 --type merge",
    ] {
        assert!(message.contains(part), "{message}");
    }
    // It can still be switched off, and the loss is reported from then on.
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    assert_eq!(
        environment.pass(),
        ["set the VirtualMachine's runStrategy to Halted"]
    );
    environment.claims.remove("web-data");
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("False", "PVCLost"));
}

#[test]
fn a_corrected_image_is_imported_in_place_of_an_incomplete_one() {
    let mut wrong = block();
    wrong.disks[0].image = Some(image("https://images.example.com/wrong"));
    let mut environment = FakeCluster::new(machine(wrong));
    environment.pass();
    environment.advance_kubevirt();
    environment.pass();
    let correct = |environment: &mut FakeCluster, url: &str| {
        edit(environment, |block| {
            block.disks[0].image = Some(image(url));
        });
    };
    assert_eq!(environment.pass(), [""; 0]);
    correct(&mut environment, "https://images.example.com/right");
    assert_eq!(environment.pass(), ["deleted DataVolume web-root"]);
    assert_eq!(
        reported(&environment, "StorageReady"),
        ("False", "ImageImporting")
    );
    let done = environment.settle();
    assert_eq!(done[0], "created DataVolume web-root");
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));

    // What is complete stays, whatever the spec says.
    correct(&mut environment, "https://images.example.com/late");
    assert_eq!(environment.settle(), [""; 0]);
}

/// The VirtualMachine exists, and its guest cannot start before the import.
#[test]
fn a_failing_import_on_first_consumer_storage_is_why_the_machine_is_not_ready() {
    let mut filled = block();
    filled.disks[0].image = Some(image("https://images.example.com/gone"));
    let mut environment = FakeCluster::new(machine(filled));
    environment.first_consumer = true;
    environment.pass();
    environment.advance_kubevirt();
    environment.advance_kubevirt();
    assert_eq!(environment.pass(), ["created the VirtualMachine"]);
    let import = environment.data_volumes.get_mut("web-root").unwrap();
    import.status = decode(json!({"phase": "ImportInProgress", "conditions": [
        {"type": "Running", "status": "False", "reason": "Error", "message": "404"},
    ]}));
    environment.set_printable_status("Provisioning");
    environment.pass();
    let failing = ("False", "ImageImportFailed");
    assert_eq!(reported(&environment, "Ready"), failing);
}

/// The claim of such a disk is in use by the VirtualMachine, which cannot start before the import.
/// The VirtualMachine has the claim, and its guest cannot have run.
#[test]
fn a_corrected_image_on_first_consumer_storage_is_imported_in_place_of_an_incomplete_one() {
    let made = || {
        let mut wrong = block();
        wrong.disks[0].image = Some(image("https://images.example.com/wrong"));
        let mut environment = FakeCluster::new(machine(wrong));
        environment.first_consumer = true;
        environment.pass();
        environment.advance_kubevirt();
        environment.advance_kubevirt();
        assert_eq!(environment.pass(), ["created the VirtualMachine"]);
        environment
    };
    let correct = |environment: &mut FakeCluster| {
        edit(environment, |block| {
            block.disks[0].image = Some(image("https://images.example.com/right"));
        });
    };
    for has_instance in [false, true] {
        let mut environment = made();
        if has_instance {
            // KubeVirt makes the instance, the storage binds the claim for it, and the import hangs.
            environment.imports_hang = true;
            environment.advance_kubevirt();
            environment.advance_kubevirt();
            let waits = environment.instance.as_mut().unwrap();
            "Pending".clone_into(&mut waits.status.phase);
            environment.set_printable_status("Provisioning");
            environment.pass();
        }
        correct(&mut environment);
        assert_eq!(environment.pass(), ["deleted DataVolume web-root"]);
        environment.imports_hang = false;
        assert!(environment.collect_garbage());
        assert_eq!(environment.pass(), ["created DataVolume web-root"]);
        environment.settle();
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    }

    // A guest that runs with it keeps it, also if it came up just before the deletion.
    let mut environment = made();
    environment.imports_hang = true;
    for _ in 0..3 {
        environment.advance_kubevirt();
    }
    let waits = environment.instance.as_mut().unwrap();
    "Scheduling".clone_into(&mut waits.status.phase);
    environment.set_printable_status("Starting");
    environment.pass();
    correct(&mut environment);
    let plan = environment.plan();
    "Running".clone_into(&mut environment.instance.as_mut().unwrap().status.phase);
    environment.carry_out(&plan, plan.steps().count());
    assert!(!environment.data_volumes["web-root"].is_deleting());
    environment.set_printable_status("Running");
    assert_eq!(environment.pass(), [""; 0]);
    let text = message(&environment, "StorageReady");
    assert!(text.contains("stop that guest"), "{text}");
}

#[test]
fn a_confirmation_to_discard_state_is_removed_once_nothing_that_it_names_is_kept() {
    let mut environment = off();
    edit(&mut environment, |block| {
        block.tpm = Some(NormalizedTpm { persistent: true });
    });
    environment.settle();
    let annotation = names::ANNOTATION_DISCARD_STATE;
    annotate(environment.machine_mut(), annotation, "efi, tpm");
    assert_eq!(environment.settle(), [""; 0], "the TPM still persists");
    edit(&mut environment, |block| block.tpm = None);
    let removed = format!("removed the annotation {annotation}");
    assert!(environment.settle().contains(&removed));
    assert_eq!(environment.machine().annotation(annotation), None);
}
