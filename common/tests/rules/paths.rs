//! Checks that the path of a violation exists in the object or in the schema of its kind.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use common::admission::ObjectKind;
use serde_json::Value;

use crate::harness::{kind_name, path, yaml};

static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    [
        "machines.yaml",
        "machinetemplates.yaml",
        "networkconfigurations.yaml",
        "libvirthosts.yaml",
        "machinepolicies.yaml",
        "machineimages.yaml",
    ]
    .map(|file| {
        let mut crd: Value = yaml(&path("../manifests/crds").join(file));
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap().to_owned();
        let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        (kind, schema.take())
    })
    .into()
});

/// The schema of a kind, as the manifests install it.
pub(crate) fn schema(kind: ObjectKind) -> &'static Value {
    &SCHEMAS[kind_name(kind)]
}

/// A part of a path.
#[derive(Debug, PartialEq, Eq)]
enum Step<'p> {
    Member(&'p str),
    /// A text in brackets: an index of a list or a key of a map.
    Bracketed(&'p str),
}

fn steps(path: &str) -> Vec<Step<'_>> {
    let mut steps = vec![];
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let (key, after) = inside.split_once(']').unwrap_or((inside, ""));
            steps.push(Step::Bracketed(key));
            rest = after.strip_prefix('.').unwrap_or(after);
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            steps.push(Step::Member(&rest[..end]));
            rest = rest[end..].strip_prefix('.').unwrap_or(&rest[end..]);
        }
    }
    steps
}

/// Whether `path` names a value of the object, or a field that its schema defines.
pub(crate) fn resolves(kind: ObjectKind, object: &Value, path: &str) -> bool {
    let steps = steps(path);
    let start = (Some(object), Some(schema(kind)));
    let found = steps.iter().try_fold(start, |(value, schema), step| {
        let next = match step {
            Step::Member(field) => (
                value.and_then(|value| value.get(field)),
                schema.and_then(|schema| schema["properties"].get(field)),
            ),
            Step::Bracketed(key) => match value {
                // A violation cannot refer to an item that does not exist.
                Some(Value::Array(items)) => (
                    Some(items.get(key.parse::<usize>().ok()?)?),
                    schema.and_then(|schema| schema.get("items")),
                ),
                other => (
                    other.and_then(|value| value.get(key)),
                    schema.and_then(|schema| schema.get("additionalProperties")),
                ),
            },
        };
        (next.0.is_some() || next.1.is_some()).then_some(next)
    });
    !steps.is_empty() && (found.is_some() || in_metadata(&steps))
}

/// Whether `path` names a value of the object.
pub(crate) fn is_written(object: &Value, path: &str) -> bool {
    let mut steps = steps(path).into_iter();
    let found = steps.try_fold(object, |value, step| match (step, value) {
        (Step::Bracketed(index), Value::Array(items)) => items.get(index.parse::<usize>().ok()?),
        (Step::Member(key) | Step::Bracketed(key), value) => value.get(key),
    });
    found.is_some()
}

/// Whether a path is in the metadata, which a CRD's schema does not describe.
fn in_metadata(steps: &[Step<'_>]) -> bool {
    matches!(
        steps,
        [Step::Member("metadata"), Step::Member("name")]
            | [
                Step::Member("metadata"),
                Step::Member("labels" | "annotations"),
                Step::Bracketed(_)
            ]
    )
}

#[test]
fn a_path_resolves_exactly_if_object_or_schema_has_the_field() {
    let object =
        serde_json::json!({"spec": {"disks": [{"name": "a"}], "nodeSelector": {"a.b/c": "d"}}});
    for (path, leads) in [
        ("spec", true),
        ("spec.disks[0].name", true),
        ("spec.disks[0].size", true),
        ("spec.disks[1].size", false),
        ("spec.nodeSelector[a.b/c]", true),
        ("spec.domain.firmware.bootloader.efi", true),
        ("metadata.name", true),
        ("metadata.labels[vitistack.io/machine-template]", true),
        ("spec.disk[0].name", false),
        ("spec.disks[0].capacity", false),
        ("spec.disks.size", false),
        ("spec.template.name", false),
        ("metadata.nam", false),
        ("", false),
    ] {
        assert_eq!(
            resolves(ObjectKind::Machine, &object, path),
            leads,
            "{path}"
        );
    }
}
