//! A document against a JSON Schema: which values are not what their keys take.
//!
//! ```text
//! value ──jsonschema──▶ errors ──marks, weight──▶ objections, in order ──words──▶ remarks
//! ```
//! Annotations and formats of ours stand in the schemas of this folder:
//!
//! | | |
//! |---|---|
//! | `expects` | what belongs there, where the keyword that fails does not say it |
//! | `tolerates` | types and keywords that cloud-init copes with: a warning, not a refusal |
//! | `closed` | cloud-init gives up at a key that is not known: a refusal, not a warning |
//! | `format: network` | an address, with or without its prefix |
//! | `format: destination` | such an address, or `default` |

use std::collections::{BTreeSet, HashMap};

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind as Failure;
use jsonschema::paths::{Location, LocationSegment};
use serde_json::Value;

use super::addresses;
use super::document::{Document, Mark, Marks};
use super::remarks::{Remark, TOLD_MAX};
use super::words::{self, Misfit};
use crate::code::Code;

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

/// What speaks against a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Weight {
    /// It is of the wrong type.
    Type,
    /// It is of the right type, and wrong.
    Content,
    /// cloud-init copes with it.
    Doubt,
    /// Its key is not known.
    UnknownKey,
    /// It is not there: somebody may have commented out all that was below its key.
    Empty,
}

/// Something a schema has against a document.
#[derive(Clone, Debug)]
pub(super) struct Objection {
    /// What it is about, as a JSON pointer.
    pub(super) pointer: String,
    pub(super) weight: Weight,
    mark: Mark,
    /// In words; empty beyond the first [`TOLD_MAX`] of a weight, which are counted and not told.
    text: String,
    /// The same without the places in lists; as empty.
    identity: String,
}

impl Objection {
    /// What is told.
    pub(super) fn remark(self, codes: Codes) -> Remark {
        let code = match self.weight {
            Weight::Type | Weight::Content => codes.invalid,
            Weight::Doubt => codes.doubtful,
            Weight::UnknownKey => codes.unknown,
            Weight::Empty => codes.empty,
        };
        Remark::new(self.mark, code, self.text).known_as(self.identity)
    }
}

/// An error of the validator, or of one key of it, with what it means.
struct Found<'e> {
    error: &'e ValidationError<'e>,
    /// The key that is not known, of an error about several.
    key: Option<&'e str>,
    pointer: String,
    mark: Mark,
    weight: Weight,
}

impl Schema {
    /// A schema of this folder.
    pub(super) fn ours(text: &str) -> Result<Self, SchemaError> {
        let options = jsonschema::options()
            .should_validate_formats(true)
            .with_format("network", addresses::is_network)
            .with_format("destination", addresses::is_destination);
        Self::parse(text, "", &options)
    }

    /// A schema of the administrator's.
    pub(super) fn given(text: &str) -> Result<Self, SchemaError> {
        let signature = " (says the schema of --cloud-init-schema)";
        Self::parse(text, signature, &jsonschema::options())
    }

    fn parse(
        text: &str,
        signature: &'static str,
        options: &jsonschema::ValidationOptions<'_>,
    ) -> Result<Self, SchemaError> {
        let source: Value = serde_json::from_str(text)?;
        if source.get("properties").is_none() && source.get("allOf").is_none() {
            return Err(SchemaError::NotASchema);
        }
        let validator = options.build(&source).map_err(|error| {
            let path = error.instance_path();
            SchemaError::Unusable(format!("{} at '{path}'", error.masked()))
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

    /// What this schema has against a document, in the order of its lines, as far as it is to be
    /// kept.
    pub(super) fn judge(
        &self,
        document: &Document,
        keep: impl Fn(&str, Weight) -> bool,
    ) -> Vec<Objection> {
        let errors: Vec<_> = self.validator.iter_errors(&document.value).collect();
        let mut found: Vec<_> = errors
            .iter()
            .flat_map(|error| self.found(error, &document.marks))
            .filter(|found| keep(&found.pointer, found.weight))
            .collect();
        found.sort_by_key(|found| found.mark);
        let mut told = HashMap::new();
        let objections = found.into_iter().map(|found| {
            let before: &mut usize = told.entry(found.weight).or_default();
            *before += 1;
            let (mut text, mut identity) = (String::new(), String::new());
            if *before <= TOLD_MAX {
                let path = found.error.instance_path();
                let (subject, predicate) = (self.subject(path), self.predicate(&found));
                text = format!("{subject} {predicate}{}", self.signature);
                identity = format!("{} {predicate}", keys(path));
            }
            Objection {
                pointer: found.pointer,
                weight: found.weight,
                mark: found.mark,
                text,
                identity,
            }
        });
        objections.collect()
    }

    fn found<'e>(&self, error: &'e ValidationError<'e>, root: &Marks) -> Vec<Found<'e>> {
        let path = error.instance_path();
        let marks = find(root, path);
        if let Failure::AdditionalProperties { unexpected } = error.kind() {
            let keys = unexpected.iter().map(String::as_str);
            let weight = if self.location(error)["closed"] == true {
                Weight::Content
            } else {
                Weight::UnknownKey
            };
            return keys
                .map(|key| Found {
                    error,
                    key: Some(key),
                    pointer: path.join(key).as_str().to_owned(),
                    mark: marks.field(key).map_or(marks.at, |field| field.key),
                    weight,
                })
                .collect();
        }
        vec![Found {
            error,
            key: None,
            pointer: path.as_str().to_owned(),
            mark: marks.at,
            weight: self.weight(error),
        }]
    }

    fn weight(&self, error: &ValidationError<'_>) -> Weight {
        let value = error.instance();
        let is_type = matches!(Misfit::of(error), Misfit::Types(_));
        let keyword = if is_type {
            "type"
        } else {
            error.kind().keyword()
        };
        let tolerated = self.location(error)["tolerates"].as_array();
        let is_tolerated =
            |word: &Value| word == keyword || is_type && word == words::json_type(value);
        if tolerated.into_iter().flatten().any(is_tolerated) {
            Weight::Doubt
        } else if is_type && value.is_null() {
            Weight::Empty
        } else if is_type {
            Weight::Type
        } else {
            Weight::Content
        }
    }

    fn predicate(&self, found: &Found<'_>) -> String {
        let location = self.location(found.error);
        match (found.key, found.weight) {
            (Some(key), _) => {
                let known = location["properties"].as_object();
                let known = known.into_iter().flat_map(|known| known.keys());
                let key = words::unknown_key(key, known.map(String::as_str));
                format!("takes no {key}")
            }
            (None, Weight::Empty) => "is empty; give it a value or leave it out".to_owned(),
            (None, weight) => {
                let verb = if weight == Weight::Doubt {
                    "should"
                } else {
                    "must"
                };
                words::predicate(found.error, location["expects"].as_str(), verb)
            }
        }
    }

    /// The schema that holds the keyword which failed.
    fn location(&self, error: &ValidationError<'_>) -> &Value {
        let path = error.schema_path().as_str();
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

/// The keys that lead to a value, without its places in lists.
fn keys(path: &Location) -> String {
    let segments = path.into_iter();
    let keys = segments.filter_map(|segment| match segment {
        LocationSegment::Index(_) => None,
        LocationSegment::Property(key) => Some(key),
    });
    keys.collect::<Vec<_>>().join("/")
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

/// A JSON Schema of cloud-config that an administrator gives, beside the one built in.
#[derive(Debug)]
pub struct CloudInitSchema(pub(super) Schema);

impl CloudInitSchema {
    /// Reads and compiles a schema, such as the one that comes with cloud-init.
    pub fn parse(text: &str) -> Result<Self, SchemaError> {
        Schema::given(text).map(Self)
    }
}
