//! `cases/late.yaml`: what others find late or never is found at the prompt.

use std::collections::{BTreeMap, BTreeSet};

use common::admission::Stage;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cases::{Kind, code_of};
use crate::corpus::code;
use crate::harness::{Differing, Question, catalog, object, path, places, told, yaml};

/// "About a hundred".
const FAULTS_MIN: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Late {
    fault: String,
    otherwise: String,
    #[serde(default)]
    kind: Kind,
    spec: Value,
    #[serde(default)]
    metadata: Value,
    old: Option<Old>,
    #[serde(default = "default_catalog")]
    catalog: String,
    #[serde(default)]
    settings: Differing,
    #[serde(default)]
    told: BTreeMap<String, String>,
    #[serde(default)]
    warned: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Old {
    spec: Value,
}

fn default_catalog() -> String {
    "default".to_owned()
}

impl Late {
    /// What is wrong with the answers, if anything.
    fn failure(&self) -> Option<String> {
        let kind = self.kind.into();
        let settings = self.settings.settings();
        let creation = Question {
            kind,
            old: None,
            catalog: catalog(&self.catalog),
            settings: &settings,
        };
        let metadata = if self.metadata.is_null() {
            &json!({})
        } else {
            &self.metadata
        };
        let old = self.old.as_ref().map(|old| {
            let admitted = creation.admit(&object(kind, metadata, &old.spec));
            admitted.unwrap().stored
        });
        let question = Question {
            old: old.as_ref(),
            ..creation
        };
        let object = object(kind, metadata, &self.spec);
        if self.told.is_empty() {
            return match question.admit(&object) {
                Ok(admitted) => {
                    let codes = admitted.warnings.iter().map(|line| code_of(line));
                    let warned: BTreeSet<_> = codes.map(str::to_owned).collect();
                    (warned != self.warned).then(|| format!("is warned of with {warned:?}"))
                }
                Err(verdict) => Some(format!("is refused: {:?}", told(&verdict))),
            };
        }
        let expected = self.told.iter();
        let expected: BTreeSet<_> = expected
            .map(|(field, name)| (field.clone(), code(name)))
            .collect();
        [Stage::Mutate, Stage::Validate]
            .into_iter()
            .find_map(|stage| {
                let places: BTreeSet<_> =
                    places(&question.ask(stage, &object)).into_iter().collect();
                (places != expected).then(|| format!("{stage:?} tells {places:?}"))
            })
    }
}

#[test]
fn what_others_find_late_is_found_at_the_prompt() {
    let faults: Vec<Late> = yaml(&path("tests/cases/late.yaml"));
    let failures: Vec<_> = faults
        .iter()
        .filter_map(|late| Some(format!("{}: {}", late.fault, late.failure()?)))
        .collect();
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
    let names: BTreeSet<_> = faults.iter().map(|late| &late.fault).collect();
    assert_eq!(names.len(), faults.len(), "a fault is there twice");
    for late in &faults {
        assert!(!late.otherwise.is_empty(), "{}", late.fault);
        assert!(
            late.told.is_empty() != late.warned.is_empty(),
            "{}",
            late.fault
        );
    }
    println!("{} faults", faults.len());
    assert!(faults.len() >= FAULTS_MIN);
}
