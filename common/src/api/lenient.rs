//! Reads an object field by field: a value that this release does not support is read as absent, and the
//! other fields are kept.

use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Deserializer};
use serde_json::Value;

/// Reads a value; one that this release cannot read is absent.
pub fn or_absent<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// Reads a value; one that this release cannot read is the default.
pub fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    or_absent(deserializer).map(Option::unwrap_or_default)
}

/// Reads a list and leaves out the items that this release cannot read.
pub fn readable_items<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let Value::Array(items) = Value::deserialize(deserializer)? else {
        return Ok(vec![]);
    };
    let read = |item| serde_json::from_value(item).ok();
    Ok(items.into_iter().filter_map(read).collect())
}
