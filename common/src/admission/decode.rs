//! Raw JSON to typed intent, with every value of a wrong type told by its path.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::lenient;
use crate::code::Code;
use crate::rules::limits;
use crate::violation::{Findings, Kind, Violation};

/// What is read of an object's metadata.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Metadata {
    name: Option<String>,
    labels: Option<Labels>,
    annotations: Option<Annotations>,
}

#[derive(Debug, Default, Deserialize)]
struct Labels {
    #[serde(rename = "vitistack.io/machine-template")]
    template: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Annotations {
    #[serde(rename = "machine.vitistack.io/refresh-template")]
    refresh_template: Option<String>,
}

impl Metadata {
    /// The name; empty while the API server has yet to make one of `generateName`.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The label that names the template. Without a value it is as absent.
    pub(super) fn template_label(&self) -> Option<&str> {
        let label = self.labels.as_ref()?.template.as_deref();
        label.filter(|name| !name.is_empty())
    }

    /// The text of the refresh annotation. Without a text it is as absent.
    pub(super) fn refresh(&self) -> Option<&str> {
        let text = self.annotations.as_ref()?.refresh_template.as_deref();
        text.filter(|text| !text.is_empty())
    }
}

/// An object as sent, its spec still raw.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Wire {
    #[serde(default)]
    pub(super) metadata: Metadata,
    #[serde(default)]
    pub(super) spec: Value,
}

/// Decodes an object. Faults of its metadata and a spec that is none are told, and leave an empty
/// one in its place.
pub(super) fn object(text: &str, findings: &mut Findings) -> Wire {
    let mut wire: Wire = match serde_json::from_str(text) {
        Ok(wire) => wire,
        Err(_) => piecemeal(text, findings),
    };
    match &wire.spec {
        Value::Object(_) => return wire,
        Value::Null => {
            let detail = "give a spec: without one, nothing is wished for";
            findings.deny(Violation::new(
                "spec",
                Code::SpecRequired,
                Kind::Required,
                detail,
            ));
        }
        other => {
            lenient::read::<Map<String, Value>>(other, "spec", findings);
        }
    }
    wire.spec = Value::Object(Map::new());
    wire
}

/// An object that is not what it should be, taken apart.
fn piecemeal(text: &str, findings: &mut Findings) -> Wire {
    let mut value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            let detail = format!("the object cannot be read ({error})");
            findings.deny(Violation::new(
                "spec",
                Code::Unreadable,
                Kind::Invalid,
                detail,
            ));
            return Wire {
                metadata: Metadata::default(),
                spec: Value::Object(Map::new()),
            };
        }
    };
    let metadata = value.get("metadata").unwrap_or(&Value::Null);
    Wire {
        metadata: if metadata.is_null() {
            Metadata::default()
        } else {
            lenient::read(metadata, "metadata", findings)
        },
        spec: value.get_mut("spec").map(Value::take).unwrap_or_default(),
    }
}

/// Decodes a spec. What is longer than its bound is told and cut, what is of the wrong type is told
/// and taken as empty.
pub(super) fn spec<T>(mut value: Value, findings: &mut Findings) -> T
where
    T: Default + for<'v> Deserialize<'v>,
{
    limits::cut_lists(&mut value, findings);
    lenient::read(&value, "spec", findings)
}
