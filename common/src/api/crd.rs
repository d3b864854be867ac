//! The CustomResourceDefinitions, generated from the types.

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::{
    LibvirtHost, Machine, MachineAddress, MachineImage, MachinePolicy, MachineTemplate,
    NetworkConfiguration,
};

/// A CustomResourceDefinition and the name of its file.
#[derive(Clone, Debug)]
pub struct CrdFile {
    /// File name below `manifests/crds`.
    pub file: &'static str,
    /// The definition.
    pub definition: Value,
}

/// The definitions of all kinds of the API, as they are in the manifests.
///
/// Guarantees: no `nullable` (a null in a manifest is dropped by the API server, as for built-in
/// kinds) and no `default` (the API server would write it into what the user wrote).
///
/// # Errors
/// If a definition cannot be represented as JSON; it has no input, so this would be a bug.
pub fn crd_files() -> Result<[CrdFile; 7], serde_json::Error> {
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
        file(
            "machinepolicies.yaml",
            serde_json::to_value(MachinePolicy::crd()),
        )?,
        file(
            "machineimages.yaml",
            serde_json::to_value(MachineImage::crd()),
        )?,
        file(
            "machineaddresses.yaml",
            serde_json::to_value(MachineAddress::crd()),
        )?,
    ])
}

/// JSON pointer of the block's schema in a definition.
const BLOCK: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/normalized";

/// Removes the CEL rules of a schema: the block holds the content of a template that may be older than
/// the rules.
fn without_rules(schema: &mut Value) {
    if let Value::Object(fields) = schema {
        fields.remove("x-kubernetes-validations");
        fields.values_mut().for_each(without_rules);
    }
}

/// Removes the parts of a schema that Rust's `Option` and unsigned integers add and Kubernetes does not
/// know.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| match key.as_str() {
                "nullable" => !value.is_boolean(),
                // A property with the name `default` is an object; a default value of ours never is.
                "default" => value.is_object(),
                _ => true,
            });
            if map.get("format").is_some_and(is_unsigned) {
                map.insert("format".into(), "int32".into());
            }
            // `kubectl explain` would print the line breaks of the doc comment.
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            // The enum of an `Option` of a choice contains null.
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

/// Whether a format is a Rust type that Kubernetes does not define.
fn is_unsigned(format: &Value) -> bool {
    format == "uint16" || format == "uint32"
}

/// A bound as an integer. schemars writes bounds as floats, but all bounds of the API are integers.
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

    /// Fields that are open objects: overrides of a Machine and of its block; cloud-init's data of a Machine, of a template,
    /// and of a template in a block.
    const OPEN: [&str; 8] = [
        "machines.yaml properties.spec.properties.backendOverrides.properties.kubevirt",
        "machines.yaml properties.spec.properties.cloudInit.properties.cloudConfig",
        "machines.yaml properties.spec.properties.cloudInit.properties.networkConfig",
        "machines.yaml properties.spec.properties.normalized.properties.overrides",
        "machines.yaml properties.spec.properties.normalized.properties.template.properties.content.properties.cloudInit.properties.cloudConfig",
        "machines.yaml properties.spec.properties.normalized.properties.template.properties.content.properties.cloudInit.properties.networkConfig",
        "machinetemplates.yaml properties.spec.properties.cloudInit.properties.cloudConfig",
        "machinetemplates.yaml properties.spec.properties.cloudInit.properties.networkConfig",
    ];

    #[test]
    fn no_schema_has_defaults_nullable_fields_or_other_unknown_fields_than_cloud_init_and_overrides()
     {
        let mut open = Vec::new();
        for CrdFile { file, definition } in crd_files().unwrap() {
            visit(file, &definition, &mut |path, key, value| {
                if key == "x-kubernetes-preserve-unknown-fields" {
                    let root = ".spec.versions[0].schema.openAPIV3Schema.";
                    open.push(path.replacen(root, " ", 1));
                }
                assert!(
                    key != "default" || value.get("type").is_some(),
                    "{path}.default"
                );
                assert!(key != "nullable" || !value.is_boolean(), "{path}.nullable");
            });
        }
        open.sort();
        assert_eq!(open, OPEN);
    }

    #[test]
    fn every_field_has_a_description() {
        for CrdFile { file, definition } in crd_files().unwrap() {
            visit(file, &definition, &mut |path, key, value| {
                // A condition describes no field.
                let is_field = path.ends_with(".properties") && !path.contains(".not.");
                if is_field && !path.ends_with("openAPIV3Schema.properties") {
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
