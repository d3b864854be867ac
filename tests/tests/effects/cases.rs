//! The changes of `cases.yaml`.

use common::rules::update::Field;
use serde::Deserialize;
use serde_json::{Value, json};

/// All changes.
#[derive(Deserialize)]
pub(crate) struct Cases {
    pub(crate) refused: Vec<Change>,
    pub(crate) accepted: Vec<Change>,
}

/// A change of one field.
#[derive(Deserialize)]
pub(crate) struct Change {
    /// Name of the row.
    field: String,
    place: String,
    value: Value,
    #[serde(default)]
    pub(crate) pending: Vec<String>,
}

pub(crate) fn all() -> Cases {
    serde_saphyr::from_str(include_str!("cases.yaml")).unwrap()
}

impl Change {
    /// The row of the table.
    pub(crate) fn field(&self) -> Field {
        let mut rows = Field::ALL.iter();
        *rows.find(|row| format!("{row:?}") == self.field).unwrap()
    }

    /// Makes the change in a spec.
    pub(crate) fn set(&self, spec: &mut Value) {
        let (parent, last) = self.place.rsplit_once('/').unwrap();
        let mut at = spec;
        for part in parent.split('/').skip(1) {
            at = match part.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[part],
            };
        }
        match at {
            Value::Array(items) if last == "-" => items.push(self.value.clone()),
            at if last == "-" => *at = json!([self.value]),
            at => at[last] = self.value.clone(),
        }
    }
}
