//! JSON merge patches (RFC 7396) that set values and remove none.

use serde_json::{Map, Value};

/// Sets every value of the patch in the target. A list is one value.
pub fn set(target: &mut Value, patch: &Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else {
        return;
    };
    for (key, value) in patch {
        let field = fields.entry(key.clone()).or_insert(Value::Null);
        match value {
            Value::Object(inner) => set(field, inner),
            value => field.clone_from(value),
        }
    }
}

/// The path of every value of the patch, with the value: `spec.template.spec.domain.ioThreadsPolicy`. An object without
/// fields is a value.
pub fn values(patch: &Map<String, Value>) -> Vec<(Vec<&str>, &Value)> {
    let mut found = Vec::new();
    let mut parents = Vec::new();
    collect(patch, &mut parents, &mut found);
    found
}

fn collect<'p>(
    patch: &'p Map<String, Value>,
    parents: &mut Vec<&'p str>,
    found: &mut Vec<(Vec<&'p str>, &'p Value)>,
) {
    for (key, value) in patch {
        parents.push(key);
        match value {
            Value::Object(inner) if !inner.is_empty() => collect(inner, parents, found),
            value => found.push((parents.clone(), value)),
        }
        parents.pop();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patch(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(fields) => fields,
            other => panic!("{other} is no object"),
        }
    }

    #[test]
    fn a_patch_sets_its_values_and_keeps_all_others() {
        let mut target = json!({"spec": {"a": 1, "list": [1, 2], "text": "x"}});
        let patch = patch(json!({"spec": {"list": [3], "text": {"b": true}, "new": {"c": {}}}}));
        set(&mut target, &patch);
        let expected =
            json!({"spec": {"a": 1, "list": [3], "text": {"b": true}, "new": {"c": {}}}});
        assert_eq!(target, expected);
        let paths = values(&patch).into_iter().map(|(path, _)| path.join("."));
        let paths: Vec<_> = paths.collect();
        assert_eq!(paths, ["spec.list", "spec.new.c", "spec.text.b"]);
    }
}
