//! Raw JSON to typed intent, with every value of a wrong type told by its path.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};

use crate::code::Code;
use crate::violation::{Findings, Kind, Violation};

/// Most values of a wrong type that are told: each costs a pass over the object.
const TYPE_FAULTS_MAX: usize = 100;

/// What is read of an object's metadata.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) name: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

/// An object as sent, its spec still raw.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Wire {
    #[serde(default)]
    pub(super) metadata: Metadata,
    #[serde(default)]
    pub(super) spec: Value,
}

/// Decodes an object. Faults of its metadata and a spec that is none are told, and leave an empty
/// one in its place.
pub(super) fn object(text: &str, findings: &mut Findings) -> Wire {
    let mut wire: Wire = if let Ok(wire) = serde_json::from_str(text) {
        wire
    } else {
        let mut value: Value = serde_json::from_str(text).unwrap_or_default();
        let metadata = value
            .get_mut("metadata")
            .map(Value::take)
            .unwrap_or_default();
        let spec = value.get_mut("spec").map(Value::take).unwrap_or_default();
        Wire {
            metadata: typed(metadata, "metadata", findings),
            spec,
        }
    };
    match &wire.spec {
        Value::Object(_) => {}
        Value::Null => {
            let detail = "give a spec, such as 'spec: {template: small}'";
            findings.deny(Violation::new(
                "spec",
                Code::SpecRequired,
                Kind::Required,
                detail,
            ));
            wire.spec = Value::Object(Map::new());
        }
        other => {
            findings.deny(wrong_type("spec", other, "an object"));
            wire.spec = Value::Object(Map::new());
        }
    }
    wire
}

/// Decodes a value, telling everything of a wrong type below `root`. What was told is taken as
/// absent.
pub(super) fn typed<T: DeserializeOwned + Default>(
    mut value: Value,
    root: &str,
    findings: &mut Findings,
) -> T {
    if let Ok(typed) = T::deserialize(&value) {
        return typed;
    }
    let mut tries: BTreeMap<String, usize> = BTreeMap::new();
    while tries.len() < TYPE_FAULTS_MAX {
        let (path, error) = match serde_path_to_error::deserialize(&value) {
            Ok(typed) => return typed,
            Err(error) => (error.path().clone(), error.inner().to_string()),
        };
        let Some(target) = locate(&mut value, &path) else {
            break;
        };
        let field = join(root, &path);
        let attempt = tries.entry(field.clone()).or_default();
        if *attempt == 0 {
            findings.deny(wrong_type(
                &field,
                target,
                expected(
                    &error,
                    !target.is_array() && !target.is_object() && !target.is_null(),
                ),
            ));
        }
        // Absent, else an item that says nothing: rules about it are silenced by its type fault.
        let Some(substitute) = [
            Value::Null,
            Value::Object(Map::new()),
            Value::String(String::new()),
        ]
        .into_iter()
        .nth(*attempt) else {
            break;
        };
        *target = substitute;
        *attempt += 1;
    }
    T::default()
}

fn is_root(violation: &Violation) -> bool {
    matches!(violation.code, Code::WrongType | Code::SpecRequired)
}

/// Drops faults at or below a field that is missing or of the wrong type: they follow from it.
pub(super) fn without_consequences(findings: &mut Findings) {
    let roots: Vec<String> = findings
        .violations
        .iter()
        .filter(|violation| is_root(violation))
        .map(|violation| violation.field.clone())
        .collect();
    findings.violations.retain(|violation| {
        is_root(violation)
            || !roots.iter().any(|root| {
                violation
                    .field
                    .strip_prefix(root.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            })
    });
}

fn locate<'v>(value: &'v mut Value, path: &Path) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Map { key } => value.get_mut(key),
        Segment::Seq { index } => value.get_mut(index),
        Segment::Enum { .. } | Segment::Unknown => None,
    })
}

fn join(root: &str, path: &Path) -> String {
    path.iter().fold(root.to_owned(), |mut field, segment| {
        match segment {
            Segment::Seq { index } => field.extend(["[", &index.to_string(), "]"]),
            Segment::Map { key } if key.contains(['.', '/']) => field.extend(["[", key, "]"]),
            Segment::Map { key } => field.extend([".", key]),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
        field
    })
}

/// What serde expected, in the words of a manifest's author.
fn expected(error: &str, is_scalar: bool) -> &'static str {
    let wanted = error
        .split_once("expected ")
        .map_or("", |(_, wanted)| wanted);
    match wanted {
        wanted if wanted.starts_with("a string") && is_scalar => "a text; put it in quotes",
        wanted if wanted.starts_with("a string") => "a text",
        wanted if wanted.starts_with("a boolean") => "true or false, without quotes",
        wanted if wanted.starts_with("a sequence") => "a list",
        wanted if wanted.starts_with("i64") => "a whole number, without quotes",
        _ => "an object",
    }
}

fn wrong_type(field: &str, value: &Value, expected: &str) -> Violation {
    let violation = Violation::new(
        field,
        Code::WrongType,
        Kind::TypeInvalid,
        format!("must be {expected}"),
    );
    match value {
        Value::Null => violation.value("null"),
        Value::Bool(value) => violation.value(value),
        Value::Number(value) => violation.value(value),
        Value::String(value) => violation.text(value),
        Value::Array(_) => violation.value("a list"),
        Value::Object(_) => violation.value("an object"),
    }
}
