//! Network data: its version, and the validation of the document by the schema of that version.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

use super::built_in;
use super::diagnostics::Diagnostic;
use super::document::Document;
use super::format;
use super::netplan;
use super::position::{Position, PositionTree};
use super::schema::{Codes, Schema};
use crate::code::Code;

const CODES: Codes = Codes {
    invalid: Code::InvalidNetworkData,
    unknown: Code::UnknownCloudInitKey,
    doubtful: Code::DoubtfulCloudInit,
    // cloud-init fails at most of these faults, and the machine has no network.
    empty: Code::InvalidNetworkData,
};

const IS_USER_DATA: &str =
    "the document begins with '#cloud-config' and has no 'version'; give user data as userData";

static VERSION_1: LazyLock<Schema> = LazyLock::new(|| built_in(include_str!("network-v1.json")));
static VERSION_2: LazyLock<Schema> = LazyLock::new(|| built_in(include_str!("network-v2.json")));

/// Rules [`Code::InvalidNetworkData`], [`Code::InvalidYaml`], [`Code::DuplicateYamlKey`],
/// [`Code::UnknownCloudInitKey`], [`Code::DoubtfulCloudInit`].
pub(super) fn check(text: &str) -> Vec<Diagnostic> {
    match Document::read(text) {
        Ok(document) => check_document(document, format::is_cloud_config(text)),
        Err(diagnostic) => vec![diagnostic],
    }
}

/// Whether messages may quote a key.
pub(super) fn knows(key: &str) -> bool {
    VERSION_1.has_key(key) || VERSION_2.has_key(key)
}

/// [`check`] of a document that was read. `is_user_data`: whether its first line is that of a cloud-config.
pub(super) fn check_document(document: Document, is_user_data: bool) -> Vec<Diagnostic> {
    let Document {
        mut value,
        mut positions,
        mut diagnostics,
    } = document;
    // Netplan's own files have everything under this key, and cloud-init accepts them.
    if let (Some(inner), Some(inner_positions)) =
        (value.get_mut("network"), positions.field("network"))
    {
        (value, positions) = (inner.take(), inner_positions.value.clone());
    }
    let fault =
        |position: Position, text| Diagnostic::new(position, Code::InvalidNetworkData, text);
    let version_position = positions
        .field("version")
        .map_or(positions.at, |field| field.value.at);
    let (schema, further) = match &value {
        Value::Null => return diagnostics,
        Value::Object(fields) if fields.get("config") == Some(&Value::from("disabled")) => {
            return diagnostics;
        }
        Value::Object(fields) => match fields.get("version").map(Value::as_f64) {
            Some(Some(1.0)) => (
                &*VERSION_1,
                nameservers_of_unknown_interfaces(fields, &positions),
            ),
            Some(Some(2.0)) => (&*VERSION_2, netplan::check(fields, &positions)),
            Some(_) => {
                diagnostics.push(fault(version_position, "version must be the number 1 or 2"));
                return diagnostics;
            }
            None => {
                let has_devices = fields
                    .keys()
                    .any(|key| key == "config" || netplan::is_section(key));
                let text = if is_user_data && !has_devices {
                    IS_USER_DATA
                } else {
                    "the document lacks 'version'; add 'version: 2'"
                };
                diagnostics.push(fault(version_position, text));
                return diagnostics;
            }
        },
        _ => {
            let text = if is_user_data {
                IS_USER_DATA
            } else {
                "the document must be a mapping with 'version', 1 or 2"
            };
            diagnostics.push(fault(positions.at, text));
            return diagnostics;
        }
    };
    let document = Document {
        value,
        positions,
        diagnostics,
    };
    let violations = schema.check(&document, |_, _| true);
    let violations = violations.into_iter().map(|one| one.diagnostic(CODES));
    let diagnostics = document.diagnostics.into_iter().chain(violations);
    diagnostics.chain(further).collect()
}

/// Name servers of version 1 that are of an interface which no device of the document has, nor joins as
/// a member: `NetworkStateInterpreter.parse_config_v1` of `cloudinit/net/network_state.py` stops there.
fn nameservers_of_unknown_interfaces(
    fields: &serde_json::Map<String, Value>,
    positions: &PositionTree,
) -> Vec<Diagnostic> {
    let items = || {
        fields
            .get("config")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let named = items().filter_map(|item| item.get("name"));
    let members = items()
        .flat_map(|item| [item.get("bond_interfaces"), item.get("bridge_interfaces")])
        .filter_map(|list| list?.as_array())
        .flatten();
    let interfaces: BTreeSet<&str> = named.chain(members).filter_map(Value::as_str).collect();
    let unknown = items().enumerate().filter_map(|(index, item)| {
        let is_nameserver = item.get("type").is_some_and(|kind| kind == "nameserver");
        let interface = item.get("interface")?.as_str()?;
        if !is_nameserver || interfaces.contains(interface) {
            return None;
        }
        let position = positions
            .field("config")?
            .value
            .item(index)?
            .field("interface")?;
        let text = format!(
            "config[{index}].interface is not in the document; name one of its devices, or leave it out for all"
        );
        let diagnostic = Diagnostic::new(position.value.at, Code::InvalidNetworkData, text);
        Some(diagnostic.with_identity(format!("interface of a nameserver: {interface}")))
    });
    unknown.collect()
}
