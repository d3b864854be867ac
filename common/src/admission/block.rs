//! Blocks as JSON text: comparison, first difference, source field of a block's field, summary.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::api::normalized::Normalized;
use crate::json::Json;
use crate::words::cut;

/// Path of the block.
pub(super) const BLOCK: &str = "spec.normalized";
/// Longest summary in characters. With the text around it the warning has 120, the length that
/// Kubernetes recommends.
const SUMMARY_MAX: usize = 108;

/// The text of a block as it was sent or stored. It may be any JSON.
pub(super) struct Block<'a>(pub(super) Cow<'a, str>);

/// The fields that are read from a block of any release. If the block cannot be read, all are absent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BlockHeader {
    pub(super) version: Option<u32>,
    pub(super) intent_hash: Option<String>,
    pub(super) backend: Option<String>,
    pub(super) template: Option<TemplateHeader>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TemplateHeader {
    pub(super) refresh: Option<String>,
}

impl Block<'_> {
    /// The block, if this release can read it.
    pub(super) fn parse(&self) -> Option<Normalized> {
        serde_json::from_str(&self.0).ok()
    }

    pub(super) fn header(&self) -> BlockHeader {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Whether both are the same JSON, ignoring the order of keys.
    pub(super) fn is_same_json(&self, other: &str) -> bool {
        let parse = |text| serde_json::from_str::<Json<'_>>(text).ok();
        self.0 == other || parse(&self.0).is_some_and(|own| Some(own) == parse(other))
    }
}

/// A block as JSON.
pub(super) fn text(block: &Normalized) -> Option<String> {
    serde_json::to_string(block).ok()
}

/// The path of the first value that differs between two blocks, as long as both have it.
pub(super) fn first_difference(left: &str, right: &str) -> String {
    let parse = |text| serde_json::from_str::<Value>(text).unwrap_or_default();
    difference(BLOCK, &parse(left), &parse(right))
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

/// The field of the spec that a field of the block is computed from.
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
        known @ ("template" | "backend" | "powerState" | "guestShutdownStops"
        | "deletionProtection" | "disks" | "cdroms" | "networks" | "nodeSelector") => known,
        _ => return "the rest of the spec".to_owned(),
    };
    format!("spec.{field}")
}

/// A summary of a block in one line.
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
