//! Of several faults, each is reported exactly once at its field, whatever the order of lists, and nothing
//! else is reported.

use common::admission::{ObjectKind, Stage};
use proptest::prelude::*;
use serde_json::Value;

use crate::corpus::{self, Fault, Faulty, KINDS, LISTS, Violations, in_parallel, with_faults};
use crate::harness::{ReviewContext, fields_and_codes};

/// Fewest combinations: with fewer, the corpus was not read completely.
const CASES_MIN: usize = 1_000;
/// Of all combinations of three faults, one in this many is tested. A prime, so that each fault is tested
/// with different others.
const TRIPLES_STEP: usize = 211;

const BOTH: &[Stage] = &[Stage::Mutate, Stage::Validate];

/// The difference between the violations of these stages and the expected ones, if there is any.
fn difference(
    context: &ReviewContext<'_>,
    stages: &[Stage],
    object: &Value,
    expected: &Violations,
) -> Option<String> {
    for stage in stages.iter().copied() {
        // An object that is accepted has no block until the mutating stage has written it.
        if expected.is_empty() {
            return match context.admit(object) {
                Ok(_) => None,
                Err(verdict) => Some(format!("refused with {:?}", fields_and_codes(&verdict))),
            };
        }
        let reported = fields_and_codes(&context.review(stage, object));
        let set: Violations = reported.iter().cloned().collect();
        if set != *expected || reported.len() != expected.len() {
            return Some(format!("{stage:?} reports {reported:?}, not {expected:?}"));
        }
    }
    None
}

/// The differences between answers and expectations for a faulty object: as a creation and as an update of
/// the stored object, each in its stages.
fn failures(
    kind: ObjectKind,
    stored: &Value,
    faulty: &Faulty,
    [creation, update]: [&[Stage]; 2],
) -> Vec<String> {
    let Faulty {
        object,
        on_create,
        on_update,
    } = faulty;
    let creation = difference(&ReviewContext::of(kind, None), creation, object, on_create);
    let mut sent = object.clone();
    // An update cannot change the name.
    sent["metadata"]["name"] = stored["metadata"]["name"].clone();
    if let Some(block) = stored["spec"].get("normalized") {
        sent["spec"]["normalized"] = block.clone();
    }
    let update = difference(
        &ReviewContext::of(kind, Some(stored)),
        update,
        &sent,
        on_update,
    );
    let creation = creation.map(|failure| format!("on creation: {failure}"));
    let update = update.map(|failure| format!("on update: {failure}"));
    creation.into_iter().chain(update).collect()
}

/// Every fault, every pair of independent faults, and some triples.
fn combinations(faults: &[Fault]) -> [Vec<Vec<&Fault>>; 3] {
    let mut pairs = vec![];
    let mut triples = vec![];
    for (index, first) in faults.iter().enumerate() {
        let later: Vec<_> = faults[index + 1..]
            .iter()
            .filter(|second| second.is_independent_of(first))
            .collect();
        for (index, second) in later.iter().copied().enumerate() {
            pairs.push(vec![first, second]);
            let third = later[index + 1..].iter().copied();
            let third = third.filter(|third| third.is_independent_of(second));
            triples.extend(third.map(|third| vec![first, second, third]));
        }
    }
    let triples = triples.into_iter().step_by(TRIPLES_STEP).collect();
    [
        faults.iter().map(|fault| vec![fault]).collect(),
        pairs,
        triples,
    ]
}

#[test]
fn every_fault_is_reported_alone_and_with_independent_others() {
    let mut cases = 0;
    for kind in KINDS {
        let valid = corpus::valid(kind);
        let stored = ReviewContext::of(kind, None).admit(&valid).unwrap().stored;
        for (size, combinations) in (1..).zip(combinations(corpus::faults(kind))) {
            // There are many pairs: a creation is tested in one stage and an update in the other.
            let stages = match size {
                2 => [&BOTH[..1], &BOTH[1..]],
                _ => [BOTH, BOTH],
            };
            let failures: Vec<String> = in_parallel(&combinations, |faults| {
                let failures = failures(kind, &stored, &with_faults(&valid, faults), stages);
                let what: Vec<_> = faults.iter().map(|fault| fault.name()).collect();
                let named = |failure| format!("{}\n  {failure}", what.join("\n"));
                failures.into_iter().map(named).collect::<Vec<_>>()
            })
            .concat();
            assert!(
                failures.is_empty(),
                "{} failures\n{}",
                failures.len(),
                failures[..failures.len().min(30)].join("\n\n")
            );
            println!(
                "{kind:?}: {} with {size} faults, on creation and on update",
                combinations.len()
            );
            cases += 2 * combinations.len();
        }
    }
    println!("{cases} cases");
    assert!(cases >= CASES_MIN);
}

/// The valid Machine with its lists in another order.
fn reordered() -> impl Strategy<Value = Value> {
    let valid = corpus::valid(ObjectKind::Machine);
    let list = |list: &str| Just(valid["spec"][list].as_array().unwrap().clone()).prop_shuffle();
    let lists = LISTS.map(list);
    lists.prop_map(move |lists| {
        let mut object = valid.clone();
        for (name, list) in LISTS.into_iter().zip(lists) {
            object["spec"][name] = list.into();
        }
        object
    })
}

proptest! {
    #[test]
    fn any_independent_faults_are_all_reported_in_any_order_of_lists(
        valid in reordered(),
        order in Just(Vec::from_iter(corpus::faults(ObjectKind::Machine))).prop_shuffle(),
        count in 1_usize..40,
    ) {
        let mut faults: Vec<&Fault> = vec![];
        for fault in order {
            if faults.len() < count && faults.iter().all(|other| other.is_independent_of(fault)) {
                faults.push(fault);
            }
        }
        let stored = ReviewContext::of(ObjectKind::Machine, None).admit(&valid).unwrap().stored;
        let failures = failures(ObjectKind::Machine, &stored, &with_faults(&valid, &faults), [BOTH, BOTH]);
        prop_assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
