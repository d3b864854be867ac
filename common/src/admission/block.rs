//! Blocks as JSON: what differs between two, where it comes from, what one says.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::api::normalized::Normalized;
use crate::json::Json;
use crate::words::cut;

/// Where the block stands.
pub(super) const BLOCK: &str = "spec.normalized";
/// Most characters of the line that says what an intent became: with its frame 120, the length that
/// Kubernetes recommends for a warning.
const SUMMARY_MAX: usize = 108;

/// The text of a block as it was sent or stored, whatever it is.
pub(super) struct Block<'a>(pub(super) Cow<'a, str>);

/// What is looked at in a block of any release; what cannot be read is as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Peek {
    pub(super) version: Option<u32>,
    pub(super) intent_hash: Option<String>,
    pub(super) backend: Option<String>,
    pub(super) template: Option<PeekTemplate>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PeekTemplate {
    pub(super) refresh: Option<String>,
}

impl Block<'_> {
    /// The block, if this release can read it.
    pub(super) fn read(&self) -> Option<Normalized> {
        serde_json::from_str(&self.0).ok()
    }

    pub(super) fn peek(&self) -> Peek {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Whether this is the same JSON, whatever the order of its keys.
    pub(super) fn is(&self, other: &str) -> bool {
        let read = |text| serde_json::from_str::<Json<'_>>(text).ok();
        self.0 == other || read(&self.0).is_some_and(|own| Some(own) == read(other))
    }
}

/// A block as JSON.
pub(super) fn text(block: &Normalized) -> Option<String> {
    serde_json::to_string(block).ok()
}

/// The path of the first value that differs between two blocks, as deep as both have it.
pub(super) fn first_difference(left: &str, right: &str) -> String {
    let read = |text| serde_json::from_str::<Value>(text).unwrap_or_default();
    difference(BLOCK, &read(left), &read(right))
}

fn difference(path: &str, left: &Value, right: &Value) -> String {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => left
            .keys()
            .chain(right.keys())
            .find(|key| left.get(*key) != right.get(*key))
            .map_or(path.to_owned(), |key| {
                let (left, right) = (
                    left.get(key).unwrap_or(&Value::Null),
                    right.get(key).unwrap_or(&Value::Null),
                );
                let path = if key.contains(['.', '/']) {
                    format!("{path}[{key}]")
                } else {
                    format!("{path}.{key}")
                };
                difference(&path, left, right)
            }),
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .enumerate()
            .find(|(_, (left, right))| left != right)
            .map_or(path.to_owned(), |(index, (left, right))| {
                difference(&format!("{path}[{index}]"), left, right)
            }),
        _ => path.to_owned(),
    }
}

/// The field of the intent that a field of the block comes from.
pub(super) fn source_of(block_path: &str) -> String {
    let rest = block_path
        .strip_prefix(BLOCK)
        .unwrap_or_default()
        .trim_start_matches('.');
    let first: String = rest
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect();
    let field = match first.as_str() {
        "cpu" | "memory" => return format!("spec.resources.{rest}"),
        "machineType" => "domain.machine.type",
        "firmware" => "domain.firmware.bootloader",
        "features" => return format!("spec.domain.{rest}"),
        known @ ("template" | "backend" | "powerState" | "guestShutdownStops" | "disks"
        | "cdroms" | "networks" | "nodeSelector") => known,
        _ => return "the rest of the spec".to_owned(),
    };
    format!("spec.{field}")
}

/// What a block says, in a line.
pub(super) fn summary(block: &Normalized) -> String {
    cut(&Summary(block).to_string(), SUMMARY_MAX)
}

struct Summary<'a>(&'a Normalized);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(block) = self;
        if let Some(pin) = &block.template {
            write!(f, "template {}; ", pin.name)?;
        }
        write!(f, "{} vCPU, {}; ", block.cpu.vcpus(), block.memory.size)?;
        let mut separator = "";
        for disk in &block.disks {
            write!(f, "{separator}{} {}", disk.name, disk.size)?;
            if !disk.storage_class.is_empty() {
                write!(f, " on {}", disk.storage_class)?;
            }
            separator = ", ";
        }
        if !block.disks.is_empty() {
            f.write_str("; ")?;
        }
        let mut separator = "NIC ";
        for nic in &block.networks {
            write!(f, "{separator}{}", nic.name)?;
            if let Some(network) = &nic.network_name {
                write!(f, " on {network}")?;
            }
            separator = ", ";
        }
        Ok(())
    }
}
