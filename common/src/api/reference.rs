//! The reference of the API, generated from the schemas that the API server enforces.

use std::fmt::Write as _;

use serde_json::Value;

use super::CrdFile;

/// File name of the reference below `manifests/crds`.
pub const REFERENCE_FILE: &str = "README.md";

/// The reference of the kinds in `files`, in Markdown: each field with its type, bounds and
/// description.
pub fn reference(files: &[CrdFile]) -> String {
    let mut out = String::from(
        "# API reference\n\n\
         Generated from the CustomResourceDefinitions beside this file by `tests/lab generate`. The same \
         texts are shown by `kubectl explain machine.spec`.\n",
    );
    for CrdFile { file, definition } in files {
        let names = &definition["spec"]["names"];
        let version = &definition["spec"]["versions"][0];
        let root = &version["schema"]["openAPIV3Schema"];
        let scope = text(&definition["spec"]["scope"]).to_lowercase();
        let short = names["shortNames"]
            .as_array()
            .into_iter()
            .flatten()
            .map(text);
        let short = short.fold(String::new(), |all, name| {
            all + ", short name `" + name + "`"
        });
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "\n## {}\n\n{} `{}/{}`, {scope}, resource `{}`{short}. Schema: [{file}]({file}).",
            text(&names["kind"]),
            text(&root["description"]),
            text(&definition["spec"]["group"]),
            text(&version["name"]),
            text(&names["plural"]),
        );
        for part in ["spec", "status"] {
            let schema = &root["properties"][part];
            if schema.is_object() {
                out.push_str("\n| field | type | meaning |\n|---|---|---|\n");
                fields(&mut out, part, schema);
            }
        }
    }
    out
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// One row per field below `path`, parents before their children.
fn fields(out: &mut String, path: &str, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let required = schema["required"].as_array();
    for (name, field) in properties {
        let path = format!("{path}.{name}");
        let is_required = required.is_some_and(|names| names.iter().any(|known| known == name));
        let required = if is_required { ", required" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "| `{path}` | {}{required} | {} |",
            kind(field),
            text(&field["description"]).replace('|', "\\|"),
        );
        match text(&field["type"]) {
            "array" => fields(out, &format!("{path}[]"), &field["items"]),
            _ => fields(out, &path, field),
        }
    }
}

/// The type of a field with its bounds.
fn kind(field: &Value) -> String {
    if let Some(choices) = field["enum"].as_array() {
        return choices
            .iter()
            .map(|choice| format!("`{}`", text(choice)))
            .collect::<Vec<_>>()
            .join(" \\| ");
    }
    let name = match text(&field["type"]) {
        "array" => format!("list of {}", kind(&field["items"])),
        "object" if field["additionalProperties"].is_object() => {
            format!("map of {}", kind(&field["additionalProperties"]))
        }
        other => other.to_owned(),
    };
    let range = match (field["minimum"].as_i64(), field["maximum"].as_i64()) {
        (Some(min), Some(max)) => format!(" {min}–{max}"),
        (Some(min), None) => format!(" ≥ {min}"),
        (None, Some(max)) => format!(" ≤ {max}"),
        (None, None) => String::new(),
    };
    let most = ["maxLength", "maxItems", "maxProperties"]
        .into_iter()
        .find_map(|bound| field[bound].as_u64())
        .map_or_else(String::new, |max| format!(" ≤ {max}"));
    format!("{name}{range}{most}")
}

#[cfg(test)]
mod tests {
    use crate::api::crd_files;

    use super::reference;

    #[test]
    fn the_reference_lists_kinds_and_fields_with_type_and_bounds() {
        let text = reference(&crd_files().unwrap());
        for row in [
            "| `spec.disks[].storageClass` | string ≤ 253 | Name of the StorageClass",
            "| `spec.networks[].model` | `virtio` \\| `e1000` \\| `e1000e` \\| `rtl8139` |",
            "| `spec.disks[].name` | string ≤ 63, required |",
            "| `spec.vlan` | integer 1–4094 |",
            "| `spec.deprecated` | string ≤ 1024 |",
            "short name `mach`",
        ] {
            assert!(text.contains(row), "{row}\nis missing in\n{text}");
        }
    }
}
