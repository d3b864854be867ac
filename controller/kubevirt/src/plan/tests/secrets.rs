//! Secrets of the user that change while the guest runs, or cannot be read.

use common::api::choice::PowerState;
use common::api::machine::{CloudInit, SecretKeyRef};
use common::names;
use common::quantity::Bytes;
use common::render::{CloudInitPlan, SecretKey};

use super::{edit, message, reported};
use crate::environment::FakeCluster;
use crate::objects::ForeignCondition;
use controller_core::fixtures::{annotate, block, machine, pause};

/// A guest whose user data is in this key of the Secret `mine`.
fn running(key: &str) -> (FakeCluster, SecretKey) {
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
    let mut environment = FakeCluster::new(machine);
    environment.write_secret(&key, "first");
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    (environment, key)
}

fn pending(environment: &FakeCluster) -> Vec<&str> {
    let changes = &environment.machine().status.pending_changes;
    changes.iter().map(|it| it.field.as_str()).collect()
}

#[test]
fn another_content_is_pending_until_the_guest_is_restarted() {
    // One Secret is referenced by KubeVirt, the other one is copied.
    for (key, writes) in [
        ("userdata", &["updated the VirtualMachine"][..]),
        (
            "mine",
            &["updated Secret web-cloudinit", "updated the VirtualMachine"],
        ),
    ] {
        let (mut environment, key) = running(key);
        assert_eq!(environment.settle(), [""; 0]);
        let old = environment.contents[&key].revision.version.clone();
        environment.write_secret(&key, "second");
        let new = environment.contents[&key].revision.version.clone();
        assert_eq!(environment.settle(), writes);
        let changes = &environment.machine().status.pending_changes;
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].field, "cloudInit.secretRef");
        assert_eq!(changes[0].current, format!("resourceVersion {old}"));
        assert_eq!(changes[0].desired, format!("resourceVersion {new}"));
        assert_eq!(changes[0].action, "Restart");
        assert_eq!(
            reported(&environment, "RestartRequired"),
            ("True", "RestartRequired")
        );
        let text = message(&environment, "RestartRequired");
        assert!(text.contains("on a new instance only"), "{text}");
        let status = format!("{:?}", environment.machine().status);
        assert!(!status.contains("second"), "{status}");
        assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
        // A later pass, which does not have the former content, does nothing.
        assert_eq!(environment.settle(), [""; 0]);

        annotate(
            environment.machine_mut(),
            names::ANNOTATION_RESTART_REQUESTED,
            "now",
        );
        environment.settle();
        assert_eq!(environment.restarted.len(), 1);
        assert_eq!(pending(&environment), [""; 0]);
        assert_eq!(reported(&environment, "RestartRequired"), ("", ""));
        assert_eq!(environment.settle(), [""; 0]);
    }
}

#[test]
fn a_secret_written_again_with_the_same_content_is_no_pending_change() {
    let (mut environment, key) = running("userdata");
    environment.write_secret(&key, "first");
    assert_eq!(environment.settle(), ["updated the VirtualMachine"]);
    assert_eq!(pending(&environment), [""; 0]);
    // Changed and changed back.
    environment.write_secret(&key, "second");
    environment.settle();
    assert_eq!(pending(&environment), ["cloudInit.secretRef"]);
    environment.write_secret(&key, "first");
    environment.settle();
    assert_eq!(pending(&environment), [""; 0]);
}

#[test]
fn a_missing_secret_or_a_guest_without_revisions_is_no_pending_change() {
    let (mut environment, key) = running("userdata");
    environment.contents.remove(&key);
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(pending(&environment), [""; 0]);
    // A guest of a release without these annotations has no revision to compare.
    let (mut environment, key) = running("userdata");
    environment.instance.as_mut().unwrap().metadata.annotations = None;
    environment.write_secret(&key, "second");
    environment.settle();
    assert_eq!(pending(&environment), [""; 0]);
}

#[test]
fn a_changed_secret_of_a_paused_machine_is_pending_and_nothing_is_done() {
    let (mut environment, key) = running("userdata");
    pause(environment.machine_mut());
    environment.write_secret(&key, "second");
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(pending(&environment), ["cloudInit.secretRef"]);
}

#[test]
fn a_changed_secret_is_pending_beside_changes_that_kubevirt_reports() {
    let (mut environment, key) = running("userdata");
    edit(&mut environment, |block| block.cpu.cores = 8);
    environment.write_secret(&key, "second");
    let vm = environment.vm.as_mut().unwrap();
    vm.status.conditions = vec![ForeignCondition {
        kind: "RestartRequired".into(),
        status: "True".into(),
        ..ForeignCondition::default()
    }];
    environment.settle();
    assert_eq!(pending(&environment), ["cpu.cores", "cloudInit.secretRef"]);
}

#[test]
fn a_secret_that_cannot_be_read_delays_only_what_is_rendered_from_it() {
    let (mut environment, key) = running("mine");
    environment.write_secret(&key, "second");
    environment.secrets_error = Some("secrets \"mine\" is forbidden".into());
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
        block.cpu.cores = 8;
        block.disks[0].size = Bytes::mib(30 * 1024);
    });
    let done = environment.settle();
    assert_eq!(
        done,
        [
            "set the VirtualMachine's runStrategy to Halted",
            "updated PersistentVolumeClaim web-root",
        ]
    );
    let reason = ("False", "KubeVirtApiError");
    assert_eq!(reported(&environment, "VirtualMachineReady"), reason);
    assert_eq!(reported(&environment, "Ready"), reason);
    for part in [
        "Secrets for cloud-init",
        "secrets \"mine\" is forbidden",
        "kubectl auth can-i get secrets --namespace default",
    ] {
        let text = message(&environment, "Ready");
        assert!(text.contains(part), "{text}");
    }
    assert!(
        environment.plan().requeue_after.is_some(),
        "no event would come"
    );

    environment.secrets_error = None;
    environment.settle();
    assert_eq!(reported(&environment, "Ready"), ("True", "Stopped"));
    assert_eq!(environment.plan().requeue_after, None);
}

#[test]
fn the_sizes_of_the_guest_are_pending_also_while_its_secret_cannot_be_read() {
    let (mut environment, key) = running("mine");
    environment.write_secret(&key, "second");
    environment.secrets_error = Some("secrets \"mine\" is forbidden".into());
    edit(&mut environment, |block| block.cpu.cores = 8);
    environment.settle();
    assert_eq!(pending(&environment), ["cpu.cores"]);
}

#[test]
fn a_machine_whose_secrets_cannot_be_read_can_be_deleted() {
    let (mut environment, key) = running("mine");
    environment.write_secret(&key, "second");
    environment.secrets_error = Some("the API server did not answer within 5 s".into());
    environment.settle();
    environment.delete_machine();
    environment.settle();
    assert!(environment.machine.is_none());
}

#[test]
fn a_new_machine_whose_secrets_cannot_be_read_gets_everything_but_its_guest() {
    let (mut environment, _) = running("mine");
    let (claims, vm) = (environment.claims.len(), environment.vm.take());
    (environment.instance, environment.secret) = (None, None);
    environment.claims.clear();
    environment.secrets_error = Some("the API server did not answer within 5 s".into());
    environment.settle();
    assert_eq!(environment.claims.len(), claims);
    assert!(environment.vm.is_none() && environment.secret.is_none());
    assert_eq!(
        reported(&environment, "Ready"),
        ("False", "KubeVirtApiError")
    );
    environment.secrets_error = None;
    environment.settle();
    assert_eq!(environment.vm.is_some(), vm.is_some());
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}
