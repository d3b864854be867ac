//! The schema of the cluster's VirtualMachines, by which overrides are checked.

use std::fmt;

use jsonschema::ValidationError;
use serde_json::Value;

/// `openAPIV3Schema` of the served version of the CRD `virtualmachines.kubevirt.io`.
#[derive(Clone, PartialEq)]
pub struct VmSchema(Value);

impl fmt::Debug for VmSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmSchema").finish_non_exhaustive()
    }
}

/// Why a value does not fit the schema.
#[derive(Debug)]
pub enum SchemaMismatch {
    /// The object has no such field.
    UnknownField {
        /// The name of the field.
        field: String,
        /// Where the object is in the value, as `[0].match`; empty if it is on the path to the value.
        within: String,
        /// The fields that the object has.
        known: Vec<String>,
    },
    /// The value, or one in it, has another type, or is none of the allowed ones.
    Value(ValidationError<'static>),
}

impl VmSchema {
    /// The schema of a CRD's version.
    pub fn new(schema: Value) -> Self {
        Self(schema)
    }

    /// Why a field with this path cannot have the value; `None`: it can.
    pub fn mismatch(&self, path: &[&str], value: &Value) -> Option<SchemaMismatch> {
        let mut schema = &self.0;
        for name in path {
            schema = match field(schema, name) {
                Field::Open => return None,
                Field::Known(schema) => schema,
                Field::Unknown(known) => return Some(unknown(name, String::new(), known)),
            };
        }
        if let Some(unknown) = unknown_within(schema, value, "") {
            return Some(unknown);
        }
        let validator = jsonschema::validator_for(schema).ok()?;
        let mut errors = validator.iter_errors(value);
        errors
            .next()
            .map(|error| SchemaMismatch::Value(error.to_owned()))
    }
}

/// What a schema says of a field of its objects.
enum Field<'a> {
    /// Any field may be set, to any value.
    Open,
    Known(&'a Value),
    /// The fields that the object has.
    Unknown(Vec<String>),
}

fn field<'a>(schema: &'a Value, name: &str) -> Field<'a> {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return Field::Open;
    }
    let known = schema["properties"].as_object();
    let of_map = Some(&schema["additionalProperties"]).filter(|it| it.is_object());
    match known.and_then(|known| known.get(name)).or(of_map) {
        Some(found) => Field::Known(found),
        None => Field::Unknown(
            known
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone())
                .collect(),
        ),
    }
}

fn unknown(field: &str, within: String, known: Vec<String>) -> SchemaMismatch {
    let field = field.to_owned();
    SchemaMismatch::UnknownField {
        field,
        within,
        known,
    }
}

/// The first unknown field of the objects in a value. The schema of a CRD does not refuse them: the API server drops
/// them instead.
fn unknown_within(schema: &Value, value: &Value, within: &str) -> Option<SchemaMismatch> {
    match value {
        Value::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            unknown_within(&schema["items"], item, &format!("{within}[{index}]"))
        }),
        Value::Object(fields) => {
            fields
                .iter()
                .find_map(|(name, value)| match field(schema, name) {
                    Field::Open => None,
                    Field::Known(schema) => {
                        unknown_within(schema, value, &format!("{within}.{name}"))
                    }
                    Field::Unknown(known) => Some(unknown(name, within.to_owned(), known)),
                })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_fits_where_the_schema_has_its_field_and_type() {
        let schema = VmSchema::new(
            json!({"properties": {"spec": {"type": "object", "properties": {
                "policy": {"type": "string"},
                "count": {"type": "integer"},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "rules": {"type": "array", "items": {"type": "object", "properties": {
                    "match": {"type": "object", "properties": {"name": {"type": "string"}}},
                }}},
            }}}}),
        );
        let mismatch = |path: &[&str], value: Value| match schema.mismatch(path, &value) {
            None => String::new(),
            Some(SchemaMismatch::UnknownField {
                field,
                within,
                known,
            }) => format!("{field} in '{within}' of {}", known.join(" ")),
            Some(SchemaMismatch::Value(error)) => {
                format!("'{}' {}", error.instance_path(), error.kind().keyword())
            }
        };
        assert_eq!(mismatch(&["spec", "policy"], json!("auto")), "");
        assert_eq!(mismatch(&["spec", "open", "any", "thing"], json!(1)), "");
        assert_eq!(mismatch(&["spec", "labels", "a"], json!("b")), "");
        assert_eq!(
            mismatch(&["spec", "polici"], json!("auto")),
            "polici in '' of count labels open policy rules"
        );
        let rules = |value: Value| mismatch(&["spec", "rules"], json!([{}, {"match": value}]));
        assert_eq!(rules(json!({"name": "a"})), "");
        assert_eq!(rules(json!({"nane": "a"})), "nane in '[1].match' of name");
        assert_eq!(rules(json!({"name": 7})), "'/1/match/name' type");
        assert_eq!(mismatch(&["spec", "count"], json!("many")), "'' type");
        assert_eq!(mismatch(&["spec", "labels", "a"], json!(1)), "'' type");
    }
}
