//! Network data: which version it is of, and the document against the schema of that version.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

use super::document::{Document, Mark, Marks};
use super::ours;
use super::remarks::Remark;
use super::schema::{Codes, Schema};
use crate::code::Code;

const CODES: Codes = Codes {
    invalid: Code::InvalidNetworkData,
    unknown: Code::UnknownCloudInitKey,
    doubtful: Code::DoubtfulCloudInit,
    // cloud-init stops at most of these, and the machine is left without a network.
    empty: Code::InvalidNetworkData,
};

static VERSION_1: LazyLock<Schema> = LazyLock::new(|| ours(include_str!("network-v1.json")));
static VERSION_2: LazyLock<Schema> = LazyLock::new(|| ours(include_str!("network-v2.json")));

/// Rules [`Code::InvalidNetworkData`], [`Code::InvalidYaml`], [`Code::DuplicateYamlKey`],
/// [`Code::UnknownCloudInitKey`], [`Code::DoubtfulCloudInit`].
pub(super) fn judge(text: &str) -> Vec<Remark> {
    let Document {
        mut value,
        mut marks,
        mut remarks,
    } = match Document::read(text) {
        Ok(document) => document,
        Err(remark) => return vec![remark],
    };
    // Netplan's own files have everything under this key, and cloud-init takes them.
    if let (Some(inner), Some(inner_marks)) = (value.get_mut("network"), marks.field("network")) {
        (value, marks) = (inner.take(), inner_marks.value.clone());
    }
    let fault = |mark: Mark, text| Remark::new(mark, Code::InvalidNetworkData, text);
    let version_mark = marks
        .field("version")
        .map_or(marks.at, |field| field.value.at);
    let (schema, further) = match &value {
        Value::Null => return remarks,
        Value::Object(fields) if fields.get("config") == Some(&Value::from("disabled")) => {
            return remarks;
        }
        Value::Object(fields) => match fields.get("version").map(Value::as_f64) {
            Some(Some(1.0)) => (&*VERSION_1, nameservers_of_nobody(fields, &marks)),
            Some(Some(2.0)) => (&*VERSION_2, vec![]),
            Some(_) => {
                remarks.push(fault(version_mark, "version must be the number 1 or 2"));
                return remarks;
            }
            None => {
                let text = "the document lacks 'version'; add 'version: 2'";
                remarks.push(fault(version_mark, text));
                return remarks;
            }
        },
        _ => {
            let text = "the document must be a mapping with 'version', 1 or 2";
            remarks.push(fault(marks.at, text));
            return remarks;
        }
    };
    let document = Document {
        value,
        marks,
        remarks,
    };
    let objections = schema.judge(&document, |_, _| true);
    let objections = objections.into_iter().map(|one| one.remark(CODES));
    let remarks = document.remarks.into_iter().chain(objections);
    remarks.chain(further).collect()
}

/// Name servers of version 1 that are of an interface which no device of the document has, nor joins as
/// a member: `NetworkStateInterpreter.parse_config_v1` of `cloudinit/net/network_state.py` stops there.
fn nameservers_of_nobody(fields: &serde_json::Map<String, Value>, marks: &Marks) -> Vec<Remark> {
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
    let strangers = items().enumerate().filter_map(|(index, item)| {
        let is_nameserver = item.get("type").is_some_and(|kind| kind == "nameserver");
        let interface = item.get("interface")?.as_str()?;
        if !is_nameserver || interfaces.contains(interface) {
            return None;
        }
        let mark = marks
            .field("config")?
            .value
            .item(index)?
            .field("interface")?;
        let text =
            "interface is none of the document's; name one of its devices, or leave it out for all";
        let remark = Remark::new(mark.value.at, Code::InvalidNetworkData, text);
        Some(remark.known_as(format!("interface of a nameserver: {interface}")))
    });
    strangers.collect()
}
