//! Machines with deletion protection: which objects have the label, and that it is removed before they are deleted.

use common::api::choice::ReclaimPolicy;
use common::names;
use serde_json::json;

use super::{deletion, edit, images, machine_with_every_object, reported};
use crate::environment::{FakeCluster, decode};
use controller_core::fixtures::{block, disk, machine};
use controller_core::objects::Meta;

fn is_marked(object: &impl Meta) -> bool {
    object.label(names::LABEL_DELETION_PROTECTION) == Some("true")
}

/// The objects that have the label.
fn marked(environment: &FakeCluster) -> Vec<String> {
    let vm = environment.vm.iter().filter(|vm| is_marked(*vm));
    let vm = vm.map(|_| "VirtualMachine".to_owned());
    let secret = environment.secret.iter().filter(|it| is_marked(*it));
    let secret = secret.map(|_| "Secret".to_owned());
    let claims = environment.claims.iter().filter(|(_, it)| is_marked(*it));
    let claims = claims.map(|(name, _)| format!("claim {name}"));
    let imports = environment.data_volumes.iter();
    let imports = imports.filter(|(_, it)| is_marked(*it));
    let imports = imports.map(|(name, _)| format!("import {name}"));
    vm.chain(secret).chain(claims).chain(imports).collect()
}

#[test]
fn the_objects_of_a_protected_machine_have_the_label_until_it_is_not_protected() {
    let mut environment = machine_with_every_object();
    environment.settle();
    let state = deletion::state_claim(&environment);
    let name = state.name().to_owned();
    environment.claims.insert(name, state);
    environment.settle();
    assert_eq!(marked(&environment), [""; 0]);
    edit(&mut environment, |block| block.deletion_protection = true);
    environment.settle();
    let all = [
        "VirtualMachine",
        "Secret",
        "claim persistent-state-for-web-x2x9k",
        "claim web-data",
        "claim web-root",
    ];
    assert_eq!(marked(&environment), all);
    assert_eq!(environment.settle(), [""; 0], "nothing is written again");
    edit(&mut environment, |block| block.deletion_protection = false);
    environment.settle();
    assert_eq!(marked(&environment), [""; 0]);
    assert_eq!(environment.restarted, [""; 0]);
}

#[test]
fn a_new_machine_that_is_protected_is_made_and_protected() {
    let mut block = block();
    block.deletion_protection = true;
    let mut environment = FakeCluster::new(machine(block));
    environment.settle();
    assert_eq!(marked(&environment), ["VirtualMachine", "claim web-root"]);
    assert_eq!(reported(&environment, "Ready"), ("True", "Running"));
}

#[test]
fn an_import_of_a_protected_machine_is_protected_until_it_has_finished_and_then_its_claim() {
    let mut block = block();
    block.deletion_protection = true;
    block.disks[0].image = Some(images::image("https://images.example.com/debian.qcow2"));
    let mut environment = FakeCluster::new(machine(block));
    let mut seen = vec![];
    for _ in 0..20 {
        environment.pass();
        seen.extend(marked(&environment));
        environment.advance_kubevirt();
    }
    assert!(seen.contains(&"import web-root".to_owned()), "{seen:?}");
    assert!(environment.data_volumes.is_empty(), "it was released");
    assert_eq!(marked(&environment), ["VirtualMachine", "claim web-root"]);
}

#[test]
fn a_deleted_machine_is_held_while_it_is_protected_and_goes_once_it_is_not() {
    let mut environment = machine_with_every_object();
    edit(&mut environment, |block| block.deletion_protection = true);
    environment.settle();
    environment.delete_machine();
    assert_eq!(environment.settle(), [""; 0]);
    let held = ("False", "DeletionProtected");
    assert_eq!(reported(&environment, "Ready"), held);
    assert!(environment.vm.as_ref().is_some_and(|vm| !vm.is_deleting()));
    // No pass in between: every object still has the label.
    edit(&mut environment, |block| block.deletion_protection = false);
    let done = environment.settle();
    assert!(environment.machine.is_none(), "{done:#?}");
    assert_eq!(environment.claims.keys().collect::<Vec<_>>(), ["web-data"]);
    assert_eq!(marked(&environment), [""; 0]);
}

#[test]
fn a_disk_that_leaves_a_protected_machine_is_kept_without_the_label() {
    let mut environment = FakeCluster::new(machine(block()));
    edit(&mut environment, |block| {
        block.deletion_protection = true;
        block.disks.push(disk("data", ReclaimPolicy::Delete));
    });
    environment.settle();
    edit(&mut environment, |block| block.disks.truncate(1));
    environment.instance = None;
    environment.settle();
    environment.instance = None;
    environment.settle();
    let kept = &environment.claims["web-data"];
    assert_eq!(kept.annotation(names::ANNOTATION_MACHINE_UID), None);
    assert_eq!(marked(&environment), ["VirtualMachine", "claim web-root"]);
}

#[test]
fn objects_of_others_never_get_the_label() {
    let mut environment = FakeCluster::new(machine(block()));
    let claim = json!({"metadata": {"name": "web-other", "uid": "other", "labels": {
        names::LABEL_MANAGED_BY: names::MANAGED_BY, names::LABEL_MACHINE: "web",
    }}});
    environment.claims.insert("web-other".into(), decode(claim));
    let secret = json!({"metadata": {"name": "web-cloudinit", "uid": "secret"}});
    environment.secret = Some(decode(secret));
    edit(&mut environment, |block| block.deletion_protection = true);
    environment.settle();
    assert_eq!(marked(&environment), ["VirtualMachine", "claim web-root"]);
}
