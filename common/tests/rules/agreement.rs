//! What the rules accept, the schemas of the CRDs accept: nobody passes the webhook to be stopped by
//! the API server, and every block that is written can be stored as it is.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use common::admission::ObjectKind;
use jsonschema::Validator;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::anything::{any_json, replace};
use crate::cases;
use crate::corpus::{self, KINDS};
use crate::harness::{Question, kind_name, machine, object};
use crate::hosts::host_specs;
use crate::machines::{machine_specs, network_specs, template_specs};
use crate::paths::schema;

static VALIDATORS: LazyLock<BTreeMap<&str, Validator>> = LazyLock::new(|| {
    KINDS
        .map(|kind| {
            (
                kind_name(kind),
                jsonschema::validator_for(schema(kind)).unwrap(),
            )
        })
        .into()
});

/// What the schema has against an object.
fn objections(kind: ObjectKind, object: &Value) -> Vec<String> {
    VALIDATORS[kind_name(kind)]
        .iter_errors(object)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// A null is dropped by the API server before the schema is asked.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_accepted_case_fits_its_schema() {
    for mut case in cases::accepted() {
        without_nulls(&mut case.stored);
        let objections = objections(case.kind, &case.stored);
        assert_eq!(objections, [""; 0], "{}", case.name);
    }
}

#[test]
fn the_schema_objects_to_what_is_no_machine() {
    let faulty = json!({"spec": {"powerState": "On", "disks": [{"size": "20"}], "resources": {"cpu": {"cores": 0}}}});
    assert_eq!(objections(ObjectKind::Machine, &faulty).len(), 3);
}

/// Fields that take a text, and what looks like one of theirs.
fn texts() -> impl Strategy<Value = Value> {
    let quantity = "[+]?[0-9]{0,4}[.]?[0-9]{0,2}(|[KMGT]i?|k|[mnu]|[eE][+-]?[0-9]{1,3})";
    let name = "[a-zA-Z0-9]?[a-z0-9._/-]{0,8}[a-z0-9_.-]?";
    prop_oneof![
        quantity.prop_map(|size| json!({"disks": [{"name": "a", "size": size}]})),
        quantity.prop_map(|size| json!({"resources": {"memory": {"size": size}}})),
        name.prop_map(|name| json!({"disks": [{"name": name, "size": "1Gi"}]})),
        name.prop_map(|name| json!({"disks": [{"name": "a", "size": "1Gi", "volumeName": name}]})),
        name.prop_map(|name| json!({"networks": [{"name": name}]})),
        name.prop_map(|name| json!({"networks": [{"name": "a", "networkName": name}]})),
        "([0-9a-fA-F]{2}[:-]?){6}|([0-9a-f]{4}[.]?){3}"
            .prop_map(|mac| json!({"networks": [{"name": "a", "macAddress": mac}]})),
        "(https|http|docker)?:?//?\\PC{0,6}".prop_map(
            |url| json!({"disks": [{"name": "a", "size": "1Gi", "image": {"url": url}}]})
        ),
        name.prop_map(|value| json!({"nodeSelector": {"zone": value}})),
        name.prop_map(|key| json!({"cloudInit": {"secretRef": {"name": "a", "key": key}}})),
    ]
}

fn fits(kind: ObjectKind, spec: &Value) -> Result<(), TestCaseError> {
    let question = Question::of(kind, None);
    let accepted = question.admit(&object(kind, &json!({}), spec));
    prop_assume!(accepted.is_ok());
    let stored = accepted.map(|accepted| accepted.stored).unwrap_or_default();
    prop_assert_eq!(objections(kind, &stored), vec![""; 0], "{:#}", stored);
    Ok(())
}

proptest! {
    #[test]
    fn every_accepted_text_fits_its_schema(mut spec in texts()) {
        spec["template"] = "small".into();
        let question = Question::of(ObjectKind::Machine, None);
        if let Ok(accepted) = question.admit(&machine(&spec)) {
            prop_assert_eq!(objections(ObjectKind::Machine, &accepted.stored), vec![""; 0], "{}", spec);
        }
    }

    #[test]
    fn every_accepted_machine_fits_its_schema(spec in machine_specs()) {
        fits(ObjectKind::Machine, &spec)?;
    }

    #[test]
    fn every_accepted_template_fits_its_schema(spec in template_specs()) {
        fits(ObjectKind::MachineTemplate, &spec)?;
    }

    #[test]
    fn every_accepted_host_fits_its_schema(spec in host_specs()) {
        fits(ObjectKind::LibvirtHost, &spec)?;
    }

    /// Whatever stands in the place of any value.
    #[test]
    fn every_accepted_value_fits_its_schema(
        kind in select(&KINDS),
        place in any::<Index>(),
        value in any_json(),
    ) {
        let mut spec = corpus::base(kind).clone();
        replace(&mut spec, place, value);
        let question = Question::of(kind, None);
        if let Ok(accepted) = question.admit(&object(kind, &json!({}), &spec)) {
            let mut stored = accepted.stored;
            without_nulls(&mut stored);
            prop_assert_eq!(objections(kind, &stored), vec![""; 0], "{:#}", stored);
        }
    }

    #[test]
    fn every_accepted_network_configuration_fits_its_schema(spec in network_specs()) {
        fits(ObjectKind::NetworkConfiguration, &spec)?;
    }
}
