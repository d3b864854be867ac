//! Faults add up: however many there are, in lists of whatever order, each is told once, at its
//! place, and nothing else is.

use common::admission::{ObjectKind, Stage};
use proptest::prelude::*;
use serde_json::Value;

use crate::corpus::{self, Fault, Faulty, KINDS, LISTS, Told, in_parallel, with_faults};
use crate::harness::{Question, places};

/// Fewer combinations than this are no corpus.
const CASES_MIN: usize = 1_000;
/// Of all combinations of three faults, every so manieth is judged; a prime, so that none is judged
/// with the same others only.
const TRIPLES_STEP: usize = 211;

const BOTH: &[Stage] = &[Stage::Mutate, Stage::Validate];

/// What is wrong with what these stages tell, if anything.
fn misjudged(
    question: &Question<'_>,
    stages: &[Stage],
    object: &Value,
    expected: &Told,
) -> Option<String> {
    for stage in stages.iter().copied() {
        // An object that is accepted has no block until the mutating stage has written it.
        if expected.is_empty() {
            return match question.admit(object) {
                Ok(_) => None,
                Err(verdict) => Some(format!("refused with {:?}", places(&verdict))),
            };
        }
        let told = places(&question.ask(stage, object));
        let set: Told = told.iter().cloned().collect();
        if set != *expected || told.len() != expected.len() {
            return Some(format!("{stage:?} tells {told:?}, not {expected:?}"));
        }
    }
    None
}

/// What is wrong with the answers to a faulty object, as a creation and as an update of what is
/// stored, each from its stages.
fn failures(
    kind: ObjectKind,
    stored: &Value,
    faulty: &Faulty,
    [creation, update]: [&[Stage]; 2],
) -> Vec<String> {
    let Faulty {
        object,
        created,
        changed,
    } = faulty;
    let creation = misjudged(&Question::of(kind, None), creation, object, created);
    let mut sent = object.clone();
    // The name of what is stored stays.
    sent["metadata"]["name"] = stored["metadata"]["name"].clone();
    if let Some(block) = stored["spec"].get("normalized") {
        sent["spec"]["normalized"] = block.clone();
    }
    let update = misjudged(&Question::of(kind, Some(stored)), update, &sent, changed);
    let creation = creation.map(|failure| format!("on creation: {failure}"));
    let update = update.map(|failure| format!("on update: {failure}"));
    creation.into_iter().chain(update).collect()
}

/// Every fault, every two that go together, and some three.
fn combinations(faults: &[Fault]) -> [Vec<Vec<&Fault>>; 3] {
    let mut pairs = vec![];
    let mut triples = vec![];
    for (index, first) in faults.iter().enumerate() {
        let later: Vec<_> = faults[index + 1..]
            .iter()
            .filter(|second| second.goes_with(first))
            .collect();
        for (index, second) in later.iter().copied().enumerate() {
            pairs.push(vec![first, second]);
            let third = later[index + 1..].iter().copied();
            let third = third.filter(|third| third.goes_with(second));
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
fn every_fault_is_told_alone_and_with_others() {
    let mut cases = 0;
    for kind in KINDS {
        let sound = corpus::sound(kind);
        let stored = Question::of(kind, None).admit(&sound).unwrap().stored;
        for (size, combinations) in (1..).zip(combinations(corpus::faults(kind))) {
            // The many pairs are asked of one stage each; what both have in common is most of them.
            let stages = match size {
                2 => [&BOTH[..1], &BOTH[1..]],
                _ => [BOTH, BOTH],
            };
            let failures: Vec<String> = in_parallel(&combinations, |faults| {
                let failures = failures(kind, &stored, &with_faults(&sound, faults), stages);
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

/// The sound Machine with its lists in another order.
fn reordered() -> impl Strategy<Value = Value> {
    let sound = corpus::sound(ObjectKind::Machine);
    let list = |list: &str| Just(sound["spec"][list].as_array().unwrap().clone()).prop_shuffle();
    let lists = LISTS.map(list);
    lists.prop_map(move |lists| {
        let mut object = sound.clone();
        for (name, list) in LISTS.into_iter().zip(lists) {
            object["spec"][name] = list.into();
        }
        object
    })
}

proptest! {
    #[test]
    fn faults_add_up(
        sound in reordered(),
        order in Just(Vec::from_iter(corpus::faults(ObjectKind::Machine))).prop_shuffle(),
        count in 1_usize..40,
    ) {
        let mut faults: Vec<&Fault> = vec![];
        for fault in order {
            if faults.len() < count && faults.iter().all(|other| other.goes_with(fault)) {
                faults.push(fault);
            }
        }
        let stored = Question::of(ObjectKind::Machine, None).admit(&sound).unwrap().stored;
        let failures = failures(ObjectKind::Machine, &stored, &with_faults(&sound, &faults), [BOTH, BOTH]);
        prop_assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
