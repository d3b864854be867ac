//! Secrets of the user that are written again while the guest runs.

use common::api::machine::{CloudInit, SecretKeyRef};
use common::names;
use common::render::{CloudInitPlan, SecretKey};

use super::{edit, message, told};
use crate::objects::ForeignCondition;
use crate::plan::world::World;
use controller_core::fixtures::{annotate, block, machine, pause};

/// A guest whose user data is in this key of the Secret `mine`.
fn running(key: &str) -> (World, SecretKey) {
    let mut machine = machine(block());
    machine.cloud_init = CloudInitPlan::from(&CloudInit {
        secret_ref: Some(SecretKeyRef {
            name: Some("mine".into()),
            key: Some(key.into()),
        }),
        ..CloudInit::default()
    });
    let key = SecretKey {
        name: "mine".into(),
        key: key.into(),
    };
    let mut world = World::new(machine);
    world.write_secret(&key, "first");
    world.settle();
    assert_eq!(told(&world, "Ready"), ("True", "Running"));
    (world, key)
}

fn pending(world: &World) -> Vec<&str> {
    let changes = &world.machine().status.pending_changes;
    changes.iter().map(|it| it.field.as_str()).collect()
}

#[test]
fn another_content_is_pending_until_the_guest_is_restarted() {
    // Referred to, and copied.
    for (key, writes) in [
        ("userdata", &["changed the VirtualMachine"][..]),
        (
            "mine",
            &["changed Secret web-cloudinit", "changed the VirtualMachine"],
        ),
    ] {
        let (mut world, key) = running(key);
        assert_eq!(world.settle(), [""; 0]);
        let old = world.contents[&key].revision.version.clone();
        world.write_secret(&key, "second");
        let new = world.contents[&key].revision.version.clone();
        assert_eq!(world.settle(), writes);
        let changes = &world.machine().status.pending_changes;
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].field, "cloudInit.secretRef");
        assert_eq!(changes[0].current, format!("resourceVersion {old}"));
        assert_eq!(changes[0].desired, format!("resourceVersion {new}"));
        assert_eq!(changes[0].action, "Restart");
        assert_eq!(told(&world, "RestartRequired"), ("True", "RestartRequired"));
        let says = message(&world, "RestartRequired");
        assert!(says.contains("on a new instance only"), "{says}");
        let status = format!("{:?}", world.machine().status);
        assert!(!status.contains("second"), "{status}");
        assert_eq!(told(&world, "Ready"), ("True", "Running"));
        // Whoever looks at it next, and knows nothing of what was: nothing is done.
        assert_eq!(world.settle(), [""; 0]);

        annotate(
            world.machine_mut(),
            names::ANNOTATION_RESTART_REQUESTED,
            "now",
        );
        world.settle();
        assert_eq!(world.restarted.len(), 1);
        assert_eq!(pending(&world), [""; 0]);
        assert_eq!(told(&world, "RestartRequired"), ("", ""));
        assert_eq!(world.settle(), [""; 0]);
    }
}

#[test]
fn the_same_content_is_nothing_new() {
    let (mut world, key) = running("userdata");
    world.write_secret(&key, "first");
    assert_eq!(world.settle(), ["changed the VirtualMachine"]);
    assert_eq!(pending(&world), [""; 0]);
    // There and back.
    world.write_secret(&key, "second");
    world.settle();
    assert_eq!(pending(&world), ["cloudInit.secretRef"]);
    world.write_secret(&key, "first");
    world.settle();
    assert_eq!(pending(&world), [""; 0]);
}

#[test]
fn a_secret_that_is_gone_or_of_another_machine_is_not_a_change() {
    let (mut world, key) = running("userdata");
    world.contents.remove(&key);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(pending(&world), [""; 0]);
    // A guest from before there were marks tells nothing.
    let (mut world, key) = running("userdata");
    world.instance.as_mut().unwrap().metadata.annotations = None;
    world.write_secret(&key, "second");
    world.settle();
    assert_eq!(pending(&world), [""; 0]);
}

#[test]
fn a_paused_machine_assert_documented_it_and_nothing_is_done() {
    let (mut world, key) = running("userdata");
    pause(world.machine_mut());
    world.write_secret(&key, "second");
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(pending(&world), ["cloudInit.secretRef"]);
}

#[test]
fn it_is_told_beside_what_kubevirt_tells() {
    let (mut world, key) = running("userdata");
    edit(&mut world, |block| block.cpu.cores = 8);
    world.write_secret(&key, "second");
    let vm = world.vm.as_mut().unwrap();
    vm.status.conditions = vec![ForeignCondition {
        kind: "RestartRequired".into(),
        status: "True".into(),
        ..ForeignCondition::default()
    }];
    world.settle();
    assert_eq!(pending(&world), ["cpu.cores", "cloudInit.secretRef"]);
}
