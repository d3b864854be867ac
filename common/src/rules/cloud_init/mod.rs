//! What cloud-init is given, judged as cloud-init will read it in the guest.
//!
//! ```text
//! userData ──first line──▶ passes unread | ignored by cloud-init: refused | cloud-config ─┐
//! networkData ──version 1 or 2────────────────────────────────────────────────────────────┤
//!                    document: YAML 1.1, value and marks ◀────────────────────────────────┘
//!                        └──schema: ours, and the administrator's──▶ remarks ──▶ findings
//! ```
//!
//! | file | |
//! |---|---|
//! | `user_data`, `network` | the two documents |
//! | `document`, `compose`, `scalar` | YAML as PyYAML's safe loader reads it |
//! | `schema`, `words`, `*.json` | JSON Schemas, and what they have against a document |
//! | `addresses` | what is an address in network data |
//! | `remarks` | what is told of it: a bounded list, with lines and columns, without its content |
//!
//! A refusal is for what certainly does not work; what cloud-init copes with is a warning.

mod addresses;
mod compose;
mod document;
mod network;
mod remarks;
mod scalar;
mod schema;
mod user_data;
mod words;

pub use schema::SchemaError;

use self::schema::Schema;
use crate::api::choice::Backend;
use crate::api::machine::{CloudInit, SecretKeyRef};
use crate::bounds::{OBJECT_NAME_MAX, USER_DATA_MAX};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::names;
use crate::render::CloudInitPlan;
use crate::violation::{Findings, Kind, Location, Violation};

use super::{form, limits};

/// What most sources of user data take at most, in bytes. AWS documents it of EC2's: 16 KB.
const PORTABLE_MAX: usize = 16 * 1024;

/// A JSON Schema of cloud-config that an administrator gives, beside the one built in.
#[derive(Debug)]
pub struct CloudInitSchema(Schema);

impl CloudInitSchema {
    /// Reads and compiles a schema, such as the one that comes with cloud-init.
    pub fn parse(text: &str) -> Result<Self, SchemaError> {
        Schema::given(text).map(Self)
    }
}

/// A schema of this folder.
#[expect(
    clippy::expect_used,
    reason = "every schema of this folder is compiled by a test"
)]
fn ours(text: &str) -> Schema {
    Schema::ours(text).expect("a schema of this folder")
}

/// What cloud-init of the Machine of this name is given: the documents, and the references of Secrets.
pub(crate) fn judge(
    given: &CloudInit,
    backend: Backend,
    machine: &str,
    schema: Option<&CloudInitSchema>,
    findings: &mut Findings,
) {
    limits::cloud_init(given, findings);
    // What is too long is told, and not read.
    let fits = |text: &&str| text.chars().count() <= USER_DATA_MAX;
    if let Some(text) = given.user_data.as_deref().filter(fits) {
        let remarks = user_data::judge(text, schema);
        remarks::tell("spec.cloudInit.userData", remarks, findings);
    }
    if let Some(text) = given.network_data.as_deref().filter(fits) {
        let remarks = network::judge(text);
        remarks::tell("spec.cloudInit.networkData", remarks, findings);
    }
    if backend == Backend::Libvirt {
        large(given, findings);
    }
    // A libvirt host is handed the contents; and a Machine may have no name yet.
    let may_own = backend == Backend::Kubevirt && form::is_label(machine);
    let own = (may_own && CloudInitPlan::from(given).needs_secret())
        .then(|| names::cloud_init_secret(machine));
    secrets(given, own.as_deref(), findings);
}

/// Rule [`Code::LargeCloudInit`]. On KubeVirt the controller puts what is long into a Secret.
fn large(given: &CloudInit, findings: &mut Findings) {
    for (location, text) in limits::documents(given) {
        let bytes = text.map_or(0, str::len);
        if bytes > PORTABLE_MAX {
            let text = format!(
                "{location} has {bytes} bytes; more than {PORTABLE_MAX} arrive on libvirt, but on few clouds"
            );
            findings.warn(Code::LargeCloudInit, &text);
        }
    }
}

/// Rules [`Code::SecretNameRequired`], [`Code::SecretIgnored`], [`Code::NameInUse`]: no Secret of the
/// user has the name of the Machine's `own`. An inline text that is empty is as absent.
fn secrets(given: &CloudInit, own: Option<&str>, findings: &mut Findings) {
    let references = [
        (
            "cloudInit.secretRef",
            "userData",
            &given.secret_ref,
            &given.user_data,
        ),
        (
            "cloudInit.networkDataSecretRef",
            "networkData",
            &given.network_data_secret_ref,
            &given.network_data,
        ),
    ];
    for (field, inline_name, reference, inline) in references {
        let Some(reference) = reference else {
            continue;
        };
        secret(field, reference, findings);
        if inline.as_ref().is_some_and(|text| !text.is_empty()) {
            let text = format!(
                "spec.{field} is not used: cloudInit.{inline_name} is given inline and wins"
            );
            findings.warn(Code::SecretIgnored, &text);
        } else if let (Some(name), true) = (own, own == reference.name.as_deref()) {
            let detail = "the data would be kept in a Secret of this name, made for the Machine; give your Secret another name";
            let location = Location::from(FieldPath::field(field)).member("name");
            let fault = Violation::new(location, Code::NameInUse, Kind::Duplicate, detail);
            findings.deny(fault.text(name));
        }
    }
}

/// A reference to a Secret: rules [`Code::SecretNameRequired`], [`Code::InvalidObjectName`].
fn secret(field: &'static str, reference: &SecretKeyRef, findings: &mut Findings) {
    let location = Location::from(FieldPath::field(field));
    let name = location.clone().member("name");
    form::secret_name(name, reference.name.as_deref(), findings);
    // Keys become names of files, so Kubernetes has none that lead elsewhere.
    let is_key = |key: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        (1..=OBJECT_NAME_MAX).contains(&key.len())
            && key.bytes().all(inner)
            && key != "."
            && !key.starts_with("..")
    };
    if let Some(key) = reference.key.as_deref().filter(|key| !is_key(key)) {
        let detail = format!(
            "a key of a Secret is letters, digits, '-', '_' and '.', at most {OBJECT_NAME_MAX}, and is neither '.' nor begins with '..'"
        );
        let location = location.member("key");
        let fault = Violation::new(location, Code::InvalidObjectName, Kind::Invalid, detail);
        findings.deny(fault.text(key));
    }
}
