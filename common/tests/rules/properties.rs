//! Properties of the review of any object.

use common::admission::{ObjectKind, Stage};
use common::normalize::intent_hash;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::anything::{any_json, replace};
use crate::corpus::KINDS;
use crate::harness::{ReviewContext, machine, object, written};
use crate::machines::machine_specs;
use crate::paths;

/// Removes from the block which disks are plugged in, and the boot order, in which they have no position.
fn forget_plugging(stored: &mut Value) {
    let block = stored["spec"]["normalized"].as_object_mut();
    for list in block.into_iter().flat_map(|block| block.values_mut()) {
        for item in list.as_array_mut().into_iter().flatten() {
            if let Some(item) = item.as_object_mut() {
                item.remove("hotpluggable");
                item.remove("bootOrder");
            }
        }
    }
}

proptest! {
    /// The object is sent with its block and without.
    #[test]
    fn a_stored_object_that_is_sent_again_is_not_changed(spec in machine_specs()) {
        let stored = ReviewContext::of(ObjectKind::Machine, None).admit(&machine(&spec));
        prop_assume!(stored.is_ok());
        let stored = stored.unwrap().stored;
        let context = ReviewContext::of(ObjectKind::Machine, Some(&stored));
        for sent in [&stored, &machine(&spec)] {
            let again = context.admit(sent).unwrap();
            prop_assert_eq!(&again.stored, &stored);
            prop_assert_eq!(again.warnings.len() + again.notes.len(), 0);
        }
    }

    /// The catalog is the same, and the update requests nothing that the update policy refuses. Only the
    /// backend depends on the history of a Machine, and whether a disk is plugged into the running guest.
    #[test]
    fn an_update_gives_the_block_of_a_creation_with_the_same_spec(spec in machine_specs(), mut other in machine_specs()) {
        let creation = ReviewContext::of(ObjectKind::Machine, None);
        let stored = creation.admit(&machine(&spec));
        prop_assume!(stored.is_ok());
        let stored = stored.unwrap().stored;
        other["backend"] = stored["spec"]["normalized"]["backend"].clone();
        let update = ReviewContext::of(ObjectKind::Machine, Some(&stored));
        match (creation.admit(&machine(&other)), update.admit(&machine(&other))) {
            (Ok(created), Ok(updated)) => {
                let (mut created, mut updated) = (created.stored, updated.stored);
                forget_plugging(&mut created);
                forget_plugging(&mut updated);
                prop_assert_eq!(created, updated);
            }
            (created, Err(updated)) => {
                let created = created.map_or_else(|created| created.findings.violations, |_| vec![]);
                let (policy, form): (Vec<_>, Vec<_>) = updated
                    .findings
                    .violations
                    .into_iter()
                    .partition(|violation| violation.code.family() == "update");
                prop_assert_eq!(&created, &form);
                prop_assert!(!policy.is_empty() || !created.is_empty());
            }
            differing => prop_assert!(false, "{:?}", differing),
        }
    }

    /// Both stages agree, and the field of each violation exists.
    #[test]
    fn any_json_gets_a_verdict(object in any_json(), old in proptest::option::of(any_json()), kind in select(&KINDS)) {
        validated(kind, &object, old.as_ref())?;
    }

    #[test]
    fn a_valid_object_with_any_value_replaced_gets_a_verdict(
        spec in machine_specs(),
        place in any::<Index>(),
        value in any_json(),
        kind in select(&KINDS),
        is_update in any::<bool>(),
    ) {
        let whole = object(kind, &json!({}), &spec);
        let mut changed = whole.clone();
        replace(&mut changed, place, value);
        validated(kind, &changed, is_update.then_some(&whole))?;
    }

    #[test]
    fn a_text_that_is_no_object_is_refused(text in any::<String>(), kind in select(&KINDS)) {
        let verdict = ReviewContext::of(kind, None).review_text(Stage::Mutate, &text);
        prop_assert!(!verdict.findings.accepted());
    }

    #[test]
    fn the_digest_does_not_depend_on_the_order_of_keys(spec in machine_specs()) {
        let there: Value = serde_json::from_str(&written(&spec, false)).unwrap();
        let back: Value = serde_json::from_str(&written(&spec, true)).unwrap();
        prop_assert_eq!(intent_hash(&there, None), intent_hash(&back, None));
    }

    #[test]
    fn different_intents_have_different_digests(spec in machine_specs(), other in machine_specs()) {
        prop_assert_eq!(spec == other, intent_hash(&spec, None) == intent_hash(&other, None));
    }
}

/// Checks that both stages give the same verdict and that the fields of its violations exist.
fn validated(kind: ObjectKind, object: &Value, old: Option<&Value>) -> Result<(), TestCaseError> {
    let context = ReviewContext::of(kind, old);
    let mutating = context.review(Stage::Mutate, object);
    let validating = context.review(Stage::Validate, object);
    for violation in &mutating.findings.violations {
        prop_assert!(
            paths::resolves(kind, object, &violation.field),
            "{} of {}",
            violation,
            object
        );
    }
    prop_assert_eq!(validating.block, None);
    // The mutating stage does not check a name that the API server will still generate.
    let has_name = object["metadata"]["name"]
        .as_str()
        .is_some_and(|name| !name.is_empty());
    match (mutating.findings.accepted(), has_name) {
        (true, true) => {
            prop_assert!(context.admit(object).is_ok());
        }
        (false, true) => {
            prop_assert_eq!(
                &mutating.findings.violations,
                &validating.findings.violations
            );
            prop_assert_eq!(mutating.block, None);
        }
        (_, false) => {}
    }
    Ok(())
}
