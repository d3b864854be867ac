//! The CustomResourceDefinitions, generated from the types.

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::{LibvirtHost, Machine, MachineTemplate, NetworkConfiguration};

/// A CustomResourceDefinition and the name of the file it is kept in.
#[derive(Clone, Debug)]
pub struct CrdFile {
    /// File name below `manifests/crds`.
    pub file: &'static str,
    /// The definition.
    pub definition: Value,
}

/// The definitions of every kind of the API, as the manifests hold them.
///
/// Guarantees: no `nullable` (a null in a manifest is dropped by the API server, as for built-in
/// kinds) and no `default` (the API server would write it into what the user wrote).
///
/// # Errors
/// When a definition cannot be represented as JSON, which no input can bring about.
pub fn crd_files() -> Result<[CrdFile; 4], serde_json::Error> {
    let file = |file, definition: Result<Value, serde_json::Error>| {
        let mut definition = definition?;
        tidy(&mut definition);
        if let Some(block) = definition.pointer_mut(BLOCK) {
            without_rules(block);
        }
        Ok(CrdFile { file, definition })
    };
    Ok([
        file("machines.yaml", serde_json::to_value(Machine::crd()))?,
        file(
            "machinetemplates.yaml",
            serde_json::to_value(MachineTemplate::crd()),
        )?,
        file(
            "networkconfigurations.yaml",
            serde_json::to_value(NetworkConfiguration::crd()),
        )?,
        file(
            "libvirthosts.yaml",
            serde_json::to_value(LibvirtHost::crd()),
        )?,
    ])
}

/// The schema of the block in a definition.
const BLOCK: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/normalized";

/// Takes the CEL rules out of a schema: the block holds a template as it was, whatever that was.
fn without_rules(schema: &mut Value) {
    if let Value::Object(fields) = schema {
        fields.remove("x-kubernetes-validations");
        fields.values_mut().for_each(without_rules);
    }
}

/// Removes what Rust's `Option` and `u32` bring into a schema and Kubernetes has no use for.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| match key.as_str() {
                "nullable" => !value.is_boolean(),
                // A property of that name has an object as its value, a default of ours has none.
                "default" => value.is_object(),
                _ => true,
            });
            if map.get("format").is_some_and(is_unsigned) {
                map.insert("format".into(), "int32".into());
            }
            // A doc comment's line breaks mean nothing to who reads `kubectl explain`.
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            // An `Option` of a choice allows null among its words.
            if let Some(Value::Array(words)) = map.get_mut("enum") {
                words.retain(|word| !word.is_null());
            }
            for bound in ["minimum", "maximum"] {
                if let Some(whole) = map.get(bound).and_then(Value::as_f64).and_then(whole) {
                    map.insert(bound.into(), whole.into());
                }
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Whether a format is one of Rust's that Kubernetes does not know.
fn is_unsigned(format: &Value) -> bool {
    format == "uint16" || format == "uint32"
}

/// The integer that a bound is; every bound of the API is one, but its Kubernetes type is a float.
#[expect(
    clippy::cast_possible_truncation,
    reason = "checked to be whole and small"
)]
fn whole(bound: f64) -> Option<i64> {
    (bound.fract() == 0.0 && bound.abs() < 1e15).then_some(bound as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(path: &str, value: &Value, check: &mut dyn FnMut(&str, &str, &Value)) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    check(path, key, value);
                    visit(&format!("{path}.{key}"), value, check);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    visit(&format!("{path}[{index}]"), value, check);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn nothing_writes_into_a_spec_or_escapes_the_schema() {
        for CrdFile { file, definition } in crd_files().unwrap() {
            visit(file, &definition, &mut |path, key, value| {
                assert_ne!(key, "x-kubernetes-preserve-unknown-fields", "{path}");
                assert!(
                    key != "default" || value.get("type").is_some(),
                    "{path}.default"
                );
                assert!(key != "nullable" || !value.is_boolean(), "{path}.nullable");
            });
        }
    }

    #[test]
    fn every_field_is_described() {
        for CrdFile { file, definition } in crd_files().unwrap() {
            visit(file, &definition, &mut |path, key, value| {
                if path.ends_with(".properties") && !path.ends_with("openAPIV3Schema.properties") {
                    assert!(
                        value
                            .get("description")
                            .and_then(Value::as_str)
                            .is_some_and(|d| d.len() > 3),
                        "{path}.{key} has no description"
                    );
                }
            });
        }
    }

    #[test]
    fn every_list_key_is_required() {
        for CrdFile { file, definition } in crd_files().unwrap() {
            visit(file, &definition, &mut |path, key, value| {
                if key == "properties" {
                    for (name, schema) in value.as_object().into_iter().flatten() {
                        for list_key in schema
                            .get("x-kubernetes-list-map-keys")
                            .and_then(Value::as_array)
                            .into_iter()
                            .flatten()
                        {
                            let required = schema["items"]["required"].as_array();
                            assert!(
                                required.is_some_and(|keys| keys.contains(list_key)),
                                "{path}.{name}: list key {list_key} is not required"
                            );
                        }
                    }
                }
            });
        }
    }
}
