//! Arbitrary JSON, and objects with arbitrary JSON in place of one value.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

/// Any JSON, as deep as a spec.
pub(crate) fn any_json() -> BoxedStrategy<Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9.:/_-]{0,12}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let key = prop_oneof![select(KEYS).prop_map(str::to_owned), any::<String>()];
    scalar
        .prop_recursive(6, 48, 6, move |inner| {
            prop_oneof![
                vec(inner.clone(), 0..5).prop_map(Value::from),
                vec((key.clone(), inner), 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
        .boxed()
}

/// Keys that the rules read.
const KEYS: &[&str] = &[
    "metadata",
    "labels",
    "vitistack.io/machine-template",
    "annotations",
    "name",
    "spec",
    "template",
    "resources",
    "cpu",
    "cores",
    "memory",
    "size",
    "disks",
    "image",
    "url",
    "selector",
    "matchLabels",
    "remove",
    "networks",
    "networkName",
    "macAddress",
    "bootOrder",
    "cdroms",
    "cloudInit",
    "metaData",
    "secretRef",
    "domain",
    "firmware",
    "bootloader",
    "nodeSelector",
    "normalized",
    "intentHash",
    "version",
    "content",
    "bridge",
    "vlan",
    "uri",
    "virtType",
    "credentialsSecretRef",
    "overcommit",
    "reserved",
    "storage",
    "storageClass",
    "source",
    "vlans",
];

/// Replaces one value inside `object` by `value`.
pub(crate) fn replace(object: &mut Value, place: Index, value: Value) {
    fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
        let mut below = |key: &str, value: &Value| {
            let key = key.replace('~', "~0").replace('/', "~1");
            let at = format!("{at}/{key}");
            all.push(at.clone());
            pointers(value, &at, all);
        };
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| below(key, value)),
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(index, value)| below(&index.to_string(), value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut all = vec![];
    pointers(object, "", &mut all);
    *object.pointer_mut(&all[place.index(all.len())]).unwrap() = value;
}
