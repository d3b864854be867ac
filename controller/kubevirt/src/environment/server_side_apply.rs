//! Server-side apply of one manager: it owns the fields that it applied last and that nobody has changed since. A list is
//! one field, as in KubeVirt's schemas.

use serde_json::Value;

/// Whether an apply without force would change a field that another client owns. `before`: what was applied last.
pub(super) fn conflicts(live: &Value, before: &Value, desired: &Value) -> bool {
    match desired {
        Value::Object(fields) => fields
            .iter()
            .any(|(key, desired)| conflicts(&live[key], &before[key], desired)),
        desired => {
            // A client that writes the value which is there owns it, too.
            !live.is_null() && live != desired && live != before
        }
    }
}

/// Sets the fields of `desired`, and removes those that only `before` has.
pub(super) fn set(live: &mut Value, before: &Value, desired: &Value) {
    let Value::Object(fields) = desired else {
        *live = desired.clone();
        return;
    };
    if !live.is_object() {
        *live = Value::Object(serde_json::Map::new());
    }
    let former = before.as_object().into_iter().flatten();
    for (key, before) in former.filter(|(key, _)| !fields.contains_key(*key)) {
        remove(live, key, before);
    }
    for (key, desired) in fields {
        set(&mut live[key], &before[key], desired);
    }
}

/// Removes a field that was applied, but not what others have set below it.
fn remove(live: &mut Value, key: &str, before: &Value) {
    for (inner, before) in before.as_object().into_iter().flatten() {
        remove(&mut live[key], inner, before);
    }
    let is_rest = live[key].as_object().is_some_and(|rest| !rest.is_empty());
    if let Some(fields) = live.as_object_mut().filter(|_| !is_rest) {
        fields.remove(key);
    }
}
