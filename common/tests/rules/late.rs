//! `cases/late.yaml`: faults that other components find late or never are reported by a review.

use std::collections::{BTreeMap, BTreeSet};

use common::admission::Stage;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cases::{BOOT, Kind, code_of};
use crate::corpus::code;
use crate::harness::{
    ReviewContext, SettingsOverrides, catalog, fields_and_codes, messages, object, path, yaml,
};

/// Fewest faults in the table.
const FAULTS_MIN: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Late {
    fault: String,
    found_by: String,
    #[serde(default)]
    kind: Kind,
    spec: Value,
    #[serde(default)]
    metadata: Value,
    old: Option<Old>,
    #[serde(default = "default_catalog")]
    catalog: String,
    #[serde(default)]
    settings: SettingsOverrides,
    #[serde(default)]
    refused: BTreeMap<String, String>,
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
    /// The difference between answers and expectations, if there is any.
    fn failure(&self) -> Option<String> {
        let kind = self.kind.into();
        let settings = self.settings.settings();
        let creation = ReviewContext {
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
        let context = ReviewContext {
            old: old.as_ref(),
            ..creation
        };
        let object = object(kind, metadata, &self.spec);
        if self.refused.is_empty() {
            return match context.admit(&object) {
                Ok(admitted) => {
                    let codes = admitted.warnings.iter().map(|line| code_of(line));
                    let mut warned: BTreeSet<_> = codes.map(str::to_owned).collect();
                    if !self.warned.contains(BOOT) {
                        warned.remove(BOOT);
                    }
                    (warned != self.warned).then(|| format!("is warned of with {warned:?}"))
                }
                Err(verdict) => Some(format!("is refused: {:?}", messages(&verdict))),
            };
        }
        let expected = self.refused.iter();
        let expected: BTreeSet<_> = expected
            .map(|(field, name)| (field.clone(), code(name)))
            .collect();
        [Stage::Mutate, Stage::Validate]
            .into_iter()
            .find_map(|stage| {
                let violations: BTreeSet<_> = fields_and_codes(&context.review(stage, &object))
                    .into_iter()
                    .collect();
                (violations != expected).then(|| format!("{stage:?} reports {violations:?}"))
            })
    }
}

#[test]
fn faults_that_other_components_find_late_are_reported_by_the_review() {
    let faults: Vec<Late> = yaml(&path("tests/cases/late.yaml"));
    let failures: Vec<_> = faults
        .iter()
        .filter_map(|late| Some(format!("{}: {}", late.fault, late.failure()?)))
        .collect();
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
    let names: BTreeSet<_> = faults.iter().map(|late| &late.fault).collect();
    assert_eq!(names.len(), faults.len(), "a fault is there twice");
    for late in &faults {
        assert!(!late.found_by.is_empty(), "{}", late.fault);
        assert!(
            late.refused.is_empty() != late.warned.is_empty(),
            "{}",
            late.fault
        );
    }
    println!("{} faults", faults.len());
    assert!(faults.len() >= FAULTS_MIN);
}
