//! What netplan requires between the devices of network data of version 2: references that are defined, members
//! of one device only, routes of one family. A JSON Schema cannot express it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::addresses::{self, Family};
use super::diagnostics::Diagnostic;
use super::messages;
use super::position::{Position, PositionTree};
use crate::code::Code;

/// The sections of devices, in the order of netplan's reference.
const SECTIONS: [&str; 12] = [
    "ethernets",
    "wifis",
    "modems",
    "bridges",
    "bonds",
    "tunnels",
    "vlans",
    "vrfs",
    "dummy-devices",
    "virtual-ethernets",
    "xfrm-interfaces",
    "nm-devices",
];

/// A device of the document.
struct Device<'d> {
    section: &'static str,
    name: &'d str,
    settings: &'d Value,
    /// Position of its name.
    at: Position,
    positions: &'d PositionTree,
}

/// A setting that names another device.
struct Reference<'d> {
    /// Path of the setting in its device.
    path: String,
    name: Cow<'d, str>,
    at: Position,
}

/// Whether a key of a document is a section of devices.
pub(super) fn is_section(key: &str) -> bool {
    SECTIONS.contains(&key)
}

/// Faults between the devices of the document.
pub(super) fn check(fields: &Map<String, Value>, positions: &PositionTree) -> Vec<Diagnostic> {
    let devices: Vec<_> = SECTIONS
        .into_iter()
        .flat_map(|section| devices(section, fields, positions))
        .collect();
    let mut found = Vec::new();
    let mut defined: HashSet<&str> = ports(fields);
    let mut sections: HashMap<&str, &str> = HashMap::new();
    for device in &devices {
        let first = *sections.entry(device.name).or_insert(device.section);
        if !defined.insert(device.name) {
            let section = if first == device.section {
                "openvswitch.ports"
            } else {
                first
            };
            let text = format!("has the name of a device of {section}; each needs its own");
            found.push(device.fault(device.at, "", &text));
        }
    }
    let mut joined = HashMap::new();
    for device in &devices {
        for member in device.members() {
            let kind = device.section == "vrfs";
            let of = (device.section, device.name);
            let first = *joined.entry((kind, member.name.clone())).or_insert(of);
            if first != of {
                let (section, other) = (first.0, messages::device(first.1));
                let text = format!("is a member of {section}.{other} already; it can join one");
                found.push(device.fault(member.at, &member.path, &text));
            }
        }
        let undefined = device.references().into_iter();
        found.extend(
            undefined
                .filter(|reference| !defined.contains(&*reference.name))
                .map(|reference| {
                    let text =
                        "is not defined in the document; add the device, such as under 'ethernets'";
                    device.fault(reference.at, &reference.path, text)
                }),
        );
        found.extend(device.set_name());
        found.extend(
            ["routes", "routing-policy"]
                .map(|key| device.families(key))
                .into_iter()
                .flatten(),
        );
    }
    found
}

/// The devices of a section. Its key `renderer` is none.
fn devices<'d>(
    section: &'static str,
    fields: &'d Map<String, Value>,
    positions: &'d PositionTree,
) -> Vec<Device<'d>> {
    let named = fields.get(section).and_then(Value::as_object);
    let positions = positions.field(section).map(|field| &field.value);
    let (Some(named), Some(positions)) = (named, positions) else {
        return vec![];
    };
    let devices = named.iter().filter(|(name, _)| *name != "renderer");
    let devices = devices.filter_map(|(name, settings)| {
        let field = positions.field(name)?;
        Some(Device {
            section,
            name,
            settings,
            at: field.key,
            positions: &field.value,
        })
    });
    devices.collect()
}

/// The ports that Open vSwitch creates.
fn ports(fields: &Map<String, Value>) -> HashSet<&str> {
    let pairs = fields
        .get("openvswitch")
        .and_then(|it| it["ports"].as_array());
    let pairs = pairs.into_iter().flatten().filter_map(Value::as_array);
    pairs.flatten().filter_map(Value::as_str).collect()
}

/// A scalar as netplan reads it, after cloud-init has written it.
fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

impl<'d> Device<'d> {
    fn fault(&self, at: Position, path: &str, text: &str) -> Diagnostic {
        let separator = if path.is_empty() { "" } else { "." };
        let subject = |name| format!("{}.{name}{separator}{path} {text}", self.section);
        let shown = messages::device(self.name);
        Diagnostic::new(at, Code::InvalidNetworkData, subject(shown))
            .with_identity(subject(self.name))
    }

    /// The setting at a path of keys, with its position.
    fn setting(&self, path: &[&str]) -> Option<(&'d Value, &'d PositionTree)> {
        path.iter().try_fold(
            (self.settings, self.positions),
            |(value, positions), key| Some((value.get(key)?, &positions.field(key)?.value)),
        )
    }

    /// The devices that it joins.
    fn members(&self) -> Vec<Reference<'d>> {
        if !["bonds", "bridges", "vrfs"].contains(&self.section) {
            return vec![];
        }
        let Some((list, positions)) = self.setting(&["interfaces"]) else {
            return vec![];
        };
        let items = list.as_array().into_iter().flatten().enumerate();
        let members = items.filter_map(|(index, member)| {
            Some(Reference {
                path: format!("interfaces[{index}]"),
                name: scalar(member)?,
                at: positions.item(index)?.at,
            })
        });
        members.collect()
    }

    /// Every setting that names another device.
    fn references(&self) -> Vec<Reference<'d>> {
        let mut references = self.members();
        let single: &[&[&str]] = match self.section {
            "ethernets" | "vlans" | "tunnels" => &[&["link"]],
            "virtual-ethernets" => &[&["peer"]],
            "bonds" => &[&["parameters", "primary"]],
            _ => &[],
        };
        references.extend(single.iter().filter_map(|path| {
            let (value, positions) = self.setting(path)?;
            Some(Reference {
                path: path.join("."),
                name: scalar(value)?,
                at: positions.at,
            })
        }));
        if self.section == "bridges" {
            for key in ["path-cost", "port-priority"] {
                references.extend(self.ports_of(key));
            }
        }
        references
    }

    /// The ports of a bridge that a parameter is about.
    fn ports_of(&self, key: &str) -> Vec<Reference<'d>> {
        let Some((Value::Object(ports), positions)) = self.setting(&["parameters", key]) else {
            return vec![];
        };
        let ports = ports.keys().filter_map(|port| {
            Some(Reference {
                path: format!("parameters.{key}.{}", messages::device(port)),
                name: port.as_str().into(),
                at: positions.field(port)?.key,
            })
        });
        ports.collect()
    }

    /// `set-name` needs a card to rename.
    fn set_name(&self) -> Option<Diagnostic> {
        let is_physical = ["ethernets", "wifis", "modems"].contains(&self.section);
        let field = self.positions.field("set-name").filter(|_| is_physical)?;
        let text = "needs 'match' beside it, which finds the card";
        let fault = || self.fault(field.key, "set-name", text);
        self.setting(&["match"]).is_none().then(fault)
    }

    /// Routes or rules between IPv4 and IPv6.
    fn families(&self, key: &str) -> Vec<Diagnostic> {
        let Some((Value::Array(items), positions)) = self.setting(&[key]) else {
            return vec![];
        };
        let mixed = items.iter().enumerate().filter_map(|(index, item)| {
            let ends = ["to", "via", "from"].map(|end| item[end].as_str());
            let families = ends.into_iter().flatten().filter_map(addresses::family);
            let families: HashSet<Family> = families.collect();
            let at = positions.item(index)?.at;
            let text = "has addresses of IPv4 and of IPv6; use one of the two";
            (families.len() > 1).then(|| self.fault(at, &format!("{key}[{index}]"), text))
        });
        mixed.collect()
    }
}
