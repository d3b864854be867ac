//! The schema of the cluster's VirtualMachines, by which overrides are judged.

use std::fmt;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The object has no field at this position of the path. The fields that it has.
    UnknownField(usize, Vec<String>),
    /// The value has another type, or is none of the allowed ones: what the schema says.
    Value(String),
}

impl VmSchema {
    /// The schema of a CRD's version.
    pub fn new(schema: Value) -> Self {
        Self(schema)
    }

    /// Why a field with this path cannot have the value; `None`: it can.
    pub fn misfit(&self, path: &[&str], value: &Value) -> Option<Misfit> {
        let mut schema = &self.0;
        for (position, field) in path.iter().enumerate() {
            if schema["x-kubernetes-preserve-unknown-fields"] == true {
                return None;
            }
            let known = schema["properties"].as_object();
            let of_map = Some(&schema["additionalProperties"]).filter(|it| it.is_object());
            let Some(found) = known.and_then(|known| known.get(*field)).or(of_map) else {
                let known = known.into_iter().flatten();
                let known = known.map(|(name, _)| name.clone()).collect();
                return Some(Misfit::UnknownField(position, known));
            };
            schema = found;
        }
        let validator = jsonschema::validator_for(schema).ok()?;
        let mut errors = validator.iter_errors(value);
        errors.next().map(|error| Misfit::Value(error.to_string()))
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
            }}}}),
        );
        let misfit = |path: &[&str], value: Value| schema.misfit(path, &value);
        assert_eq!(misfit(&["spec", "policy"], json!("auto")), None);
        assert_eq!(misfit(&["spec", "open", "any", "thing"], json!(1)), None);
        assert_eq!(misfit(&["spec", "labels", "a"], json!("b")), None);
        let known = ["count", "labels", "open", "policy"].map(str::to_owned);
        assert_eq!(
            misfit(&["spec", "polici"], json!("auto")),
            Some(Misfit::UnknownField(1, known.into()))
        );
        let wrong = misfit(&["spec", "count"], json!("many"));
        assert!(matches!(wrong, Some(Misfit::Value(text)) if text.contains("integer")));
        assert!(misfit(&["spec", "labels", "a"], json!(1)).is_some());
    }
}
