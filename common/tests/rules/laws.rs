//! The inputs that a block depends on, and those that it does not depend on.

use std::collections::BTreeMap;

use common::MissingNetworks;
use common::admission::{ObjectKind, Request, Settings, Stage, review};
use common::violation::Kind;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::corpus::LISTS;
use crate::harness::{NAMESPACE, ReviewContext, catalog, machine, merge_patch, written};
use crate::machines::machine_specs;
use crate::paths;

/// Cases of each property: enough to reach every field in every form, few enough to run at each commit.
const CASES: u32 = 128;

/// The block of a stored Machine.
fn block(stored: &Value) -> &Value {
    &stored["spec"]["normalized"]
}

/// A Machine of this spec as it is stored, if it is admitted.
fn stored(spec: &Value, old: Option<&Value>) -> Option<Value> {
    let context = ReviewContext::of(ObjectKind::Machine, old);
    Some(context.admit(&machine(spec)).ok()?.stored)
}

/// Edits that an update may contain and that affect no other field.
fn edits() -> impl Strategy<Value = Value> {
    select(vec![
        json!({"powerState": "Stopped"}),
        json!({"powerState": "Running"}),
        json!({"guestShutdownStops": true}),
        json!({"nodeSelector": {"rack": "7"}}),
        json!({"cloudInit": {"metaData": {"rack": "7"}}}),
        json!({"domain": {"features": {"apic": false}}}),
    ])
}

/// A block with its lists as maps by name and without boot positions, which depend on the order.
fn unordered(block: &Value) -> Value {
    let mut block = block.clone();
    for list in LISTS {
        let items = block[list].as_array().cloned().unwrap_or_default();
        let named = items.into_iter().map(|mut item| {
            merge_patch(&mut item, &json!({"bootOrder": null}));
            (item["name"].to_string(), item)
        });
        block[list] = json!(named.collect::<BTreeMap<_, _>>());
    }
    merge_patch(&mut block, &json!({"intentHash": null}));
    block
}

/// Machines, and the same with their lists in another order.
fn reordered_specs() -> impl Strategy<Value = (Value, Value)> {
    machine_specs().prop_flat_map(|spec| {
        let lists = LISTS.map(|list| {
            let items = spec[list].as_array().cloned().unwrap_or_default();
            Just(items).prop_shuffle()
        });
        (Just(spec), lists).prop_map(|(spec, lists)| {
            let mut reordered = spec.clone();
            for (name, list) in LISTS.into_iter().zip(lists) {
                if spec.get(name).is_some() {
                    reordered[name] = list.into();
                }
            }
            (spec, reordered)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn an_edit_of_a_stored_machine_gives_the_block_of_a_new_machine_with_that_edit(spec in machine_specs(), edit in edits()) {
        let mut edited = spec.clone();
        merge_patch(&mut edited, &edit);
        let (Some(first), Some(at_once)) = (stored(&spec, None), stored(&edited, None)) else {
            return Err(TestCaseError::reject("refused"));
        };
        let mut later = first.clone();
        merge_patch(&mut later["spec"], &edit);
        let context = ReviewContext::of(ObjectKind::Machine, Some(&first));
        let later = context.admit(&later);
        prop_assert!(later.is_ok(), "{edit}: {later:?}");
        prop_assert_eq!(later.unwrap().stored, at_once);
    }

    #[test]
    fn violations_name_fields_of_the_object_or_required_ones(spec in machine_specs()) {
        let object = machine(&spec);
        let verdict = ReviewContext::of(ObjectKind::Machine, None).review(Stage::Mutate, &object);
        for violation in &verdict.findings.violations {
            let field = &violation.field;
            let must_be = violation.kind == Kind::Required
                && paths::resolves(ObjectKind::Machine, &object, field);
            prop_assert!(must_be || paths::is_written(&object, field), "{violation} of {spec}");
            prop_assert!(!field.starts_with("spec.normalized"), "{violation}");
        }
    }

    #[test]
    fn the_order_of_keys_does_not_change_the_verdict(spec in machine_specs()) {
        let object = machine(&spec);
        let context = ReviewContext::of(ObjectKind::Machine, None);
        let [there, back] = [false, true].map(|descending| {
            context.review_text(Stage::Mutate, &written(&object, descending))
        });
        prop_assert_eq!(format!("{there:?}"), format!("{back:?}"));
    }

    #[test]
    fn the_order_of_list_items_changes_only_the_order_in_the_block((spec, reordered) in reordered_specs()) {
        let (there, back) = (stored(&spec, None), stored(&reordered, None));
        prop_assert_eq!(there.is_some(), back.is_some());
        let (Some(there), Some(back)) = (there, back) else {
            return Err(TestCaseError::reject("refused"));
        };
        prop_assert_eq!(unordered(block(&there)), unordered(block(&back)));
    }

    /// Name, namespace, labels, other objects of the cluster and limits of the administrator are none of
    /// its inputs.
    #[test]
    fn the_block_depends_on_intent_and_pins_alone(
        spec in machine_specs(),
        name in "[a-z]{1,12}",
        namespace in "[a-z]{1,12}",
        labels in "[a-z]{1,12}",
    ) {
        let Some(here) = stored(&spec, None) else {
            return Err(TestCaseError::reject("refused"));
        };
        let mut elsewhere = machine(&spec);
        let metadata = json!({
            "name": name,
            "namespace": namespace,
            "labels": {labels.clone(): labels.clone()},
            "annotations": {labels.clone(): labels},
            "uid": "1",
        });
        merge_patch(&mut elsewhere["metadata"], &metadata);
        // Another cluster with the same templates and classes, and more of everything.
        let mut cluster = catalog("default").clone();
        let template = cluster.templates["web"].clone();
        cluster.templates.insert("another".to_owned(), template);
        let class = cluster.storage_classes["standard"];
        cluster.storage_classes.insert("another".to_owned(), class);
        let networks = cluster.networks[NAMESPACE].clone();
        cluster.networks.insert(namespace.clone(), networks);
        "another".clone_into(&mut cluster.cluster);
        let settings = Settings {
            missing_networks: MissingNetworks::Warn,
            max_vcpus: Settings::default().max_vcpus + 1,
            ..Settings::default()
        };
        let request = Request {
            kind: ObjectKind::Machine,
            stage: Stage::Mutate,
            namespace: &namespace,
            object: &elsewhere.to_string(),
            old: None,
        };
        let verdict = review(&request, &cluster, &settings);
        let there: Value = serde_json::from_str(&verdict.block.unwrap()).unwrap();
        prop_assert_eq!(&there, block(&here));
    }

    /// The disks are the Machine's own, because disks of a template could not be removed again.
    #[test]
    fn a_change_of_the_template_and_back_restores_the_block(mut spec in machine_specs()) {
        let root = json!({"name": "root", "size": "90Gi", "storageClass": "standard"});
        let disks = spec["disks"].as_array().into_iter().flatten();
        let others = disks.filter(|disk| disk["name"] != "root" && disk["remove"] != true);
        let disks: Vec<_> = [root].iter().chain(others).cloned().collect();
        merge_patch(&mut spec, &json!({"disks": disks, "powerState": "Stopped"}));
        let with = |template| {
            let mut spec = spec.clone();
            spec["template"] = json!(template);
            spec
        };
        let Some(before) = stored(&with("small"), None) else {
            return Err(TestCaseError::reject("refused"));
        };
        for template in ["medium", "large"] {
            let between = stored(&with(template), Some(&before)).unwrap();
            prop_assert_eq!(&block(&between)["template"]["name"], template);
            let after = stored(&with("small"), Some(&between)).unwrap();
            prop_assert_eq!(after.to_string(), before.to_string());
        }
    }
}
