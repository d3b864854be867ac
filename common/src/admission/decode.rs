//! Raw JSON to typed intent; reports every value of a wrong type with its path.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::lenient;
use crate::api::lenient::{or_absent, or_default, readable_items};
use crate::code::Code;
use crate::json::{Json, Text};
use crate::names;
use crate::rules::limits::Truncate;
use crate::rules::{GuestReport, PendingValue};
use crate::violation::{Findings, Kind, Violation};

/// The fields that a review reads from an object's metadata.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    name: Option<String>,
    generate_name: Option<String>,
    labels: Option<Labels>,
    annotations: Option<Annotations>,
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
struct Labels {
    #[serde(rename = "vitistack.io/machine-template")]
    template: Option<String>,
}

#[derive(Debug, Default)]
struct Annotations {
    refresh_template: Option<String>,
    discard_state: Option<String>,
    migrate_requested: Option<String>,
    migrate_to: Option<String>,
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Annotations;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut read = Annotations::default();
                while let Some(Text(key)) = map.next_key()? {
                    match &*key {
                        names::ANNOTATION_REFRESH_TEMPLATE => {
                            read.refresh_template = map.next_value()?;
                        }
                        names::ANNOTATION_DISCARD_STATE => read.discard_state = map.next_value()?,
                        names::ANNOTATION_MIGRATE_REQUESTED => {
                            read.migrate_requested = map.next_value()?;
                        }
                        names::ANNOTATION_MIGRATE_TO => read.migrate_to = map.next_value()?,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(read)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl Metadata {
    /// The name; empty until the API server has generated one from `generateName`.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The text that a generated name begins with, if the API server generates the name or has generated it.
    pub(super) fn generate_name(&self) -> Option<&str> {
        let prefix = self.generate_name.as_deref().filter(|it| !it.is_empty())?;
        let suffix = self.name().strip_prefix(names::base_of_generated(prefix));
        let is_generated = suffix.is_some_and(|suffix| suffix.len() == names::GENERATED_SUFFIX);
        (self.name().is_empty() || is_generated).then_some(prefix)
    }

    /// Whether the object is being deleted.
    pub(super) fn is_being_deleted(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The value of the label that names the template; an empty one counts as absent.
    pub(super) fn template_label(&self) -> Option<&str> {
        let label = self.labels.as_ref()?.template.as_deref();
        label.filter(|name| !name.is_empty())
    }

    /// The value of an annotation; an empty one counts as absent.
    fn annotation(&self, get: fn(&Annotations) -> Option<&String>) -> Option<&str> {
        let text = get(self.annotations.as_ref()?)?;
        Some(text.as_str()).filter(|text| !text.is_empty())
    }

    /// The value of the refresh annotation.
    pub(super) fn refresh(&self) -> Option<&str> {
        self.annotation(|it| it.refresh_template.as_ref())
    }

    /// The value of the annotation that requests a migration.
    pub(super) fn requested_migration(&self) -> Option<&str> {
        self.annotation(|it| it.migrate_requested.as_ref())
    }

    /// The node of the annotation that names the target of a migration.
    pub(super) fn migration_target(&self) -> Option<&str> {
        self.annotation(|it| it.migrate_to.as_ref())
    }

    /// The value of the annotation that names the state which may be discarded; empty without it.
    pub(super) fn discarded_state(&self) -> &str {
        self.annotation(|it| it.discard_state.as_ref())
            .unwrap_or_default()
    }
}

/// An object as sent, with an undecoded spec. Of its status only what rules depend on.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RawObject<'a> {
    #[serde(default)]
    pub(super) metadata: Metadata,
    #[serde(borrow, default)]
    pub(super) spec: Spec<'a>,
    #[serde(default, deserialize_with = "readable_status")]
    pub(super) status: Status,
}

/// The status of a Machine, empty if it is no object.
fn readable_status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Status, D::Error> {
    let status = Option::<&RawValue>::deserialize(deserializer)?;
    Ok(status.map_or_else(Status::default, |status| Status::read(status.get())))
}

/// The part of a Machine's status that rules depend on. Another release may have written it, so a value that cannot be read
/// loses its own field or item only.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Status {
    /// The libvirt host that the Machine is bound to.
    #[serde(deserialize_with = "or_absent")]
    pub(super) host: Option<String>,
    /// The node that the guest runs on.
    #[serde(deserialize_with = "or_absent")]
    pub(super) node_name: Option<String>,
    #[serde(deserialize_with = "readable_items")]
    volumes: Vec<VolumeState>,
    #[serde(deserialize_with = "readable_items")]
    kept_volumes: Vec<VolumeState>,
    #[serde(deserialize_with = "readable_items")]
    conditions: Vec<ConditionState>,
    #[serde(deserialize_with = "or_default")]
    last_migration: MigrationState,
    #[serde(deserialize_with = "readable_items")]
    pending_changes: Vec<PendingValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConditionState {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(deserialize_with = "or_default")]
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MigrationState {
    #[serde(deserialize_with = "or_absent")]
    request: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct VolumeState {
    name: String,
    #[serde(deserialize_with = "or_absent")]
    phase: Option<String>,
    #[serde(deserialize_with = "or_absent")]
    progress: Option<String>,
    #[serde(deserialize_with = "or_absent")]
    capacity: Option<String>,
}

impl Status {
    fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Names of the disks whose image is not yet in their volume, as far as the controller has reported.
    pub(super) fn incomplete_imports(&self) -> Vec<String> {
        let is_incomplete = |volume: &&VolumeState| {
            volume.progress.is_some() || volume.phase.as_deref() == Some("Pending")
        };
        let incomplete = self.volumes.iter().filter(is_incomplete);
        incomplete.map(|volume| volume.name.clone()).collect()
    }

    /// Names of the disks whose volume exists, as far as the controller has reported: only then it has a capacity.
    pub(super) fn made_volumes(&self) -> Vec<String> {
        let made = self.volumes.iter().filter(|it| it.capacity.is_some());
        made.map(|volume| volume.name.clone()).collect()
    }

    /// Names of the disks that left the spec and whose volumes are kept on the libvirt host.
    pub(super) fn kept_disks(&self) -> Vec<String> {
        let kept = self.kept_volumes.iter();
        kept.map(|volume| volume.name.clone()).collect()
    }

    /// The last request of a migration that the controller has answered.
    pub(super) fn last_migration(&self) -> Option<&str> {
        self.last_migration.request.as_deref()
    }

    /// Why KubeVirt cannot move the guest, as far as the controller has reported.
    pub(super) fn obstacle_to_migration(&self) -> Option<&str> {
        let mut conditions = self.conditions.iter();
        let is_obstacle =
            |it: &&ConditionState| it.kind == "LiveMigratable" && it.status == "False";
        conditions.find(is_obstacle).map(|it| &*it.message)
    }

    /// What rules read of the running guest.
    pub(super) fn guest_report(&self) -> GuestReport<'_> {
        let is = |kind: &str, status: &str| {
            let mut conditions = self.conditions.iter();
            conditions.any(|it| it.kind == kind && it.status == status)
        };
        let is_movable = is("LiveMigratable", "True").then_some(Ok(()));
        GuestReport {
            pending: &self.pending_changes,
            migration: self.obstacle_to_migration().map(Err).or(is_movable),
            waits_for_restart: is("RestartRequired", "True"),
        }
    }
}

/// A spec as sent. The block is separate, because it is not part of the intent.
#[derive(Debug)]
pub(super) struct Spec<'a> {
    pub(super) intent: Json<'a>,
    /// The block's text; absent if it is null, like any field.
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

/// Decodes an object. Reports faults of its metadata and a spec that is missing or not an object; the
/// result then has empty ones in their place.
pub(super) fn object<'a>(text: &'a str, findings: &mut Findings) -> RawObject<'a> {
    let mut raw: RawObject<'a> = match serde_json::from_str(text) {
        Ok(raw) => raw,
        Err(_) => object_by_parts(text, findings),
    };
    match &raw.spec.intent {
        Json::Object(_) => return raw,
        Json::Null => {
            let detail = "give a spec: it describes the desired state";
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
    raw.spec.intent = Json::EMPTY;
    raw
}

/// An object with any fields.
#[derive(Default, Deserialize)]
struct AnyObject {}

/// Decodes metadata, spec and status separately, for an object that cannot be decoded as a whole.
fn object_by_parts<'a>(text: &'a str, findings: &mut Findings) -> RawObject<'a> {
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
            return RawObject {
                metadata: Metadata::default(),
                spec: Spec {
                    intent: Json::EMPTY,
                    block: None,
                },
                status: Status::default(),
            };
        }
    };
    let metadata = value.take("metadata").unwrap_or(Json::Null);
    let mut intent = value.take("spec").unwrap_or(Json::Null);
    let block = intent.take("normalized").filter(|block| !block.is_null());
    let status = value.take("status");
    let status = status.and_then(|status| serde_json::to_string(&status).ok());
    RawObject {
        metadata: if metadata.is_null() {
            Metadata::default()
        } else {
            lenient::read(&metadata, "metadata", findings)
        },
        spec: Spec {
            intent,
            block: block.and_then(|block| serde_json::to_string(&block).ok().map(Cow::Owned)),
        },
        status: status.map_or_else(Status::default, |status| Status::read(&status)),
    }
}

/// Decodes a spec. `truncate` reports and shortens what is longer than its bound. A value of a wrong type is
/// reported and read as an empty one.
pub(super) fn spec<T>(mut value: Json<'_>, truncate: Truncate, findings: &mut Findings) -> T
where
    T: Default + for<'v> Deserialize<'v>,
{
    truncate(&mut value, findings);
    lenient::read(&value, "spec", findings)
}

#[cfg(test)]
mod tests;
