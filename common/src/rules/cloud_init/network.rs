//! Network data: which version it is of, and the document against the schema of that version.

use std::sync::LazyLock;

use serde_json::Value;

use super::document::{Document, Mark};
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
    let schema = match &value {
        Value::Null => return remarks,
        Value::Object(fields) if fields.get("config") == Some(&Value::from("disabled")) => {
            return remarks;
        }
        Value::Object(fields) => match fields.get("version").map(Value::as_f64) {
            Some(Some(1.0)) => &*VERSION_1,
            Some(Some(2.0)) => &*VERSION_2,
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
    document.remarks.into_iter().chain(objections).collect()
}
