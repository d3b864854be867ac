//! Validates a document with a JSON Schema: which values do not match their keys.
//!
//! ```text
//! value ──jsonschema──▶ errors ──positions, problem──▶ violations, in order ──messages──▶ diagnostics
//! ```
//! The schemas of this folder have annotations and formats of this project:
//!
//! | | |
//! |---|---|
//! | `expects` | the expected value, where the keyword that fails does not describe it |
//! | `tolerates` | types and keywords that cloud-init tolerates: a warning, not a refusal |
//! | `closed` | the reader fails at an unknown key: a refusal, not a warning |
//! | `extends` | definitions whose properties are its own, too |
//! | `misplaced` | keys that belong under another key, with the name of that key |
//! | `effect` | what comes of a violation, where it is not plain |
//! | `named` | depth of keys that are names of devices; messages show them |
//! | `format` | an address of a kind: see `addresses` |
//!
//! Reason: the suite `tests/tests/readers` compares each refusal with what cloud-init and netplan do with the document.

use std::collections::{BTreeSet, HashMap, HashSet};

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind as Failure;
use jsonschema::paths::{Location, LocationSegment};
use serde_json::Value;

use super::addresses;
use super::diagnostics::{Diagnostic, REPORTED_MAX};
use super::document::Document;
use super::messages::{self, Mismatch};
use super::position::{Position, PositionTree};
use crate::code::Code;

/// Why a text is no schema of cloud-config.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It does not define the keys of a mapping, as a schema of cloud-config does.
    #[error("not a JSON Schema of cloud-config: it has neither 'properties' nor 'allOf'")]
    NotASchema,
    /// A keyword has a wrong value, or a reference has no target in it.
    #[error("not a JSON Schema that can be used: {0}")]
    Unusable(String),
}

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Schema {
    validator: jsonschema::Validator,
    source: Value,
    /// Every key that the schema defines; messages quote no other, except names of devices.
    known_keys: BTreeSet<String>,
    /// Depth of the names of devices.
    named: Option<u64>,
    /// Text at the end of its violations.
    suffix: &'static str,
}

/// The codes of the violations of a document.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    pub(super) invalid: Code,
    pub(super) unknown: Code,
    pub(super) doubtful: Code,
    /// A key without a value.
    pub(super) empty: Code,
}

/// The kind of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Problem {
    /// It is of the wrong type.
    Type,
    /// It is of the right type, and wrong.
    Content,
    /// cloud-init tolerates it.
    Tolerated,
    /// Its key is unknown.
    UnknownKey,
    /// It is null: everything below its key may be commented out.
    Empty,
}

/// A violation of a schema in a document.
#[derive(Clone, Debug)]
pub(super) struct SchemaViolation {
    /// JSON pointer of the value.
    pub(super) pointer: String,
    pub(super) problem: Problem,
    position: Position,
    /// Message; empty beyond the first [`REPORTED_MAX`] of a problem, which are counted and not reported.
    text: String,
    /// The same without indices of lists; empty if the message is.
    identity: String,
}

impl SchemaViolation {
    /// The diagnostic to report.
    pub(super) fn diagnostic(self, codes: Codes) -> Diagnostic {
        let code = match self.problem {
            Problem::Type | Problem::Content => codes.invalid,
            Problem::Tolerated => codes.doubtful,
            Problem::UnknownKey => codes.unknown,
            Problem::Empty => codes.empty,
        };
        Diagnostic::new(self.position, code, self.text).with_identity(self.identity)
    }
}

/// An error of the validator, or of one key of it, with what it means.
struct Found<'e> {
    error: &'e ValidationError<'e>,
    /// The unknown key, of an error about several.
    key: Option<&'e str>,
    pointer: String,
    position: Position,
    problem: Problem,
}

impl Schema {
    /// A schema of this folder.
    pub(super) fn built_in(text: &str) -> Result<Self, SchemaError> {
        let options = jsonschema::options()
            .should_validate_formats(true)
            .with_format("network", addresses::is_network)
            .with_format("destination", addresses::is_destination)
            .with_format("interface-address", addresses::is_of_interface)
            .with_format("route-address", addresses::is_of_route)
            .with_format("route-destination", addresses::is_destination_of_route)
            .with_format("ip-address", addresses::is_address)
            .with_format("ipv4-address", addresses::is_v4_address)
            .with_format("ipv6-address", addresses::is_v6_address)
            .with_format("mac-address", addresses::is_mac)
            .with_format("hardware-address", addresses::is_mac_to_set);
        let source = serde_json::from_str(text)?;
        Self::compile(extended(source), "", &options)
    }

    /// A schema of the administrator's.
    pub(super) fn given(text: &str) -> Result<Self, SchemaError> {
        let suffix = " (from the schema of --cloud-init-schema)";
        Self::compile(serde_json::from_str(text)?, suffix, &jsonschema::options())
    }

    fn compile(
        source: Value,
        suffix: &'static str,
        options: &jsonschema::ValidationOptions<'_>,
    ) -> Result<Self, SchemaError> {
        if source.get("properties").is_none() && source.get("allOf").is_none() {
            return Err(SchemaError::NotASchema);
        }
        let validator = options.build(&source).map_err(|error| {
            let path = error.instance_path();
            SchemaError::Unusable(format!("{} at '{path}'", error.masked()))
        })?;
        let mut known_keys = BTreeSet::new();
        collect_keys(&source, &mut known_keys);
        Ok(Self {
            validator,
            known_keys,
            named: source["named"].as_u64(),
            source,
            suffix,
        })
    }

    /// Whether this schema defines a key.
    pub(super) fn has_key(&self, key: &str) -> bool {
        self.known_keys.contains(key)
    }

    /// The violations of this schema in a document, in the order of its lines, as far as they are
    /// kept.
    pub(super) fn check(
        &self,
        document: &Document,
        keep: impl Fn(&str, Problem) -> bool,
    ) -> Vec<SchemaViolation> {
        let errors: Vec<_> = self.validator.iter_errors(&document.value).collect();
        let mut found: Vec<_> = errors
            .iter()
            .flat_map(|error| self.found(error, &document.positions))
            .filter(|found| keep(&found.pointer, found.problem))
            .collect();
        // Of a value that is refused it does not matter what else is tolerated of it.
        let is_tolerated = |found: &Found<'_>| found.problem == Problem::Tolerated;
        let refused = found.iter().filter(|found| !is_tolerated(found));
        let refused: HashSet<String> = refused.map(|found| found.pointer.clone()).collect();
        found.retain(|found| !is_tolerated(found) || !refused.contains(&found.pointer));
        found.sort_by_key(|found| found.position);
        let mut reported = HashMap::new();
        let violations = found.into_iter().map(|found| {
            let before: &mut usize = reported.entry(found.problem).or_default();
            *before += 1;
            let (mut text, mut identity) = (String::new(), String::new());
            if *before <= REPORTED_MAX {
                let path = found.error.instance_path();
                let (subject, predicate) = (self.subject(path), self.predicate(&found));
                text = format!("{subject} {predicate}{}", self.suffix);
                identity = format!("{} {predicate}", keys(path));
            }
            SchemaViolation {
                pointer: found.pointer,
                problem: found.problem,
                position: found.position,
                text,
                identity,
            }
        });
        violations.collect()
    }

    fn found<'e>(&self, error: &'e ValidationError<'e>, root: &PositionTree) -> Vec<Found<'e>> {
        let path = error.instance_path();
        let positions = find(root, path);
        if let Failure::AdditionalProperties { unexpected } = error.kind() {
            let keys = unexpected.iter().map(String::as_str);
            let problem = if self.location(error)["closed"] == true {
                Problem::Content
            } else {
                Problem::UnknownKey
            };
            return keys
                .map(|key| Found {
                    error,
                    key: Some(key),
                    pointer: path.join(key).as_str().to_owned(),
                    position: positions.field(key).map_or(positions.at, |field| field.key),
                    problem,
                })
                .collect();
        }
        vec![Found {
            error,
            key: None,
            pointer: path.as_str().to_owned(),
            position: positions.at,
            problem: self.problem(error),
        }]
    }

    fn problem(&self, error: &ValidationError<'_>) -> Problem {
        let value = error.instance();
        let is_type = matches!(Mismatch::of(error), Mismatch::Types(_));
        let keyword = if is_type {
            "type"
        } else {
            error.kind().keyword()
        };
        let tolerated = self.location(error)["tolerates"].as_array();
        let is_tolerated =
            |word: &Value| word == keyword || is_type && word == messages::json_type(value);
        if tolerated.into_iter().flatten().any(is_tolerated) {
            Problem::Tolerated
        } else if is_type && value.is_null() {
            Problem::Empty
        } else if is_type {
            Problem::Type
        } else {
            Problem::Content
        }
    }

    fn predicate(&self, found: &Found<'_>) -> String {
        let location = self.location(found.error);
        let predicate = match (found.key, found.problem) {
            (Some(key), _) => {
                if let Some(place) = location["misplaced"][key].as_str() {
                    return format!("takes no key '{key}'; {place}");
                }
                let known = location["properties"].as_object();
                let known = known.into_iter().flat_map(|known| known.keys());
                let key = messages::unknown_key(key, known.map(String::as_str));
                format!("takes no {key}")
            }
            (None, Problem::Empty) => "is empty; give it a value or leave it out".to_owned(),
            (None, problem) => {
                let verb = if problem == Problem::Tolerated {
                    "should"
                } else {
                    "must"
                };
                messages::predicate(found.error, location["expects"].as_str(), verb)
            }
        };
        match location["effect"].as_str() {
            Some(effect) => format!("{predicate}; {effect}"),
            None => predicate,
        }
    }

    /// The schema that holds the keyword which failed.
    fn location(&self, error: &ValidationError<'_>) -> &Value {
        let path = error.schema_path().as_str();
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        self.source.pointer(parent).unwrap_or(&Value::Null)
    }

    /// A path in the document by keys that the schema defines: `write_files[0].permissions`.
    fn subject(&self, path: &Location) -> String {
        let mut subject = String::new();
        for (depth, segment) in (0..).zip(path) {
            let (separator, step) = match segment {
                LocationSegment::Index(index) => ("", format!("[{index}]")),
                LocationSegment::Property(key) if self.named == Some(depth) => {
                    (".", messages::device(&key).to_owned())
                }
                LocationSegment::Property(key) if self.has_key(&key) => (".", key.into_owned()),
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

/// The keys of the path to a value, without indices of lists.
fn keys(path: &Location) -> String {
    let segments = path.into_iter();
    let keys = segments.filter_map(|segment| match segment {
        LocationSegment::Index(_) => None,
        LocationSegment::Property(key) => Some(key),
    });
    keys.collect::<Vec<_>>().join("/")
}

/// The positions of a value; those of the nearest one around it if it has none of its own.
fn find<'m>(root: &'m PositionTree, path: &Location) -> &'m PositionTree {
    let mut positions = root;
    for segment in path {
        let children = match segment {
            LocationSegment::Index(index) => positions.item(index).or_else(|| {
                positions
                    .field(&index.to_string())
                    .map(|field| &field.value)
            }),
            LocationSegment::Property(key) => positions.field(&key).map(|field| &field.value),
        };
        let Some(children) = children else { break };
        positions = children;
    }
    positions
}

/// The schema in which each definition has the properties of those that it extends. Its own have precedence.
fn extended(mut source: Value) -> Value {
    let definitions = source["$defs"].clone();
    let extending = source.get_mut("$defs").and_then(Value::as_object_mut);
    for (name, schema) in extending.into_iter().flatten() {
        let bases = definitions[name]["extends"].as_array();
        let bases = bases.into_iter().flatten().filter_map(Value::as_str);
        let inherited = bases.filter_map(|base| definitions[base]["properties"].as_object());
        let own = schema.get_mut("properties").and_then(Value::as_object_mut);
        let Some(own) = own else { continue };
        for (key, value) in inherited.flatten() {
            own.entry(key).or_insert_with(|| value.clone());
        }
    }
    source
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

/// A JSON Schema of cloud-config from the administrator, in addition to the built-in one.
#[derive(Debug)]
pub struct CloudInitSchema(pub(super) Schema);

impl CloudInitSchema {
    /// Reads and compiles a schema, such as the one that comes with cloud-init.
    pub fn parse(text: &str) -> Result<Self, SchemaError> {
        Schema::given(text).map(Self)
    }
}
