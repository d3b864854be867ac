//! A document against a JSON Schema: which values are not what their keys take.
//!
//! ```text
//! value ──jsonschema──▶ errors ──(marks, vocabulary, annotations)──▶ remarks
//! ```
//! Two annotations of ours stand in the schemas of this folder:
//!
//! | annotation | |
//! |---|---|
//! | `expects` | what belongs there, where the keyword that fails does not say it |
//! | `tolerates` | types and keywords that cloud-init copes with: a warning, not a refusal |
//!
//! A key without a value is always tolerated: somebody may have commented out all that was below.

use std::collections::BTreeSet;

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Failure};
use jsonschema::paths::{Location, LocationSegment};
use jsonschema::types::JsonType;
use serde_json::Value;

use super::document::{Document, Mark, Marks};
use super::remarks::Remark;
use crate::code::Code;
use crate::words::{did_you_mean, quoted_list};

/// Longest unknown key that is repeated.
const KEY_SHOWN_MAX: usize = 40;

/// Why a text is no schema of cloud-config.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It says nothing about the keys of a mapping, as a schema of cloud-config would.
    #[error("not a JSON Schema of cloud-config: it has neither 'properties' nor 'allOf'")]
    NotASchema,
    /// A keyword has a wrong value, or something that is referred to is not in it.
    #[error("not a JSON Schema that can be used: {0}")]
    Unusable(String),
}

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Schema {
    validator: jsonschema::Validator,
    source: Value,
    /// Every key that the schema has a word about; no other is a part of a message.
    vocabulary: BTreeSet<String>,
    /// What its objections end with.
    signature: &'static str,
}

/// The codes of what is said about a document.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    pub(super) invalid: Code,
    pub(super) unknown: Code,
    pub(super) doubtful: Code,
    /// A key without a value.
    pub(super) empty: Code,
}

/// Something a schema has against a document.
#[derive(Clone, Debug)]
pub(super) struct Objection {
    /// What it is about, as a JSON pointer.
    pointer: String,
    mark: Mark,
    text: String,
    weight: Weight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// Of the wrong type.
    Type,
    /// Of the right type, and wrong.
    Content,
    Doubt,
    UnknownKey,
    Empty,
}

impl Objection {
    /// Whether the other one is about the same value, one in it or one around it.
    pub(super) fn is_near(&self, other: &Self) -> bool {
        let within = |inner: &str, outer: &str| {
            let rest = inner.strip_prefix(outer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        within(&self.pointer, &other.pointer) || within(&other.pointer, &self.pointer)
    }

    /// Leaves a fault only where a value is of the wrong type.
    pub(super) fn softened(mut self) -> Self {
        if self.weight == Weight::Content {
            self.weight = Weight::Doubt;
        }
        self
    }

    /// The key that is not known, if it is one of the document itself.
    pub(super) fn unknown_module(&self) -> Option<&str> {
        let key = self.pointer.strip_prefix('/')?;
        (self.weight == Weight::UnknownKey && !key.contains('/')).then_some(key)
    }

    /// What is told.
    pub(super) fn remark(self, codes: Codes) -> Remark {
        let code = match self.weight {
            Weight::Type | Weight::Content => codes.invalid,
            Weight::Doubt => codes.doubtful,
            Weight::UnknownKey => codes.unknown,
            Weight::Empty => codes.empty,
        };
        Remark::new(self.mark, code, self.text)
    }
}

impl Schema {
    /// A schema of this folder.
    pub(super) fn ours(text: &str) -> Result<Self, SchemaError> {
        Self::parse(text, "")
    }

    /// A schema of the administrator's.
    pub(super) fn given(text: &str) -> Result<Self, SchemaError> {
        Self::parse(text, " (says the schema of --cloud-init-schema)")
    }

    fn parse(text: &str, signature: &'static str) -> Result<Self, SchemaError> {
        let source: Value = serde_json::from_str(text)?;
        if source.get("properties").is_none() && source.get("allOf").is_none() {
            return Err(SchemaError::NotASchema);
        }
        let validator = jsonschema::validator_for(&source).map_err(|error| {
            let place = error.instance_path();
            SchemaError::Unusable(format!("{} at '{place}'", error.masked()))
        })?;
        let mut vocabulary = BTreeSet::new();
        collect_keys(&source, &mut vocabulary);
        Ok(Self {
            validator,
            source,
            vocabulary,
            signature,
        })
    }

    /// Whether this schema has a word about a key.
    pub(super) fn knows(&self, key: &str) -> bool {
        self.vocabulary.contains(key)
    }

    /// Everything this schema has against a document.
    pub(super) fn judge(&self, document: &Document) -> Vec<Objection> {
        let errors = self.validator.iter_errors(&document.value);
        errors
            .flat_map(|error| self.objections(&error, &document.marks))
            .map(|mut objection| {
                objection.text.push_str(self.signature);
                objection
            })
            .collect()
    }

    fn objections(&self, error: &ValidationError<'_>, root: &Marks) -> Vec<Objection> {
        let path = error.instance_path();
        let marks = find(root, path);
        let subject = self.subject(path);
        let site = self.site(error.schema_path());
        if let Failure::AdditionalProperties { unexpected } = error.kind() {
            let keys = unexpected.iter();
            return keys
                .map(|key| Objection {
                    pointer: path.join(key.as_str()).as_str().to_owned(),
                    mark: marks.field(key).map_or(marks.at, |field| field.key),
                    text: format!("{subject} takes no {}", unknown_key(key, site)),
                    weight: Weight::UnknownKey,
                })
                .collect();
        }
        let actual = error.instance();
        let failure = Alternatives::of(error);
        let (mut weight, keyword) = match &failure {
            Alternatives::Types(_) if actual.is_null() => (Weight::Empty, "type"),
            Alternatives::Types(_) => (Weight::Type, "type"),
            Alternatives::Other => (Weight::Content, error.kind().keyword()),
        };
        let tolerated = site.get("tolerates").and_then(Value::as_array);
        let is_tolerated =
            |word: &Value| word == keyword || weight == Weight::Type && word == json_type(actual);
        if tolerated.into_iter().flatten().any(is_tolerated) {
            weight = Weight::Doubt;
        }
        let expected = site.get("expects").and_then(Value::as_str);
        let verb = if weight == Weight::Doubt {
            "should"
        } else {
            "must"
        };
        let text = match (&failure, error.kind(), expected) {
            (_, Failure::Required { property }, _) => {
                format!(
                    "{subject} lacks '{}'",
                    property.as_str().unwrap_or_default()
                )
            }
            (Alternatives::Types(_), ..) if weight == Weight::Empty => {
                format!("{subject} is empty; give it a value or leave it out")
            }
            (Alternatives::Types(types), _, expected) => {
                let expected = expected.map_or_else(|| type_list(types), str::to_owned);
                let (is, hint) = (type_name(actual), hint(types, actual));
                format!("{subject} {verb} be {expected}, is {is}{hint}")
            }
            (_, _, Some(expected)) => format!("{subject} {verb} be {expected}"),
            (_, Failure::Enum { options }, _) => {
                format!("{subject} {verb} be one of {}", options_list(options))
            }
            _ => format!("{subject} does not fit ({keyword})"),
        };
        vec![Objection {
            pointer: path.as_str().to_owned(),
            mark: marks.at,
            text,
            weight,
        }]
    }

    /// The schema that holds the keyword which failed.
    fn site(&self, keyword: &Location) -> &Value {
        let path = keyword.as_str();
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        self.source.pointer(parent).unwrap_or(&Value::Null)
    }

    /// A place of the document in keys of the vocabulary: `write_files[0].permissions`.
    fn subject(&self, path: &Location) -> String {
        let mut subject = String::new();
        for segment in path {
            let (separator, step) = match segment {
                LocationSegment::Index(index) => ("", format!("[{index}]")),
                LocationSegment::Property(key) if self.knows(&key) => (".", key.into_owned()),
                LocationSegment::Property(_) => (".", "*".to_owned()),
            };
            if !subject.is_empty() {
                subject.push_str(separator);
            }
            subject.push_str(&step);
        }
        if subject.is_empty() {
            "the document".to_owned()
        } else {
            subject
        }
    }
}

/// The marks of a value; those of the nearest one around it if it has none of its own.
fn find<'m>(root: &'m Marks, path: &Location) -> &'m Marks {
    let mut marks = root;
    for segment in path {
        let below = match segment {
            LocationSegment::Index(index) => marks
                .item(index)
                .or_else(|| marks.field(&index.to_string()).map(|field| &field.value)),
            LocationSegment::Property(key) => marks.field(&key).map(|field| &field.value),
        };
        let Some(below) = below else { break };
        marks = below;
    }
    marks
}

fn collect_keys(schema: &Value, keys: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Object(properties)) = fields.get("properties") {
                keys.extend(properties.keys().cloned());
            }
            fields.values().for_each(|value| collect_keys(value, keys));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_keys(value, keys)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `key 'runcmds'; did you mean 'runcmd'?` A key that is no plain word is not repeated: what was
/// meant as a value may have become one.
fn unknown_key(key: &str, site: &Value) -> String {
    let known = site.get("properties").and_then(Value::as_object);
    let known = known.into_iter().flat_map(|known| known.keys());
    let nearest = did_you_mean(key, known.map(String::as_str));
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b);
    let is_word = key.len() <= KEY_SHOWN_MAX
        && key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.bytes().all(is_inner);
    match (is_word, nearest.trim_end()) {
        (false, "") => "such key".to_owned(),
        (true, "") => format!("key '{key}'"),
        (_, nearest) => format!("key '{key}'; {nearest}"),
    }
}

/// Why a value does not fit.
enum Alternatives {
    /// It is of none of these types.
    Types(Vec<JsonType>),
    /// Something else.
    Other,
}

impl Alternatives {
    /// Of a choice between schemas, the types, if the value is of the type of none.
    fn of(error: &ValidationError<'_>) -> Self {
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

fn json_type(value: &Value) -> &'static str {
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
