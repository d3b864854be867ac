//! Plans of Machines that are not under deletion.

use std::collections::BTreeMap;

use common::api::choice::{Phase, PowerState};
use common::api::machine::{CloudInit, SecretKeyRef};
use common::names;
use common::render::{CloudInitPlan, SecretKey};
use serde_json::json;

use super::{edit, machine_with_every_object, message, phase, reported};
use crate::environment::{FakeCluster, decode};
use controller_core::fixtures::{block, machine, pause};
use controller_core::machine::Block;
use controller_core::objects::Meta as _;

#[test]
fn all_objects_are_created_in_one_pass_and_in_order() {
    let mut environment = machine_with_every_object();
    assert_eq!(
        environment.pass(),
        [
            "added the finalizer",
            "created NetworkAttachmentDefinition prod",
            "created PersistentVolumeClaim web-root",
            "created PersistentVolumeClaim web-data",
            "created Secret web-cloudinit",
            "created the VirtualMachine",
        ]
    );
    assert_eq!(phase(&environment), Some(Phase::Creating));
    assert_eq!(reported(&environment, "Normalized"), ("True", "Normalized"));
    assert_eq!(
        reported(&environment, "StorageReady"),
        ("False", "PVCPending")
    );
    assert_eq!(
        reported(&environment, "NetworkReady"),
        ("True", "NetworkConfigured")
    );
    assert_eq!(
        reported(&environment, "VirtualMachineReady"),
        ("True", "VMCreated")
    );
    assert_eq!(reported(&environment, "Ready"), ("False", "PVCPending"));
    assert_eq!(environment.machine().status.vm_name.as_deref(), Some("web"));

    assert_eq!(environment.settle(), [""; 0]);
    let status = &environment.machine().status;
    assert_eq!(status.phase, Some(Phase::Running));
    assert_eq!(status.ip_addresses, ["10.0.0.1"]);
    assert_eq!(status.node_name.as_deref(), Some("node-1"));
    assert_eq!(status.vmi_name.as_deref(), Some("web"));
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
    assert_eq!(reported(&environment, "StorageReady"), ("True", "PVCBound"));
}

#[test]
fn created_objects_have_labels_and_uid_and_only_vm_and_secret_have_an_owner() {
    let mut environment = machine_with_every_object();
    environment.pass();
    let vm = environment.vm.as_ref().unwrap();
    let secret = environment.secret.as_ref().unwrap();
    let claims: Vec<_> = environment.claims.values().collect();
    assert!(vm.belongs_to("web", "uid-of-web") && secret.belongs_to("web", "uid-of-web"));
    assert!(
        claims
            .iter()
            .all(|claim| claim.belongs_to("web", "uid-of-web"))
    );
    let owners = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        let owners = metadata.owner_references.clone().unwrap_or_default();
        owners
            .into_iter()
            .map(|owner| owner.uid)
            .collect::<Vec<_>>()
    };
    assert_eq!(owners(&vm.metadata), ["uid-of-web"]);
    assert_eq!(owners(&secret.metadata), ["uid-of-web"]);
    assert!(
        claims
            .iter()
            .all(|claim| owners(&claim.metadata).is_empty())
    );
    let policies = claims
        .iter()
        .map(|claim| claim.annotation(names::ANNOTATION_RECLAIM_POLICY));
    assert_eq!(
        policies.collect::<Vec<_>>(),
        [Some("Retain"), Some("Delete")]
    );
    assert_eq!(
        owners(&environment.attachments["prod"].metadata),
        ["uid-of-prod"]
    );
}

#[test]
fn a_missing_network_is_named_and_the_machine_continues_when_it_appears() {
    let mut environment = machine_with_every_object();
    environment.networks.clear();
    let done = environment.settle();
    assert!(
        !done.contains(&"created the VirtualMachine".to_owned()),
        "{done:?}"
    );
    assert!(environment.vm.is_none());
    assert_eq!(phase(&environment), Some(Phase::Failed));
    let reason = ("False", "NetworkConfigurationNotFound");
    assert_eq!(reported(&environment, "NetworkReady"), reason);
    assert_eq!(reported(&environment, "Ready"), reason);
    assert!(message(&environment, "Ready").contains("'prod' not found in namespace default"));

    environment.add_network("prod", "br0");
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

#[test]
fn a_missing_class_is_named_and_no_claim_is_made_of_it() {
    let mut environment = FakeCluster::new(machine(block()));
    environment.classes.clear();
    assert_eq!(environment.settle(), ["added the finalizer"]);
    assert_eq!(
        reported(&environment, "StorageReady"),
        ("False", "StorageClassNotFound")
    );
    assert_eq!(reported(&environment, "VirtualMachineReady").0, "False");
    assert!(
        message(&environment, "StorageReady").contains("StorageClass 'standard' of disk 'root'")
    );

    environment.classes.insert("standard".into(), true);
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
}

#[test]
fn a_disk_without_a_class_needs_no_storage_class() {
    let mut block = block();
    block.disks[0].storage_class = String::new();
    block.disks[0].volume_name = Some("pv-1".into());
    let mut environment = FakeCluster::new(machine(block));
    environment.classes.clear();
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
}

#[test]
fn objects_of_others_are_reported_and_not_changed() {
    let stranger = json!({"name": "", "namespace": "default", "uid": "stranger"});
    let named = |name: &str| {
        let mut metadata = stranger.clone();
        metadata["name"] = name.into();
        json!({"metadata": metadata, "status": {"phase": "Bound"}})
    };

    let mut environment = machine_with_every_object();
    environment
        .claims
        .insert("web-root".into(), decode(named("web-root")));
    environment.settle();
    assert_eq!(
        reported(&environment, "StorageReady"),
        ("False", "NameConflict")
    );
    assert!(message(&environment, "Ready").contains("PersistentVolumeClaim 'web-root'"));
    assert!(environment.vm.is_none());
    assert_eq!(environment.claims["web-root"].metadata.annotations, None);

    let mut environment = machine_with_every_object();
    environment.vm = Some(decode(named("web")));
    let done = environment.pass();
    assert!(
        !done.iter().any(|action| action.contains("VirtualMachine")),
        "{done:?}"
    );
    assert_eq!(
        reported(&environment, "VirtualMachineReady"),
        ("False", "NameConflict")
    );
    assert_eq!(environment.machine().status.vm_name, None);
    assert_eq!(phase(&environment), Some(Phase::Failed));

    let mut environment = machine_with_every_object();
    environment.secret = Some(decode(named("web-cloudinit")));
    environment.settle();
    assert_eq!(
        reported(&environment, "VirtualMachineReady"),
        ("False", "NameConflict")
    );
    assert!(environment.vm.is_none());

    let mut environment = machine_with_every_object();
    environment
        .attachments
        .insert("prod".into(), decode(named("prod")));
    environment.settle();
    assert_eq!(
        reported(&environment, "NetworkReady"),
        ("False", "NetworkFailed")
    );
    assert!(environment.vm.is_none());
}

#[test]
fn a_block_that_does_not_match_the_spec_is_not_acted_on() {
    for (block, reason, told_why) in [
        (Block::Missing, "NotNormalized", "is missing"),
        (Block::Stale, "Stale", "another spec"),
        (
            Block::Newer(9),
            "NotNormalized",
            "has version 9, and this machine-controller reads versions up to 2, so nothing is done: upgrade it",
        ),
        (
            Block::Unreadable("it has no version".into()),
            "NotNormalized",
            "see that machine-webhook runs",
        ),
    ] {
        let mut environment = machine_with_every_object();
        environment.machine_mut().block = block;
        assert_eq!(environment.settle(), [""; 0]);
        assert_eq!(phase(&environment), Some(Phase::Pending));
        assert_eq!(reported(&environment, "Normalized"), ("False", reason));
        assert_eq!(reported(&environment, "Ready"), ("False", reason));
        let message = message(&environment, "Normalized");
        assert!(message.contains(told_why), "{message}");
        assert!(
            message.contains(names::ANNOTATION_REFRESH_TEMPLATE),
            "{message}"
        );
    }
}

#[test]
fn a_running_guest_is_not_changed_while_its_block_is_stale() {
    let mut environment = machine_with_every_object();
    environment.settle();
    environment.machine_mut().block = Block::Stale;
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(phase(&environment), Some(Phase::Running));
    assert_eq!(reported(&environment, "Ready"), ("False", "Stale"));
    assert_eq!(environment.machine().status.ip_addresses, ["10.0.0.1"]);
}

#[test]
fn a_kind_that_the_cluster_does_not_serve_is_named_in_the_condition() {
    let mut environment = machine_with_every_object();
    environment.kubevirt = false;
    environment.pass();
    assert_eq!(
        reported(&environment, "VirtualMachineReady"),
        ("False", "KubeVirtApiError")
    );

    let mut environment = machine_with_every_object();
    environment.multus = false;
    environment.pass();
    assert_eq!(
        reported(&environment, "NetworkReady"),
        ("False", "NetworkFailed")
    );
    assert!(message(&environment, "NetworkReady").contains("Multus is not installed"));
}

#[test]
fn a_missing_secret_of_the_user_is_awaited_and_then_copied() {
    let mut machine = machine(block());
    let reference = SecretKeyRef {
        name: Some("mine".into()),
        key: Some("other-key".into()),
    };
    machine.cloud_init = CloudInitPlan::from(&CloudInit {
        secret_ref: Some(reference),
        ..CloudInit::default()
    });
    let mut environment = FakeCluster::new(machine);
    environment.settle();
    assert!(environment.vm.is_none() && environment.secret.is_none());
    assert_eq!(
        reported(&environment, "Ready"),
        ("False", "CloudInitSecretNotFound")
    );
    assert!(message(&environment, "Ready").contains("Secret 'mine' with the key 'other-key'"));

    let key = SecretKey {
        name: "mine".into(),
        key: "other-key".into(),
    };
    environment.write_secret(&key, "#cloud-config");
    environment.settle();
    assert_eq!(phase(&environment), Some(Phase::Running));
    assert!(environment.secret.is_some());
    // The guest has a copy, so the original may be deleted.
    environment.contents.remove(&key);
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(phase(&environment), Some(Phase::Running));
}

#[test]
fn a_paused_machine_is_observed_only() {
    let mut environment = machine_with_every_object();
    pause(environment.machine_mut());
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(reported(&environment, "Paused"), ("True", "Paused"));
    assert_eq!(phase(&environment), Some(Phase::Pending));

    let mut environment = machine_with_every_object();
    environment.settle();
    pause(environment.machine_mut());
    edit(&mut environment, |block| {
        block.power_state = PowerState::Stopped;
    });
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(phase(&environment), Some(Phase::Running));
}

#[test]
fn a_change_by_hand_is_reverted_and_additions_of_others_stay() {
    let mut environment = machine_with_every_object();
    environment.settle();
    let vm = environment.vm.as_mut().unwrap();
    vm.spec.template.spec.node_selector = BTreeMap::from([("added".into(), "by-others".into())]);
    assert_eq!(environment.settle(), [""; 0]);
    environment
        .vm
        .as_mut()
        .unwrap()
        .spec
        .template
        .spec
        .domain
        .cpu
        .cores = 64;
    assert_eq!(environment.settle(), ["updated the VirtualMachine"]);
}

#[test]
fn a_changed_template_is_reported_and_nothing_is_done() {
    let mut environment = FakeCluster::new(machine(block()));
    edit(&mut environment, |block| {
        block.template = Some(decode(json!({
            "name": "db", "source": "MachineTemplate", "content": {"bootOrder": ["disk"]},
        })));
    });
    environment.template = Some(decode(json!({"spec": {"bootOrder": ["disk"]}})));
    environment.settle();
    assert_eq!(reported(&environment, "Normalized"), ("True", "Normalized"));
    environment.template = Some(decode(json!({"spec": {"bootOrder": ["network"]}})));
    assert_eq!(environment.settle(), [""; 0]);
    assert_eq!(
        reported(&environment, "Normalized"),
        ("True", "TemplateOutdated")
    );
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}
