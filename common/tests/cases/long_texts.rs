//! Long texts in the tables beside this file. Test crates include this file with `#[path]`.

use serde_json::Value;

/// Replaces every text `(x 5 times)` by `xxxxx`, so that a table can hold long ones.
#[expect(
    clippy::unwrap_used,
    reason = "a table that cannot be read fails the test"
)]
pub(crate) fn spell_out(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(spell_out),
        Value::Array(items) => items.iter_mut().for_each(spell_out),
        Value::String(text) => {
            let inside = text
                .strip_prefix('(')
                .and_then(|text| text.strip_suffix(" times)"));
            if let Some((what, count)) = inside.and_then(|inside| inside.split_once(' ')) {
                *text = what.repeat(count.parse().unwrap());
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
