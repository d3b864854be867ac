//! What holds for any object.

use common::admission::{ObjectKind, Stage};
use common::normalize::intent_hash;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::anything::{any_json, replace};
use crate::corpus::KINDS;
use crate::harness::{Question, machine, object, written};
use crate::machines::machine_specs;
use crate::paths;

proptest! {
    /// What was admitted is written as it was when it is sent again, with its block or without.
    #[test]
    fn what_is_stored_stays(spec in machine_specs()) {
        let stored = Question::of(ObjectKind::Machine, None).admit(&machine(&spec));
        prop_assume!(stored.is_ok());
        let stored = stored.unwrap().stored;
        let question = Question::of(ObjectKind::Machine, Some(&stored));
        for sent in [&stored, &machine(&spec)] {
            let again = question.admit(sent).unwrap();
            prop_assert_eq!(&again.stored, &stored);
            prop_assert_eq!(again.warnings.len() + again.notes.len(), 0);
        }
    }

    /// While the catalog is the same, an update becomes what a creation of that spec becomes, unless
    /// it asks for what an existing Machine cannot have: but for the backend, nothing depends on
    /// the way a Machine took.
    #[test]
    fn the_way_does_not_matter(spec in machine_specs(), mut other in machine_specs()) {
        let creation = Question::of(ObjectKind::Machine, None);
        let stored = creation.admit(&machine(&spec));
        prop_assume!(stored.is_ok());
        let stored = stored.unwrap().stored;
        other["backend"] = stored["spec"]["normalized"]["backend"].clone();
        let update = Question::of(ObjectKind::Machine, Some(&stored));
        match (creation.admit(&machine(&other)), update.admit(&machine(&other))) {
            (Ok(created), Ok(updated)) => prop_assert_eq!(created.stored, updated.stored),
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

    /// Whatever is sent gets a verdict, the same from both stages, and each fault has a place.
    #[test]
    fn any_json_gets_a_verdict(object in any_json(), old in proptest::option::of(any_json()), kind in select(&KINDS)) {
        judged(kind, &object, old.as_ref())?;
    }

    /// So does a Machine with anything in the place of any of its values.
    #[test]
    fn any_value_anywhere_gets_a_verdict(
        spec in machine_specs(),
        place in any::<Index>(),
        value in any_json(),
        kind in select(&KINDS),
        is_update in any::<bool>(),
    ) {
        let whole = object(kind, &json!({}), &spec);
        let mut changed = whole.clone();
        replace(&mut changed, place, value);
        judged(kind, &changed, is_update.then_some(&whole))?;
    }

    /// What is no JSON at all is refused.
    #[test]
    fn any_text_gets_a_verdict(text in any::<String>(), kind in select(&KINDS)) {
        let verdict = Question::of(kind, None).ask_text(Stage::Mutate, &text);
        prop_assert!(!verdict.findings.accepted());
    }

    /// The digest of an intent does not depend on the order in which its author writes the fields.
    #[test]
    fn the_digest_ignores_the_order_of_keys(spec in machine_specs()) {
        let there: Value = serde_json::from_str(&written(&spec, false)).unwrap();
        let back: Value = serde_json::from_str(&written(&spec, true)).unwrap();
        prop_assert_eq!(intent_hash(&there, None), intent_hash(&back, None));
    }

    /// It depends on everything else.
    #[test]
    fn the_digest_tells_intents_apart(spec in machine_specs(), other in machine_specs()) {
        prop_assert_eq!(spec == other, intent_hash(&spec, None) == intent_hash(&other, None));
    }
}

/// A verdict that both stages agree on, at places that are there.
fn judged(kind: ObjectKind, object: &Value, old: Option<&Value>) -> Result<(), TestCaseError> {
    let question = Question::of(kind, old);
    let mutating = question.ask(Stage::Mutate, object);
    let validating = question.ask(Stage::Validate, object);
    for violation in &mutating.findings.violations {
        prop_assert!(
            paths::resolves(kind, object, &violation.field),
            "{} of {}",
            violation,
            object
        );
    }
    prop_assert_eq!(validating.block, None);
    // A name that is yet to be made is judged once it is there.
    let has_name = object["metadata"]["name"]
        .as_str()
        .is_some_and(|name| !name.is_empty());
    match (mutating.findings.accepted(), has_name) {
        (true, true) => {
            prop_assert!(question.admit(object).is_ok());
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
