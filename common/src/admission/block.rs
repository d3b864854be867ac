//! Blocks as JSON text: comparison, differences, source field of a block's field, summary.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::api::normalized::{AnyDisk, Normalized};
use crate::bounds::LABEL_KEY_MAX;
use crate::json::Json;
use crate::rules::{self, BLOCK};
use crate::violation::{Findings, Violation};
use crate::words::cut;

/// Path of the version of the block.
pub(super) const VERSION: &str = "spec.normalized.version";
/// Longest summary in characters. With the text around it the warning has 120, the length that
/// Kubernetes recommends.
const SUMMARY_MAX: usize = 108;

/// Initial capacity of a block's text in bytes; nearly every block fits.
const TEXT_CAPACITY: usize = 2048;

/// Most values of a block that an answer names one by one. A block that was sent may have any number of fields.
const EDITS_MAX: usize = 16;

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
    let mut text = Vec::with_capacity(TEXT_CAPACITY);
    serde_json::to_writer(&mut text, block).ok()?;
    String::from_utf8(text).ok()
}

/// The values that differ between two blocks.
pub(super) struct Differences {
    /// Their paths, each as long as both blocks have it, at most [`EDITS_MAX`].
    pub(super) paths: Vec<String>,
    /// Number of the others.
    more: usize,
}

impl Differences {
    pub(super) fn between(left: &str, right: &str) -> Self {
        let parse = |text| serde_json::from_str::<Value>(text).unwrap_or_default();
        let mut differences = Self {
            paths: vec![],
            more: 0,
        };
        differences.compare(&mut BLOCK.to_owned(), &parse(left), &parse(right));
        differences
    }

    fn compare(&mut self, path: &mut String, left: &Value, right: &Value) {
        let end = path.len();
        match (left, right) {
            _ if left == right => {}
            (Value::Object(left), Value::Object(right)) => {
                let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
                for key in keys {
                    let [left, right] =
                        [left, right].map(|fields| fields.get(key).unwrap_or(&Value::Null));
                    if !push_key(path, key) {
                        self.add(path);
                        continue;
                    }
                    self.compare(path, left, right);
                    path.truncate(end);
                }
            }
            (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
                for (index, (left, right)) in left.iter().zip(right).enumerate() {
                    path.extend(["[", &index.to_string(), "]"]);
                    self.compare(path, left, right);
                    path.truncate(end);
                }
            }
            _ => self.add(path),
        }
    }

    fn add(&mut self, path: &str) {
        if self.paths.last().is_some_and(|last| last == path) {
            return;
        }
        if self.paths.len() < EDITS_MAX {
            self.paths.push(path.to_owned());
        } else {
            self.more += 1;
        }
    }

    /// Refuses each; those beyond [`EDITS_MAX`] are counted.
    pub(super) fn deny(&self, fault: fn(&str, &str) -> Violation, findings: &mut Findings) {
        for path in &self.paths {
            findings.deny(fault(path, &source_of(path)));
        }
        if self.more > 0 {
            let mut others = fault(BLOCK, "");
            others.detail = rules::more_differences(self.more);
            findings.deny(others);
        }
    }
}

/// Extends the path of an object by one of its keys; false for a key that cannot be part of a path.
fn push_key(path: &mut String, key: &str) -> bool {
    let is_shown = key.len() <= LABEL_KEY_MAX && !key.contains(|c: char| c.is_control());
    if is_shown && key.contains(['.', '/']) {
        path.extend(["[", key, "]"]);
    } else if is_shown {
        path.push('.');
        path.push_str(key);
    }
    is_shown
}

/// The field of the spec that a field of the block is computed from.
fn source_of(block_path: &str) -> String {
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
        "annotationKeys" => return "annotations.allow of a MachinePolicy".to_owned(),
        "machineType" => "domain.machine.type",
        "firmware" => "domain.firmware.bootloader",
        "tpm" => "domain.devices.tpm",
        "hardware" => {
            let field = match rest.split(['.', '[']).nth(1) {
                Some("cpuModel") => "spec.resources.cpu.model",
                Some("dedicatedCpu") => "spec.resources.cpu.dedicated",
                Some("hugepages") => "spec.resources.memory.hugepages",
                _ => "spec.devices",
            };
            return field.to_owned();
        }
        "existingDisks" => "disks",
        "overrides" => "backendOverrides.kubevirt",
        "timezone" => "domain.clock.timezone",
        "features" => return format!("spec.domain.{rest}"),
        known @ ("template"
        | "backend"
        | "os"
        | "console"
        | "display"
        | "powerState"
        | "guestShutdownStops"
        | "deletionProtection"
        | "disks"
        | "cdroms"
        | "networks"
        | "nodeSelector"
        | "evictionStrategy"
        | "placement"
        | "probes"
        | "watchdog"
        | "terminationGracePeriodSeconds") => known,
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
        let disks = block.all_disks();
        for disk in &disks {
            match disk {
                AnyDisk::Own(disk) => {
                    write!(f, "{separator}{} {}", disk.name, disk.size)?;
                    if !disk.storage_class.is_empty() {
                        write!(f, " on {}", disk.storage_class)?;
                    }
                }
                AnyDisk::Existing(disk) => {
                    write!(f, "{separator}{} is {}", disk.name, disk.source())?;
                }
            }
            separator = ", ";
        }
        if !disks.is_empty() {
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
