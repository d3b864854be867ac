//! Raw JSON to typed intent, with every value of a wrong type told by its path.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::lenient;
use crate::code::Code;
use crate::json::{Json, Text};
use crate::rules::limits::Truncate;
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

/// An object as sent, its spec still raw; of its status only the libvirt host that it is bound to.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Wire<'a> {
    #[serde(default)]
    pub(super) metadata: Metadata,
    #[serde(borrow, default)]
    pub(super) spec: Spec<'a>,
    #[serde(default, rename = "status", deserialize_with = "bound")]
    pub(super) host: Option<String>,
}

/// The libvirt host that a status names, if the status can be read.
fn bound<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let status = Option::<&RawValue>::deserialize(deserializer)?;
    let status = status.and_then(|status| serde_json::from_str::<Status>(status.get()).ok());
    Ok(status.and_then(|status| status.host))
}

#[derive(Deserialize)]
struct Status {
    host: Option<String>,
}

/// A spec as sent, with the text of the block apart: it is no part of the intent.
#[derive(Debug)]
pub(super) struct Spec<'a> {
    pub(super) intent: Json<'a>,
    /// Absent when it is null, as any field.
    pub(super) block: Option<Cow<'a, str>>,
}

impl Default for Spec<'_> {
    fn default() -> Self {
        Self {
            intent: Json::Null,
            block: None,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Spec<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Spec<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut fields, mut block) = (Vec::new(), None);
                while let Some(Text(key)) = map.next_key()? {
                    if key == "normalized" {
                        block = block_text(map.next_value::<&RawValue>()?.get());
                    } else {
                        fields.push((key, map.next_value()?));
                    }
                }
                Ok(Spec {
                    intent: Json::Object(fields.into()),
                    block,
                })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

fn block_text(text: &str) -> Option<Cow<'_, str>> {
    (text != "null").then_some(Cow::Borrowed(text))
}

/// Decodes an object. Faults of its metadata and a spec that is none are told, and leave an empty
/// one in its place.
pub(super) fn object<'a>(text: &'a str, findings: &mut Findings) -> Wire<'a> {
    let mut wire: Wire<'a> = match serde_json::from_str(text) {
        Ok(wire) => wire,
        Err(_) => piecemeal(text, findings),
    };
    match &wire.spec.intent {
        Json::Object(_) => return wire,
        Json::Null => {
            let detail = "give a spec: without one, nothing is wished for";
            findings.deny(Violation::new(
                "spec",
                Code::SpecRequired,
                Kind::Required,
                detail,
            ));
        }
        other => {
            lenient::read::<AnyObject>(other, "spec", findings);
        }
    }
    wire.spec.intent = Json::EMPTY;
    wire
}

/// An object, whatever its fields are.
#[derive(Default, Deserialize)]
struct AnyObject {}

/// An object that is not what it should be, taken apart.
fn piecemeal<'a>(text: &'a str, findings: &mut Findings) -> Wire<'a> {
    let mut value: Json<'a> = match serde_json::from_str(text) {
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
                spec: Spec {
                    intent: Json::EMPTY,
                    block: None,
                },
                host: None,
            };
        }
    };
    let metadata = value.take("metadata").unwrap_or(Json::Null);
    let mut intent = value.take("spec").unwrap_or(Json::Null);
    let block = intent.take("normalized").filter(|block| !block.is_null());
    Wire {
        metadata: if metadata.is_null() {
            Metadata::default()
        } else {
            lenient::read(&metadata, "metadata", findings)
        },
        spec: Spec {
            intent,
            block: block.and_then(|block| serde_json::to_string(&block).ok().map(Cow::Owned)),
        },
        host: None,
    }
}

/// Decodes a spec. What is longer than its bound `cut` tells and cuts, what is of the wrong type is told
/// and taken as empty.
pub(super) fn spec<T>(mut value: Json<'_>, cut: Truncate, findings: &mut Findings) -> T
where
    T: Default + for<'v> Deserialize<'v>,
{
    cut(&mut value, findings);
    lenient::read(&value, "spec", findings)
}
