//! A document of cloud-init that is an object: the same checks as of a text, with a path in place of line and column.
//!
//! ```text
//! object ──read──▶ Document: value, positions (the number of each value in the order of a walk)
//!                     └──checks──▶ diagnostics ──report──▶ findings at spec.cloudInit.cloudConfig.users[0].name
//! ```

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::diagnostics::{Diagnostic, REPORTED_MAX};
use super::document::Document;
use super::messages;
use super::position::{Children, Field, Position, PositionTree};
use crate::api::machine::OpenObject;
use crate::bounds::{OBJECT_DEPTH_MAX, OBJECT_FIELDS_MAX, OBJECT_KEY_MAX, OBJECT_VALUES_MAX};
use crate::code::{Code, Severity};
use crate::violation::{Findings, Kind, Location, Violation};

/// The document of an object.
pub(super) fn read(OpenObject(fields): &OpenObject) -> Document {
    let value = Value::Object(fields.clone());
    let mut next = 0;
    Document {
        positions: positions(&value, &mut next),
        value,
        diagnostics: vec![],
    }
}

/// Numbers the values. The position of a key is that of its mapping: a fault of the key is shown there, because an
/// unknown key may be a secret.
fn positions(value: &Value, next: &mut u32) -> PositionTree {
    let at = Position {
        line: *next,
        column: 1,
    };
    *next += 1;
    let children = match value {
        Value::Array(items) => {
            Children::Items(items.iter().map(|item| positions(item, next)).collect())
        }
        // Sorted by key, as `PositionTree` requires.
        Value::Object(fields) => Children::Fields(
            fields
                .iter()
                .map(|(name, value)| Field {
                    name: name.as_str().into(),
                    key: at,
                    value: positions(value, next),
                })
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Children::Nothing,
    };
    PositionTree { at, children }
}

/// Rules [`Code::TooMany`] and [`Code::TooLong`] for an object: false if it is too large to be checked further.
pub(super) fn fits(field: &str, OpenObject(fields): &OpenObject, findings: &mut Findings) -> bool {
    let before = findings.count();
    let mut deny = |code, kind, detail| {
        findings.deny(Violation::new(field, code, kind, detail));
    };
    let mut size = Size::default();
    size.add_fields(fields, 1);
    for (count, what, max) in [
        (fields.len(), "fields", OBJECT_FIELDS_MAX),
        (size.values, "values", OBJECT_VALUES_MAX),
        (size.depth, "levels", OBJECT_DEPTH_MAX),
    ] {
        if count > max {
            let detail = format!("has {count} {what}; at most {max} are allowed");
            deny(Code::TooMany, Kind::TooMany, detail);
        }
    }
    if size.key > OBJECT_KEY_MAX {
        let detail = format!(
            "has a key of {} characters; at most {OBJECT_KEY_MAX} are allowed",
            size.key
        );
        deny(Code::TooLong, Kind::TooLong, detail);
    }
    findings.count() == before
}

/// What is counted of an object.
#[derive(Default)]
struct Size {
    values: usize,
    depth: usize,
    /// Characters of its longest key.
    key: usize,
}

impl Size {
    fn add(&mut self, value: &Value, depth: usize) {
        self.values += 1;
        match value {
            Value::Array(items) => {
                self.depth = self.depth.max(depth);
                for item in items {
                    self.add(item, depth + 1);
                }
            }
            Value::Object(fields) => self.add_fields(fields, depth),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn add_fields(&mut self, fields: &Map<String, Value>, depth: usize) {
        self.depth = self.depth.max(depth);
        for (key, value) in fields {
            self.key = self.key.max(key.chars().count());
            self.add(value, depth + 1);
        }
    }
}

/// The path of a numbered value as far as its keys can be shown, and the same as messages write it.
struct Path {
    location: Location,
    subject: String,
}

/// The path to the value of this number. `is_shown`: whether messages may quote a key at this depth.
fn path(field: &str, value: &Value, number: u32, is_shown: &dyn Fn(usize, &str) -> bool) -> Path {
    let mut path = Path {
        location: Location::from(field),
        subject: String::new(),
    };
    let (mut value, mut at, mut depth) = (value, 0, 0);
    while at < number {
        let mut next = at + 1;
        let mut steps: Vec<(Step<'_>, &Value)> = vec![];
        match value {
            Value::Array(items) => {
                steps.extend(
                    items
                        .iter()
                        .enumerate()
                        .map(|(i, item)| (Step::Item(i), item)),
                );
            }
            Value::Object(fields) => {
                steps.extend(fields.iter().map(|(key, value)| (Step::Key(key), value)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        let inside = steps.into_iter().find_map(|(step, child)| {
            let (start, end) = (next, next + count(child));
            next = end;
            (start..end)
                .contains(&number)
                .then_some((step, child, start))
        });
        let Some((step, child, start)) = inside else {
            break;
        };
        match step {
            Step::Item(index) => {
                path.location = path.location.key(&index.to_string());
                let _ = write!(path.subject, "[{index}]");
            }
            Step::Key(key) if is_shown(depth, key) => {
                let is_plain = key
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
                path.location = if is_plain {
                    path.location.member(key)
                } else {
                    path.location.key(key)
                };
                let dot = if path.subject.is_empty() { "" } else { "." };
                let _ = write!(path.subject, "{dot}{key}");
            }
            Step::Key(_) => break,
        }
        (value, at, depth) = (child, start, depth + 1);
    }
    path
}

enum Step<'v> {
    Item(usize),
    Key(&'v str),
}

/// Number of values in a value, itself included.
fn count(value: &Value) -> u32 {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<u32>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<u32>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// Reports the diagnostics of the document of a field, in the order of its values.
pub(super) fn report(
    field: &str,
    OpenObject(fields): &OpenObject,
    mut diagnostics: Vec<Diagnostic>,
    is_shown: &dyn Fn(usize, &str) -> bool,
    findings: &mut Findings,
) {
    let value = Value::Object(fields.clone());
    diagnostics.sort_by_key(|diagnostic| diagnostic.position);
    let is_error = |diagnostic: &Diagnostic| diagnostic.code.severity() == Severity::Refuse;
    let (errors, warnings): (Vec<_>, Vec<_>) = diagnostics.into_iter().partition(is_error);
    for error in errors.iter().take(REPORTED_MAX) {
        let path = path(field, &value, error.position.line, is_shown);
        let detail = statement(&path.subject, &error.text);
        let fault = Violation::new(path.location, error.code, Kind::Invalid, detail);
        findings.deny(fault.known_as(error.identity()));
    }
    for warning in warnings.iter().take(REPORTED_MAX) {
        let path = path(field, &value, warning.position.line, is_shown);
        let detail = statement(&path.subject, &warning.text);
        findings.warn(
            warning.code,
            &format!("{}: {detail}", path.location.field()),
        );
    }
    if let Some(Diagnostic { code, .. }) = errors.get(REPORTED_MAX) {
        let more = errors.len() - REPORTED_MAX;
        let detail = format!("and {more} more like these");
        let rest = Violation::new(field, *code, Kind::Invalid, detail);
        findings.deny(rest.known_as("and more"));
    }
    if let Some(Diagnostic { code, .. }) = warnings.get(REPORTED_MAX) {
        let more = warnings.len() - REPORTED_MAX;
        findings.warn(*code, &format!("{field}: and {more} more like these"));
    }
}

/// A message without the path at its beginning, which the field has.
fn statement<'t>(subject: &str, text: &'t str) -> &'t str {
    let rest = text.strip_prefix(subject).filter(|_| !subject.is_empty());
    rest.and_then(|rest| rest.strip_prefix(' ')).unwrap_or(text)
}

/// Whether the name of a device can be shown.
pub(super) fn is_device(name: &str) -> bool {
    messages::device(name) == name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(value: Value) -> Vec<String> {
        let mut findings = Findings::default();
        let Value::Object(fields) = value else {
            panic!("{value} is no object");
        };
        let fits = fits("spec.x", &OpenObject(fields), &mut findings);
        assert_eq!(fits, findings.accepted());
        let violations = findings.violations.iter();
        violations.map(ToString::to_string).collect()
    }

    fn nested(levels: usize) -> Value {
        (1..levels).fold(json!({}), |inner, _| json!({ "a": inner }))
    }

    #[test]
    fn an_object_has_bounded_fields_values_levels_and_keys() {
        let fields = |count: usize| -> Value {
            let fields = (0..count).map(|i| (i.to_string(), Value::Null));
            Value::Object(fields.collect())
        };
        let list = |count: usize| json!({"a": vec![0; count]});
        let key = |length: usize| json!({ "ü".repeat(length): [] });
        for fits in [
            fields(OBJECT_FIELDS_MAX),
            list(OBJECT_VALUES_MAX - 1),
            nested(OBJECT_DEPTH_MAX),
            key(OBJECT_KEY_MAX),
        ] {
            assert_eq!(faults(fits), [""; 0]);
        }
        for (value, fault) in [
            (
                fields(OBJECT_FIELDS_MAX + 1),
                "has 257 fields; at most 256 are allowed [TooMany]",
            ),
            (
                list(OBJECT_VALUES_MAX),
                "has 10001 values; at most 10000 are allowed [TooMany]",
            ),
            (
                nested(OBJECT_DEPTH_MAX + 1),
                "has 33 levels; at most 32 are allowed [TooMany]",
            ),
            (
                key(OBJECT_KEY_MAX + 1),
                "has a key of 161 characters; at most 160 are allowed [TooLong]",
            ),
        ] {
            let kind = if fault.contains("TooLong") {
                "Too long"
            } else {
                "Too many"
            };
            assert_eq!(faults(value), [format!("spec.x: {kind}: {fault}")]);
        }
    }

    #[test]
    fn a_number_leads_back_to_its_value_as_far_as_keys_are_shown() {
        let value = json!({"a": [1, {"b": 2, "secret": [3]}], "c.d": {"e": 4}});
        let Value::Object(fields) = value.clone() else {
            unreachable!()
        };
        let positions = read(&OpenObject(fields)).positions;
        let path = |tree: &PositionTree| {
            let shown = |_, key: &str| key != "secret";
            let path = path("spec.x", &value, tree.at.line, &shown);
            (path.location.field().to_owned(), path.subject)
        };
        let list = &positions.field("a").unwrap().value;
        let item = list.item(1).unwrap();
        let secret = &item.field("secret").unwrap().value;
        let dotted = &positions.field("c.d").unwrap().value;
        for (tree, field, subject) in [
            (&positions, "spec.x", ""),
            (list, "spec.x.a", "a"),
            (&item.field("b").unwrap().value, "spec.x.a[1].b", "a[1].b"),
            (secret.item(0).unwrap(), "spec.x.a[1]", "a[1]"),
            (&dotted.field("e").unwrap().value, "spec.x[c.d].e", "c.d.e"),
        ] {
            assert_eq!(path(tree), (field.to_owned(), subject.to_owned()));
        }
    }
}
