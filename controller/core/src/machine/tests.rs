use common::normalize::intent_hash;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;

fn decode(spec: &Value) -> Machine {
    let cached: CachedMachine =
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
    cached.decompress()
}

fn spec() -> Value {
    let mut spec = json!({"template": "small", "cloudInit": {"userData": "#cloud-config\n"}});
    let mut block = serde_json::to_value(fixtures::block()).unwrap();
    block["intentHash"] = intent_hash(&spec, None).into();
    spec["normalized"] = block;
    spec
}

#[test]
fn only_a_block_that_matches_the_spec_is_the_desired_state() {
    let machine = decode(&spec());
    assert!(machine.desired().is_some());
    assert!(!machine.cloud_init.needs_secret());

    let mut edited = spec();
    edited["template"] = "large".into();
    assert_eq!(decode(&edited).block, Block::Stale);
    let mut newer = spec();
    newer["normalized"]["version"] = 7.into();
    assert_eq!(decode(&newer).block, Block::Newer(7));
    newer["normalized"]["version"] = 0.into();
    assert!(matches!(decode(&newer).block, Block::Unreadable(_)));
    let mut broken = spec();
    broken["normalized"]["cpu"] = "many".into();
    assert!(matches!(decode(&broken).block, Block::Unreadable(_)));
    assert_eq!(decode(&json!({"template": "small"})).block, Block::Missing);
    assert_eq!(decode(&Value::Null).block, Block::Missing);
}

#[test]
fn a_machine_without_a_block_names_the_template_that_does_not_exist() {
    let (store, _) = kube::runtime::reflector::store();
    let known = crate::caches::Caches::new(store);
    for (spec, expected) in [
        (json!({"template": "smal"}), Some("TemplateNotFound")),
        (json!({"template": "small"}), None),
        (json!({}), None),
        // Admission made the block of a template that has been deleted since: it holds the content.
        (
            json!({"template": "gone", "normalized": {"version": 1}}),
            None,
        ),
    ] {
        let cached: CachedMachine =
            serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        let fault = crate::conditions::not_normalized(&known.for_pass(&cached));
        let is_template = fault.reason() == "TemplateNotFound";
        assert_eq!(is_template.then_some(fault.reason()), expected, "{spec}");
    }
    let labelled = json!({
        "metadata": {"name": "web", "labels": {names::LABEL_TEMPLATE: "smal"}}, "spec": {},
    });
    let cached: CachedMachine = serde_json::from_value(labelled).unwrap();
    let fault = crate::conditions::not_normalized(&known.for_pass(&cached));
    assert_eq!(fault.reason(), "TemplateNotFound");
    assert!(fault.message().contains("template 'smal' not found"));
}

#[test]
fn a_block_with_a_value_that_admission_never_writes_is_no_desired_state_and_takes_no_room() {
    let mut forged = spec();
    forged["normalized"]["backend"] = "libvirt".into();
    forged["normalized"]["memory"]["maxSize"] = "1Ei".into();
    let cached: CachedMachine = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": forged,
        "status": {"host": "hv1"},
    }))
    .unwrap();
    let reason = "memory.maxSize is 1Ei, and it must be from 2Gi to 12Ti";
    let machine = cached.decompress();
    assert_eq!(machine.block, Block::Unreadable(reason.into()));
    assert_eq!(cached.binding.unwrap().requested, NO_RESOURCES);
}

#[test]
fn a_machine_is_protected_by_its_spec_else_by_its_block_whatever_else_is_in_them() {
    for (own, of_block, expected) in [
        (Value::Null, Value::Null, false),
        (Value::Null, true.into(), true),
        (false.into(), true.into(), false),
        (true.into(), false.into(), true),
        ("yes".into(), true.into(), true),
    ] {
        let mut spec = spec();
        spec["deletionProtection"] = own.clone();
        // The block is then one of another spec.
        spec["normalized"]["deletionProtection"] = of_block.clone();
        assert_eq!(decode(&spec).is_protected, expected, "{own} {of_block}");
    }
}

#[test]
fn a_forged_host_in_the_status_does_not_change_the_backend() {
    let mut machine = fixtures::machine(fixtures::block());
    machine.status.host = Some("alpha".into());
    assert!(!machine.is_on_libvirt());
    machine.block = Block::Stale;
    assert!(!machine.is_on_libvirt());
}

#[test]
fn the_backend_is_that_of_the_block_whatever_else_is_in_it_and_without_one_a_host_tells() {
    for (version, backend, host, expected) in [
        (json!(99), json!("libvirt"), None, true),
        (json!(99), json!("kubevirt"), Some("alpha"), false),
        (json!(99), json!("another"), Some("alpha"), true),
        (json!(99), Value::Null, None, false),
        (json!(1), json!("libvirt"), None, true),
    ] {
        let mut spec = spec();
        spec["normalized"]["version"] = version.clone();
        spec["normalized"]["backend"] = backend.clone();
        // Not the intent of the block.
        spec["template"] = "large".into();
        let mut machine = decode(&spec);
        machine.status.host = host.map(str::to_owned);
        assert!(machine.desired().is_none());
        assert_eq!(machine.is_on_libvirt(), expected, "{version} {backend}");
    }
}

#[test]
fn an_unknown_field_of_the_spec_is_part_of_the_intent() {
    let mut newer = spec();
    newer["someday"] = true.into();
    assert_eq!(decode(&newer).block, Block::Stale);
}
