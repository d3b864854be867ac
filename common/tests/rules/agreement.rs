//! The schemas of the CRDs accept what the rules accept: the API server does not refuse an object that the
//! webhook accepted, and every written block can be stored.

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
use crate::harness::{ReviewContext, kind_name, machine, object};
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

/// The errors of the schema about an object.
fn schema_errors(kind: ObjectKind, object: &Value) -> Vec<String> {
    VALIDATORS[kind_name(kind)]
        .iter_errors(object)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// Removes nulls, as the API server does before it applies the schema.
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
        let schema_errors = schema_errors(case.kind, &case.stored);
        assert_eq!(schema_errors, [""; 0], "{}", case.name);
    }
}

#[test]
fn the_schema_reports_each_faulty_value_of_a_machine() {
    let faulty = json!({"spec": {"powerState": "On", "disks": [{"size": "20"}], "resources": {"cpu": {"cores": 0}}}});
    assert_eq!(schema_errors(ObjectKind::Machine, &faulty).len(), 3);
}

/// Fields with a text that is nearly valid.
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
    let context = ReviewContext::of(kind, None);
    let accepted = context.admit(&object(kind, &json!({}), spec));
    prop_assume!(accepted.is_ok());
    let stored = accepted.map(|accepted| accepted.stored).unwrap_or_default();
    prop_assert_eq!(schema_errors(kind, &stored), vec![""; 0], "{:#}", stored);
    Ok(())
}

proptest! {
    #[test]
    fn every_accepted_text_fits_its_schema(mut spec in texts()) {
        spec["template"] = "small".into();
        let context = ReviewContext::of(ObjectKind::Machine, None);
        if let Ok(accepted) = context.admit(&machine(&spec)) {
            prop_assert_eq!(schema_errors(ObjectKind::Machine, &accepted.stored), vec![""; 0], "{}", spec);
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

    #[test]
    fn every_accepted_value_fits_its_schema(
        kind in select(&KINDS),
        place in any::<Index>(),
        value in any_json(),
    ) {
        let mut spec = corpus::base(kind).clone();
        replace(&mut spec, place, value);
        let context = ReviewContext::of(kind, None);
        if let Ok(accepted) = context.admit(&object(kind, &json!({}), &spec)) {
            let mut stored = accepted.stored;
            without_nulls(&mut stored);
            prop_assert_eq!(schema_errors(kind, &stored), vec![""; 0], "{:#}", stored);
        }
    }

    #[test]
    fn every_accepted_network_configuration_fits_its_schema(spec in network_specs()) {
        fits(ObjectKind::NetworkConfiguration, &spec)?;
    }
}
