//! The tables of cases: each is one object and the expected answer.
//!
//! Each family of rules has a table in the file of its name. The tables cover every code: each has a case
//! that is reported under it, and a similar one that is not.

use std::collections::{BTreeMap, BTreeSet};

use common::admission::{ObjectKind, Stage};
use common::code::{Code, Severity};
use common::rules::{self, FAMILIES, RuleStage};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::{
    Admitted, ReviewContext, SettingsOverrides, catalog, merge_patch, messages, object, path, yaml,
};
use crate::paths;

/// Texts in a refusal that make Flux delete an object and create it again.
const DANGEROUS: [&str; 2] = ["is immutable", "immutable field"];

/// The warning that a Machine has nothing to boot from.
pub(crate) const BOOT: &str = "NothingToBoot";

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) enum Kind {
    #[default]
    Machine,
    MachineTemplate,
    NetworkConfiguration,
    LibvirtHost,
    MachinePolicy,
    MachineImage,
}

impl From<Kind> for ObjectKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Machine => Self::Machine,
            Kind::MachineTemplate => Self::MachineTemplate,
            Kind::NetworkConfiguration => Self::NetworkConfiguration,
            Kind::LibvirtHost => Self::LibvirtHost,
            Kind::MachinePolicy => Self::MachinePolicy,
            Kind::MachineImage => Self::MachineImage,
        }
    }
}

/// An object as a table writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Written {
    #[serde(default)]
    spec: Value,
    /// Merged over the metadata of every object.
    #[serde(default = "nothing")]
    metadata: Value,
    /// Changes to the block of the object; null removes it.
    #[serde(default, deserialize_with = "present")]
    block: Option<Value>,
    /// The `status` of the object.
    status: Option<Value>,
    /// LibvirtHost that the object is bound to.
    host: Option<String>,
    /// Whether it was stored without a review.
    #[serde(default)]
    bypassed: bool,
}

fn nothing() -> Value {
    json!({})
}

/// A line of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Case {
    name: String,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    spec: Value,
    #[serde(default = "nothing")]
    metadata: Value,
    /// Changes to the block of the object: on an update of the stored block, on a creation of the block
    /// of a backup of the object. Null removes it.
    #[serde(default, deserialize_with = "present")]
    block: Option<Value>,
    /// Text that is sent in place of an object.
    text: Option<String>,
    /// The stored object.
    old: Option<Written>,
    /// The catalog when the stored or backed up object was admitted; default: `catalog`.
    earlier: Option<String>,
    #[serde(default = "default_catalog")]
    catalog: String,
    #[serde(default)]
    settings: SettingsOverrides,
    /// The settings when the stored object was admitted; default: `settings`.
    earlier_settings: Option<SettingsOverrides>,
    /// The only stage that is tested; default: both, whose answers must be equal.
    only: Option<Only>,
    /// All violations for which the object is refused.
    #[serde(default)]
    refuses: Vec<String>,
    /// All warnings of rules about an accepted object.
    #[serde(default)]
    warns: Vec<String>,
    /// All warnings without a rule; not compared if absent.
    notes: Option<Vec<String>>,
    /// Codes of rules that this object almost violates.
    #[serde(default)]
    passes: Vec<String>,
    /// A part of the resulting block.
    becomes: Option<Value>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Only {
    Mutate,
    Validate,
}

/// A null that is written is a value.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

fn default_catalog() -> String {
    "default".to_owned()
}

pub(crate) fn table(family: &str) -> Vec<Case> {
    yaml(&path(&format!("tests/cases/{family}.yaml")))
}

/// The specs of a table.
pub(crate) fn specs(family: &str) -> Vec<Value> {
    table(family).into_iter().map(|case| case.spec).collect()
}

impl Case {
    fn kind(&self) -> ObjectKind {
        self.kind.into()
    }

    /// The object as it was admitted under the earlier catalog.
    fn admitted_before(&self, spec: &Value, metadata: &Value) -> Value {
        let earlier = self.earlier_settings.as_ref();
        let settings = earlier.unwrap_or(&self.settings).settings();
        let context = ReviewContext {
            kind: self.kind(),
            old: None,
            catalog: catalog(self.earlier.as_ref().unwrap_or(&self.catalog)),
            settings: &settings,
        };
        let object = object(self.kind(), metadata, spec);
        match context.admit(&object) {
            Ok(admitted) => admitted.stored,
            Err(verdict) => panic!(
                "{}: the earlier object: {:?}",
                self.name,
                messages(&verdict)
            ),
        }
    }

    fn old(&self) -> Option<Value> {
        let Written {
            spec,
            metadata,
            block,
            status,
            host,
            bypassed,
        } = self.old.as_ref()?;
        let mut stored = if *bypassed {
            object(self.kind(), metadata, spec)
        } else {
            self.admitted_before(spec, metadata)
        };
        if let Some(changes) = block {
            change_block(&mut stored, changes);
        }
        if let Some(status) = status {
            stored["status"] = status.clone();
        }
        if let Some(host) = host {
            stored["status"] = json!({ "host": host });
        }
        Some(stored)
    }

    /// The object under review.
    fn object(&self, old: Option<&Value>) -> Value {
        let mut object = object(self.kind(), &self.metadata, &self.spec);
        let block = match (old, &self.block) {
            (Some(old), _) => old["spec"].get("normalized").cloned(),
            (None, Some(_)) => {
                let backup = self.admitted_before(&self.spec, &self.metadata);
                backup["spec"].get("normalized").cloned()
            }
            (None, None) => None,
        };
        if let Some(block) = block {
            object["spec"]["normalized"] = block;
        }
        if let Some(changes) = &self.block {
            change_block(&mut object, changes);
        }
        object
    }

    /// The difference between the answer and the expected one, if there is any.
    fn failure(&self) -> Option<String> {
        let (settings, old) = (self.settings.settings(), self.old());
        let context = ReviewContext {
            kind: self.kind(),
            old: old.as_ref(),
            catalog: catalog(&self.catalog),
            settings: &settings,
        };
        if let Some(text) = &self.text {
            let verdict = context.review_text(Stage::Mutate, text);
            return differs("is refused with", &self.refuses, &messages(&verdict));
        }
        let object = self.object(old.as_ref());
        let stages: &[Stage] = match self.only {
            None => &[Stage::Mutate, Stage::Validate],
            Some(Only::Mutate) => &[Stage::Mutate],
            Some(Only::Validate) => &[Stage::Validate],
        };
        if self.refuses.is_empty() {
            return match context.admit(&object) {
                Ok(admitted) => self.difference(&admitted),
                Err(verdict) => differs("is refused with", &[], &messages(&verdict)),
            };
        }
        stages.iter().find_map(|stage| {
            let verdict = context.review(*stage, &object);
            for violation in &verdict.findings.violations {
                assert!(
                    paths::resolves(self.kind(), &object, &violation.field),
                    "{}: there is no field {}",
                    self.name,
                    violation.field
                );
            }
            differs(
                &format!("{stage:?} refuses with"),
                &self.refuses,
                &messages(&verdict),
            )
        })
    }

    fn difference(&self, admitted: &Admitted) -> Option<String> {
        let cut = admitted.warnings.iter().find(|text| text.contains('…'));
        assert_eq!(cut, None, "{}: a warning is cut", self.name);
        let became = || {
            let block = &admitted.stored["spec"]["normalized"];
            let wanted = self.becomes.as_ref()?;
            (!contains(block, wanted)).then(|| format!("becomes {block:#}"))
        };
        let mut warnings = admitted.warnings.clone();
        // Almost every case has blank disks only.
        let checks_boot =
            self.reported_codes().contains(BOOT) || self.passes.iter().any(|code| code == BOOT);
        warnings.retain(|line| checks_boot || code_of(line) != BOOT);
        differs("warns", &self.warns, &warnings)
            .or_else(|| differs("notes", self.notes.as_ref()?, &admitted.notes))
            .or_else(became)
    }

    /// The codes of all expected violations and warnings.
    fn reported_codes(&self) -> BTreeSet<&str> {
        self.refuses
            .iter()
            .chain(&self.warns)
            .map(|line| code_of(line))
            .collect()
    }
}

fn change_block(object: &mut Value, changes: &Value) {
    merge_patch(&mut object["spec"], &json!({ "normalized": changes }));
}

/// The code that a line ends with.
pub(crate) fn code_of(line: &str) -> &str {
    let code = line
        .strip_suffix(']')
        .and_then(|line| line.rsplit_once('['));
    code.unwrap_or_else(|| panic!("no code ends {line}")).1
}

fn differs(what: &str, wanted: &[String], got: &[String]) -> Option<String> {
    let lines = |lines: &[String]| lines.join("\n    ");
    (wanted != got).then(|| {
        format!(
            "{what}\n    {}\n  instead of\n    {}",
            lines(got),
            lines(wanted)
        )
    })
}

/// Whether `value` has everything that `part` has. Lists have the same length.
fn contains(value: &Value, part: &Value) -> bool {
    match (value, part) {
        (Value::Object(value), Value::Object(part)) => part
            .iter()
            .all(|(key, part)| contains(value.get(key).unwrap_or(&Value::Null), part)),
        (Value::Array(values), Value::Array(parts)) => {
            values.len() == parts.len()
                && values
                    .iter()
                    .zip(parts)
                    .all(|(value, part)| contains(value, part))
        }
        _ => value == part,
    }
}

#[test]
fn every_case_is_validated_as_its_table_says() {
    let mut failures = vec![];
    for family in FAMILIES {
        for case in table(family) {
            if let Some(failure) = case.failure() {
                failures.push(format!("{family}: {}\n  {failure}", case.name));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n\n"));
}

#[test]
fn every_code_has_a_reported_and_a_passing_case_in_its_family() {
    let mut lacking = vec![];
    for code in rules::codes() {
        let cases = table(code.family());
        let is_in = |lines: &[String]| lines.iter().any(|line| code_of(line) == code.as_str());
        let (refused, warned) = (
            cases.iter().any(|case| is_in(&case.refuses)),
            cases.iter().any(|case| is_in(&case.warns)),
        );
        // A fault that the stored object also has is a warning, even if the code refuses.
        let is_covered = match code.severity() {
            Severity::Refuse => refused,
            Severity::Warn => warned && !refused,
            Severity::Setting => refused && warned,
        };
        if !is_covered {
            lacking.push(format!("{code}: refused {refused}, warned of {warned}"));
        }
        if !cases
            .iter()
            .any(|case| case.passes.iter().any(|name| name == code.as_str()))
        {
            lacking.push(format!("{code}: no case passes it"));
        }
    }
    assert!(lacking.is_empty(), "\n{}\n", lacking.join("\n"));
}

#[test]
fn the_tables_are_consistent_and_contain_no_text_that_makes_flux_recreate_objects() {
    let known: BTreeSet<&str> = rules::codes().into_iter().map(Code::as_str).collect();
    let mut names = BTreeMap::new();
    for family in FAMILIES {
        for case in table(family) {
            let at = format!("{family}: {}", case.name);
            let reported = case.reported_codes();
            assert!(
                reported.is_subset(&known),
                "{at}: unknown code among {reported:?}"
            );
            for code in &case.passes {
                assert!(known.contains(code.as_str()), "{at}: unknown code {code}");
                assert!(
                    !reported.contains(code.as_str()),
                    "{at}: {code} both reported and passed"
                );
            }
            let is_refused = !case.refuses.is_empty();
            let is_accepted = !case.warns.is_empty() || case.becomes.is_some();
            assert!(
                !(is_refused && is_accepted),
                "{at}: both refused and accepted"
            );
            assert!(
                is_refused || is_accepted || !case.passes.is_empty() || case.notes.is_some(),
                "{at}: expects nothing"
            );
            for text in case.refuses.iter().chain(&case.warns) {
                assert!(
                    !DANGEROUS.iter().any(|words| text.contains(words)),
                    "{at}: {text}"
                );
            }
            assert_eq!(names.insert(case.name, family), None, "{at}: named twice");
        }
    }
    let families: BTreeSet<&str> = rules::all()
        .flat_map(|rule| rule.codes)
        .map(|code| code.family())
        .collect();
    assert_eq!(families, FAMILIES.into());
}

/// A code is reported for the kinds, and at the stages, that the list of rules names.
#[test]
fn every_code_is_reported_where_the_list_of_rules_says() {
    for case in FAMILIES.into_iter().flat_map(table) {
        // A text that is no object has no kind and no stored object.
        for name in case
            .reported_codes()
            .into_iter()
            .filter(|_| case.text.is_none())
        {
            let mut rules = rules::all().filter(|rule| {
                let mut codes = rule.codes.iter();
                codes.any(|code| code.as_str() == name)
            });
            let is_listed = rules.any(|rule| {
                let stage = match rule.stage {
                    RuleStage::Always => true,
                    RuleStage::Create => case.old.is_none(),
                    RuleStage::Update => case.old.is_some(),
                };
                stage && rule.kinds.contains(&case.kind())
            });
            assert!(is_listed, "{}: {name}", case.name);
        }
    }
}

/// An accepted case.
pub(crate) struct Accepted {
    pub(crate) name: String,
    pub(crate) kind: ObjectKind,
    /// As it is stored.
    pub(crate) stored: Value,
}

/// The accepted cases of every table.
pub(crate) fn accepted() -> impl Iterator<Item = Accepted> {
    FAMILIES.into_iter().flat_map(accepted_of)
}

/// The accepted cases of a table, without those whose stored object was never reviewed: they may keep
/// their faults.
pub(crate) fn accepted_of(family: &str) -> Vec<Accepted> {
    let is_sound = |case: &Case| {
        let bypassed = case.old.as_ref().is_some_and(|old| old.bypassed);
        case.refuses.is_empty() && !bypassed
    };
    let cases = table(family).into_iter().filter(is_sound);
    let stored = cases.map(|case| {
        let (settings, old) = (case.settings.settings(), case.old());
        let context = ReviewContext {
            kind: case.kind(),
            old: old.as_ref(),
            catalog: catalog(&case.catalog),
            settings: &settings,
        };
        match context.admit(&case.object(old.as_ref())) {
            Ok(admitted) => Accepted {
                kind: case.kind(),
                name: case.name,
                stored: admitted.stored,
            },
            Err(verdict) => panic!("{} is refused: {:?}", case.name, messages(&verdict)),
        }
    });
    stored.collect()
}
