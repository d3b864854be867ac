//! Messages about a value that does not match its schema: the expected type and the type found.
//! They contain no value, and no key that the schema does not define.

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Failure};
use jsonschema::types::JsonType;
use serde_json::Value;

use crate::words::{did_you_mean, quoted_list};

/// Longest unknown key that a message quotes.
const KEY_SHOWN_MAX: usize = 40;

/// Why a value does not match.
pub(super) enum Mismatch {
    /// It is of none of these types.
    Types(Vec<JsonType>),
    /// Another fault.
    Other,
}

impl Mismatch {
    /// Of a choice between schemas, all their types, if the value is of the type of none.
    pub(super) fn of(error: &ValidationError<'_>) -> Self {
        let types = match error.kind() {
            Failure::Type {
                kind: TypeKind::Single(one),
            } => Some(vec![*one]),
            Failure::Type {
                kind: TypeKind::Multiple(several),
            } => Some(several.iter().collect()),
            Failure::AnyOf { context } | Failure::OneOfNotValid { context } => {
                let of_each = context.iter().map(|errors| {
                    errors.iter().find_map(|inner| match Self::of(inner) {
                        Self::Types(types) if inner.instance_path() == error.instance_path() => {
                            Some(types)
                        }
                        _ => None,
                    })
                });
                let all: Option<Vec<_>> = of_each.collect();
                all.map(|all| all.concat())
            }
            _ => None,
        };
        types.map_or(Self::Other, Self::Types)
    }
}

/// `must be a list, is a text`
pub(in crate::rules) fn predicate(
    error: &ValidationError<'_>,
    expects: Option<&str>,
    verb: &str,
) -> String {
    let actual = error.instance();
    match (error.kind(), Mismatch::of(error), expects) {
        (Failure::Required { property }, ..) => {
            format!("lacks '{}'", property.as_str().unwrap_or_default())
        }
        (_, Mismatch::Types(types), _) => {
            let expected = expects.map_or_else(|| type_list(&types), str::to_owned);
            let (is, hint) = (type_name(actual), hint(&types, actual));
            format!("{verb} be {expected}, is {is}{hint}")
        }
        (.., Some(expected)) => format!("{verb} be {expected}"),
        (Failure::Enum { options }, ..) => format!("{verb} be one of {}", options_list(options)),
        (other, ..) => format!("does not fit ({})", other.keyword()),
    }
}

/// Whether a message may quote a key. One that is no plain word may be a value that was parsed as a key.
pub(super) fn is_word(key: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b);
    key.len() <= KEY_SHOWN_MAX
        && key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.bytes().all(is_inner)
}

/// The name of a device as messages show it. Such a name may have dots, and is a key of the document, too.
pub(super) fn device(name: &str) -> &str {
    if is_word(&name.replace('.', "-")) {
        name
    } else {
        "*"
    }
}

/// `key 'runcmds'; did you mean 'runcmd'?`
pub(super) fn unknown_key<'k>(key: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    let nearest = did_you_mean(key, known);
    match (is_word(key), nearest.trim_end()) {
        (false, "") => "such key".to_owned(),
        (true, "") => format!("key '{key}'"),
        (_, nearest) => format!("key '{key}'; {nearest}"),
    }
}

fn type_list(types: &[JsonType]) -> String {
    let words = types.iter().map(|one| match one {
        JsonType::Array => "a list",
        JsonType::Object => "a mapping",
        JsonType::String => "a text",
        JsonType::Integer => "a whole number",
        JsonType::Number => "a number",
        JsonType::Boolean => "true or false",
        JsonType::Null => "nothing",
    });
    words.collect::<Vec<_>>().join(" or ")
}

/// The name of the type of a value, as in JSON Schema.
pub(super) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// The mistake behind the type, where YAML invites one.
fn hint(expected: &[JsonType], actual: &Value) -> &'static str {
    let takes = |one| expected.contains(&one);
    let is_collection = takes(JsonType::Array) || takes(JsonType::Object);
    match actual {
        _ if !takes(JsonType::String) => "",
        Value::Object(_) => "; put text that holds ': ' or begins with '{' in quotes",
        _ if is_collection => "",
        Value::Number(_) => "; put it in quotes",
        Value::Bool(_) => ", as YAML reads yes, no, on and off; put it in quotes",
        _ => "",
    }
}

fn options_list(options: &Value) -> String {
    let options: Vec<_> = options.as_array().into_iter().flatten().collect();
    let texts: Vec<_> = options
        .iter()
        .map(|option| match option {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
        .collect();
    quoted_list(texts.iter().map(String::as_str))
}
