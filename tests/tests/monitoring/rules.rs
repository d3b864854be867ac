//! The rules that are shipped.

use std::fs;

use lab::paths;
use serde_json::Value;

/// The groups of rules.yaml.
pub(crate) fn groups() -> Vec<Value> {
    let file = paths::repository().join("manifests/monitoring/rules.yaml");
    let text = fs::read_to_string(file).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    rules["spec"]["groups"].as_array().unwrap().clone()
}

/// The alerts and recording rules of these groups.
pub(crate) fn rules_of(groups: &[Value]) -> Vec<Value> {
    let rules = groups.iter();
    let rules = rules.flat_map(|group| group["rules"].as_array().unwrap());
    rules.cloned().collect()
}
