//! A Machine that lives.

use std::collections::BTreeMap;

use common::api::choice::{Phase, PowerState};
use common::api::machine::{CloudInit, SecretKeyRef};
use common::names;
use common::render::{CloudInitPlan, SecretKey};
use serde_json::json;

use super::{edit, message, phase, rich, told};
use crate::plan::create;
use crate::plan::world::{World, decode};
use common::quantity::Bytes;
use controller_core::fixtures::{block, machine, pause};
use controller_core::machine::Block;
use controller_core::objects::Meta as _;
use controller_core::plan::{Now, Refusal, Subject};
use time::OffsetDateTime;

#[test]
fn everything_is_made_in_one_pass_and_in_order() {
    let mut world = rich();
    assert_eq!(
        world.pass(),
        [
            "added the finalizer",
            "made NetworkAttachmentDefinition prod",
            "made PersistentVolumeClaim web-root",
            "made PersistentVolumeClaim web-data",
            "made Secret web-cloudinit",
            "made the VirtualMachine",
        ]
    );
    assert_eq!(phase(&world), Some(Phase::Creating));
    assert_eq!(told(&world, "Normalized"), ("True", "Normalized"));
    assert_eq!(told(&world, "StorageReady"), ("False", "PVCPending"));
    assert_eq!(told(&world, "NetworkReady"), ("True", "NetworkConfigured"));
    assert_eq!(told(&world, "VirtualMachineReady"), ("True", "VMCreated"));
    assert_eq!(told(&world, "Ready"), ("False", "Creating"));
    assert_eq!(world.machine().status.vm_name.as_deref(), Some("web"));

    assert_eq!(world.settle(), [""; 0]);
    let status = &world.machine().status;
    assert_eq!(status.phase, Some(Phase::Running));
    assert_eq!(status.ip_addresses, ["10.0.0.1"]);
    assert_eq!(status.node_name.as_deref(), Some("node-1"));
    assert_eq!(status.vmi_name.as_deref(), Some("web"));
    assert_eq!(told(&world, "Ready"), ("True", "Running"));
    assert_eq!(told(&world, "StorageReady"), ("True", "PVCBound"));
}

#[test]
fn what_is_made_carries_labels_and_uid_and_only_the_vm_and_the_secret_an_owner() {
    let mut world = rich();
    world.pass();
    let vm = world.vm.as_ref().unwrap();
    let secret = world.secret.as_ref().unwrap();
    let claims: Vec<_> = world.claims.values().collect();
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
    assert_eq!(owners(&world.attachments["prod"].metadata), ["uid-of-prod"]);
}

#[test]
fn a_missing_network_is_named_and_the_machine_goes_on_when_it_appears() {
    let mut world = rich();
    world.networks.clear();
    let done = world.settle();
    assert!(
        !done.contains(&"made the VirtualMachine".to_owned()),
        "{done:?}"
    );
    assert!(world.vm.is_none());
    assert_eq!(phase(&world), Some(Phase::Failed));
    let reason = ("False", "NetworkConfigurationNotFound");
    assert_eq!(told(&world, "NetworkReady"), reason);
    assert_eq!(told(&world, "Ready"), reason);
    assert!(message(&world, "Ready").contains("'prod' not found in namespace default"));

    world.add_network("prod", "br0");
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
    assert_eq!(told(&world, "Ready"), ("True", "Running"));
}

#[test]
fn a_missing_class_is_named_and_no_claim_is_made_of_it() {
    let mut world = World::new(machine(block()));
    world.classes.clear();
    assert_eq!(world.settle(), ["added the finalizer"]);
    assert_eq!(
        told(&world, "StorageReady"),
        ("False", "StorageClassNotFound")
    );
    assert_eq!(told(&world, "VirtualMachineReady").0, "False");
    assert!(message(&world, "StorageReady").contains("StorageClass 'standard' of disk 'root'"));

    world.classes.insert("standard".into(), true);
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
}

#[test]
fn no_class_needs_no_class() {
    let mut block = block();
    block.disks[0].storage_class = String::new();
    block.disks[0].volume_name = Some("pv-1".into());
    let mut world = World::new(machine(block));
    world.classes.clear();
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
}

#[test]
fn objects_of_others_are_told_and_left_alone() {
    let stranger = json!({"name": "", "namespace": "default", "uid": "stranger"});
    let named = |name: &str| {
        let mut metadata = stranger.clone();
        metadata["name"] = name.into();
        json!({"metadata": metadata, "status": {"phase": "Bound"}})
    };

    let mut world = rich();
    world
        .claims
        .insert("web-root".into(), decode(named("web-root")));
    world.settle();
    assert_eq!(told(&world, "StorageReady"), ("False", "NameConflict"));
    assert!(message(&world, "Ready").contains("PersistentVolumeClaim 'web-root'"));
    assert!(world.vm.is_none());
    assert_eq!(world.claims["web-root"].metadata.annotations, None);

    let mut world = rich();
    world.vm = Some(decode(named("web")));
    let done = world.pass();
    assert!(
        !done.iter().any(|action| action.contains("VirtualMachine")),
        "{done:?}"
    );
    assert_eq!(
        told(&world, "VirtualMachineReady"),
        ("False", "NameConflict")
    );
    assert_eq!(world.machine().status.vm_name, None);
    assert_eq!(phase(&world), Some(Phase::Failed));

    let mut world = rich();
    world.secret = Some(decode(named("web-cloudinit")));
    world.settle();
    assert_eq!(
        told(&world, "VirtualMachineReady"),
        ("False", "NameConflict")
    );
    assert!(world.vm.is_none());

    let mut world = rich();
    world
        .attachments
        .insert("prod".into(), decode(named("prod")));
    world.settle();
    assert_eq!(told(&world, "NetworkReady"), ("False", "NetworkFailed"));
    assert!(world.vm.is_none());
}

#[test]
fn nothing_is_done_about_a_block_that_does_not_belong() {
    for (block, reason, told_why) in [
        (Block::Missing, "NotNormalized", "is missing"),
        (Block::Stale, "Stale", "another spec"),
        (
            Block::Unreadable("version 9".into()),
            "NotNormalized",
            "version 9",
        ),
    ] {
        let mut world = rich();
        world.machine_mut().block = block;
        assert_eq!(world.settle(), [""; 0]);
        assert_eq!(phase(&world), Some(Phase::Pending));
        assert_eq!(told(&world, "Normalized"), ("False", reason));
        assert_eq!(told(&world, "Ready"), ("False", reason));
        let message = message(&world, "Normalized");
        assert!(message.contains(told_why), "{message}");
        assert!(
            message.contains(names::ANNOTATION_REFRESH_TEMPLATE),
            "{message}"
        );
    }
}

#[test]
fn a_running_guest_is_left_alone_when_its_block_goes_stale() {
    let mut world = rich();
    world.settle();
    world.machine_mut().block = Block::Stale;
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(phase(&world), Some(Phase::Running));
    assert_eq!(told(&world, "Ready"), ("False", "Stale"));
    assert_eq!(world.machine().status.ip_addresses, ["10.0.0.1"]);
}

#[test]
fn what_the_cluster_lacks_is_told() {
    let mut world = rich();
    world.kubevirt = false;
    world.pass();
    assert_eq!(
        told(&world, "VirtualMachineReady"),
        ("False", "KubeVirtApiError")
    );

    let mut world = rich();
    world.multus = false;
    world.pass();
    assert_eq!(told(&world, "NetworkReady"), ("False", "NetworkFailed"));
    assert!(message(&world, "NetworkReady").contains("Multus is not installed"));
}

#[test]
fn a_secret_of_the_user_is_waited_for_and_copied() {
    let mut machine = machine(block());
    let reference = SecretKeyRef {
        name: Some("mine".into()),
        key: Some("other-key".into()),
    };
    machine.cloud_init = CloudInitPlan::from(&CloudInit {
        secret_ref: Some(reference),
        ..CloudInit::default()
    });
    let mut world = World::new(machine);
    world.settle();
    assert!(world.vm.is_none() && world.secret.is_none());
    assert_eq!(told(&world, "Ready"), ("False", "CloudInitSecretNotFound"));
    assert!(message(&world, "Ready").contains("Secret 'mine' with the key 'other-key'"));

    let key = SecretKey {
        name: "mine".into(),
        key: "other-key".into(),
    };
    world.write_secret(&key, "#cloud-config");
    world.settle();
    assert_eq!(phase(&world), Some(Phase::Running));
    assert!(world.secret.is_some());
    // The guest has its copy: the original may go.
    world.contents.remove(&key);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(phase(&world), Some(Phase::Running));
}

#[test]
fn a_paused_machine_is_observed_only() {
    let mut world = rich();
    pause(world.machine_mut());
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(told(&world, "Paused"), ("True", "Paused"));
    assert_eq!(phase(&world), Some(Phase::Pending));

    let mut world = rich();
    world.settle();
    pause(world.machine_mut());
    edit(&mut world, |block| block.power_state = PowerState::Stopped);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(phase(&world), Some(Phase::Running));
}

#[test]
fn power_becomes_the_run_strategy() {
    for (state, stops, strategy, ends) in [
        (PowerState::Running, false, "Always", Phase::Running),
        (PowerState::Running, true, "RerunOnFailure", Phase::Running),
        (PowerState::Stopped, false, "Halted", Phase::Stopped),
        (PowerState::Stopped, true, "Halted", Phase::Stopped),
    ] {
        let mut block = block();
        (block.power_state, block.guest_shutdown_stops) = (state, stops);
        let mut world = World::new(machine(block));
        world.settle();
        assert_eq!(world.vm.as_ref().unwrap().spec.run_strategy, strategy);
        assert_eq!(phase(&world), Some(ends));
        assert_eq!(told(&world, "Ready").0, "True");
    }
}

#[test]
fn a_guest_that_lacks_something_can_still_be_switched_off() {
    let mut world = rich();
    world.settle();
    world.networks.clear();
    edit(&mut world, |block| {
        block.power_state = PowerState::Stopped;
        block.cpu.cores = 8;
    });
    let done = world.settle();
    assert_eq!(done, ["set the VirtualMachine's runStrategy to Halted"]);
    assert_eq!(phase(&world), Some(Phase::Stopped));
    assert_eq!(
        told(&world, "Ready"),
        ("False", "NetworkConfigurationNotFound")
    );
}

#[test]
fn what_the_api_server_refuses_does_not_hold_up_the_switch() {
    let mut world = rich();
    world.settle();
    edit(&mut world, |block| {
        block.power_state = PowerState::Stopped;
        block.cpu.cores = 8;
        block.disks[0].size = Bytes::mib(30 * 1024);
    });
    let refusal = Refusal {
        subject: Subject::Storage,
        message: "it cannot grow".into(),
    };
    let refused = create::plan(
        world.machine(),
        &world.observed(),
        Some(&refusal),
        Now(OffsetDateTime::UNIX_EPOCH),
    );
    let actions: Vec<_> = refused.actions.iter().map(ToString::to_string).collect();
    assert!(
        actions.contains(&"set the VirtualMachine's runStrategy to Halted".to_owned()),
        "{actions:?}"
    );
    assert!(!actions.contains(&"changed the VirtualMachine".to_owned()));
    // And a size that the storage refuses holds up nothing else.
    assert_eq!(
        world.pass(),
        [
            "changed the VirtualMachine",
            "changed PersistentVolumeClaim web-root"
        ]
    );
}

#[test]
fn a_change_by_hand_is_taken_back_and_additions_of_others_stay() {
    let mut world = rich();
    world.settle();
    let vm = world.vm.as_mut().unwrap();
    vm.spec.template.spec.node_selector = BTreeMap::from([("added".into(), "by-others".into())]);
    assert_eq!(world.settle(), [""; 0]);
    world
        .vm
        .as_mut()
        .unwrap()
        .spec
        .template
        .spec
        .domain
        .cpu
        .cores = 64;
    assert_eq!(world.settle(), ["changed the VirtualMachine"]);
}

#[test]
fn a_template_that_has_changed_is_told_and_nothing_else() {
    let mut world = World::new(machine(block()));
    edit(&mut world, |block| {
        block.template = Some(decode(json!({
            "name": "db", "source": "MachineTemplate", "content": {"bootOrder": ["disk"]},
        })));
    });
    world.template = Some(decode(json!({"spec": {"bootOrder": ["disk"]}})));
    world.settle();
    assert_eq!(told(&world, "Normalized"), ("True", "Normalized"));
    world.template = Some(decode(json!({"spec": {"bootOrder": ["network"]}})));
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(told(&world, "Normalized"), ("True", "TemplateOutdated"));
    assert_eq!(told(&world, "Ready"), ("True", "Running"));
}
