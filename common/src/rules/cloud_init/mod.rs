//! The data for cloud-init, validated as cloud-init will read it in the guest.
//!
//! ```text
//! userData ──first line──▶ passes unread | ignored by cloud-init: refused | cloud-config ─┐
//! networkData ──version 1 or 2────────────────────────────────────────────────────────────┤
//!                    document: YAML 1.1, value and positions ◀────────────────────────────────┘
//!                        └──schema: ours, and the administrator's──▶ diagnostics ──▶ findings
//! ```
//!
//! | file | |
//! |---|---|
//! | `user_data`, `network` | the two documents |
//! | `object` | a document that is an object in place of a text: paths in place of positions |
//! | `format` | the format of user data by its first line |
//! | `netplan` | what netplan requires between the devices of a network |
//! | `document`, `compose`, `scalar`, `quotes` | YAML as PyYAML's safe loader reads it |
//! | `syntax` | the cause of an error of the parser |
//! | `schema`, `messages`, `*.json` | JSON Schemas, and their violations in a document |
//! | `addresses` | what is an address in network data |
//! | `diagnostics` | the faults of a document: a bounded list, with lines and columns, without its content |
//!
//! A fault that certainly fails in the guest is refused; one that cloud-init tolerates is a warning.

mod addresses;
mod compose;
mod diagnostics;
mod document;
mod format;
pub(super) mod messages;
mod netplan;
mod network;
mod object;
mod position;
mod quotes;
mod scalar;
pub(super) mod schema;
mod syntax;
mod user_data;

use std::collections::BTreeMap;

pub use schema::{CloudInitSchema, SchemaError};

use self::schema::Schema;
use crate::api::choice::Backend;
use crate::api::machine::{CloudInit, OpenObject, SecretKeyRef, is_object, is_text};
use crate::bounds::{OBJECT_NAME_MAX, TEMPLATE_DATA_MAX, USER_DATA_MAX};
use crate::catalog::Catalog;
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::names;
use crate::normalize::Merged;
use crate::render::CloudInitPlan;
use crate::violation::{Findings, Kind, Location, Violation};

use super::rule::{Check, Lookup, Settings, rules};
use super::{form, guest_os, limits};

rules! {
    "cloud-init" Check::Lookup(lengths), on MACHINES, Always, and [TooLong, TooMany] {}
    "cloud-init" Check::Lookup(given_twice), on MACHINES, Always {
        Refuse CloudInitGivenTwice = "A part of cloud-init's data is given as a text and as an object."
            because "Both are the same document, and only one can be used."
            fix "Keep one of the two; an empty text and an empty object count as absent."
            crd All,
    }
    "cloud-init" Check::Lookup(answer_file), on MACHINES, Always, and [SecretNameRequired, InvalidObjectName] {
        Refuse SysprepExclusive = "An answer file of Windows Setup is beside data for cloud-init."
            because "A guest is set up by one of the two."
            fix "Keep `sysprep`, or the other fields."
            crd All,
        Refuse SysprepNeedsWindows = "There is an answer file of Windows Setup, and the guest is not Windows."
            because "Nothing else reads it, and defaults such as the bus of disks follow from `os`."
            fix "Set `os: windows`, or drop `sysprep`."
            crd Nothing,
    }
    "cloud-init" Check::Content(of_template), on TEMPLATES, Always, and [
        TooLong, TooMany, CloudInitGivenTwice, UnknownUserData, InvalidYaml, DuplicateYamlKey,
        InvalidCloudConfig, InvalidNetworkData, UnknownCloudInitKey, DoubtfulCloudInit
    ] {}
    "cloud-init" Check::Lookup(documents), on MACHINES, Always {
        Refuse UnknownUserData = "The first line of the user data has no format that cloud-init supports."
            because "cloud-init ignores such a text, and the machine comes up as if there were none."
            fix "Add `#cloud-config` as the first line, or `#!/bin/sh` for a script. What is meant for another program than cloud-init goes into a Secret, which is passed on unread."
            crd Nothing,
        Refuse InvalidYaml = "User data or network data is not YAML as cloud-init reads it."
            because "cloud-init drops the whole document, and reports it only in a log inside the guest, which cannot be reached."
            fix "Correct the line and column that the message names; they count within the text. Data in the form of an object has no such fault."
            crd Nothing,
        Warn DuplicateYamlKey = "A mapping of user data or network data has a key twice; the last value is used."
            because "The first value is dropped without a message."
            fix "Put both into one, or remove one of them."
            crd Nothing,
        Refuse InvalidCloudConfig = "A value of the user data is not what cloud-init takes there."
            because "The module of cloud-init fails or ignores the value, and users, keys or packages are missing in the guest."
            fix "Write the value in the form that the message names."
            crd Nothing,
        Refuse InvalidNetworkData = "The network data, or a value of it, is not what cloud-init takes there."
            because "cloud-init gives up on the whole document, and the machine comes up without its network."
            fix "Write the value in the form that the message names; `version` is the number 1 or 2."
            crd Nothing,
        Warn UnknownCloudInitKey = "cloud-init does not support a key of user data or network data."
            because "cloud-init ignores keys that it does not support; a misspelled key has no effect."
            fix "Correct the key; ignore the warning if the image has a module of its own."
            crd Nothing,
        Warn DoubtfulCloudInit = "A value of user data or network data does not have the documented form, and cloud-init accepts it nevertheless."
            because "A number is not the text it looks like (`0644` is 420), and later releases may be stricter."
            fix "Write the value in the form that the message names."
            crd Nothing,
    }
    "cloud-init" Check::Lookup(large), on MACHINES, Always {
        Warn LargeCloudInit = "User data or network data on libvirt is longer than 16 KiB."
            because "A libvirt host gives the guest the data on an ISO image, which has no such limit. Other sources of data have lower limits, that of EC2 16 KB, so the same document works on few clouds."
            fix "Nothing, or keep large files where `#include` or `runcmd` can fetch them."
            crd Nothing,
    }
    "cloud-init" Check::Lookup(secrets), on MACHINES, Always, and [InvalidObjectName, NameInUse] {
        Refuse SecretNameRequired = "A reference to a Secret names none."
            because "There is nothing to read from."
            fix "Name the Secret."
            crd All,
        Warn SecretIgnored = "Both inline cloud-init data and a Secret are given; the inline data wins."
            because "Both give the same document, and only one can be used."
            fix "Remove one of the two."
            crd Nothing,
    }
}

/// Limit of most sources of user data, in bytes. AWS documents 16 KB for EC2.
const PORTABLE_MAX: usize = 16 * 1024;

/// A schema of this folder.
#[expect(
    clippy::expect_used,
    reason = "every schema of this folder is compiled by a test"
)]
fn built_in(text: &str) -> Schema {
    Schema::built_in(text).expect("a schema of this folder")
}

/// Rules [`Code::TooLong`] and [`Code::TooMany`] for cloud-init's data.
fn lengths(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    if let Some(given) = &lookup.merged.user().cloud_init {
        limits::cloud_init(given, USER_DATA_MAX, findings);
        for (field, object) in objects(given) {
            object::fits(field, object, findings);
        }
    }
}

/// Rule [`Code::CloudInitGivenTwice`].
fn given_twice(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    if let Some(given) = &lookup.merged.user().cloud_init {
        check_given_once(given, findings);
    }
}

fn check_given_once(given: &CloudInit, findings: &mut Findings) {
    let parts = [
        (&given.user_data, &given.cloud_config, USER_DATA_FIELDS),
        (&given.network_data, &given.network_config, NETWORK_FIELDS),
    ];
    for (text, object, [text_field, object_field]) in parts {
        if is_text(text.as_ref()) && is_object(object.as_ref()) {
            let detail = format!("is the same part as {text_field}; give one of the two");
            let code = Code::CloudInitGivenTwice;
            findings.deny(Violation::new(object_field, code, Kind::Forbidden, detail));
        }
    }
}

/// Rules [`Code::SysprepExclusive`] and [`Code::SysprepNeedsWindows`].
fn answer_file(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let merged = lookup.merged;
    let Some(given) = &merged.user().cloud_init else {
        return;
    };
    let Some(sysprep) = &given.sysprep else {
        return;
    };
    let field = FieldPath::field("cloudInit.sysprep");
    let name = sysprep.secret_ref.as_ref();
    let name = name.and_then(|secret| secret.name.as_deref());
    let at = FieldPath::field("cloudInit.sysprep.secretRef");
    form::secret_name(Location::from(at).member("name"), name, findings);
    for (other, is_given) in [
        ("cloudInit.userData", given.user_data.is_some()),
        ("cloudInit.cloudConfig", given.cloud_config.is_some()),
        ("cloudInit.networkData", given.network_data.is_some()),
        ("cloudInit.networkConfig", given.network_config.is_some()),
        ("cloudInit.metaData", given.meta_data.is_some()),
        ("cloudInit.secretRef", given.secret_ref.is_some()),
        (
            "cloudInit.networkDataSecretRef",
            given.network_data_secret_ref.is_some(),
        ),
    ] {
        if is_given {
            let detail = "cloudInit.sysprep is an answer file in place of all data for cloud-init; drop one of the two";
            let (code, path) = (Code::SysprepExclusive, FieldPath::field(other));
            findings.deny(Violation::new(path, code, Kind::Forbidden, detail).unless_faulty(field));
        }
    }
    if !guest_os::is_windows(merged) && merged.is_complete() {
        let detail = "only Windows Setup reads an answer file; set os: windows, or drop sysprep";
        let code = Code::SysprepNeedsWindows;
        let fault = Violation::new(field, code, Kind::Forbidden, detail);
        findings.deny(fault.unless_faulty(guest_os::family(merged).path));
    }
}

/// The fields of user data: the text and the object.
const USER_DATA_FIELDS: [&str; 2] = ["spec.cloudInit.userData", "spec.cloudInit.cloudConfig"];
/// The fields of network data: the text and the object.
const NETWORK_FIELDS: [&str; 2] = ["spec.cloudInit.networkData", "spec.cloudInit.networkConfig"];

/// The documents that are objects, each with its field.
fn objects(given: &CloudInit) -> impl Iterator<Item = (&'static str, &OpenObject)> {
    [
        (USER_DATA_FIELDS[1], &given.cloud_config),
        (NETWORK_FIELDS[1], &given.network_config),
    ]
    .into_iter()
    .filter_map(|(field, object)| Some((field, object.as_ref()?)))
}

/// The rules about the data of a template. Its Machines get what was checked here.
fn of_template(merged: &Merged<'_>, _: &dyn Catalog, settings: &Settings, findings: &mut Findings) {
    let Some(given) = &merged.user().cloud_init else {
        return;
    };
    limits::cloud_init(given, TEMPLATE_DATA_MAX, findings);
    for (field, object) in objects(given) {
        object::fits(field, object, findings);
    }
    check_given_once(given, findings);
    check_documents(merged, given, settings, findings);
}

/// The rules about the two documents of a Machine.
fn documents(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    if let Some(given) = &lookup.merged.user().cloud_init {
        check_documents(lookup.merged, given, lookup.settings, findings);
    }
}

/// A document that is too long is not read, and neither is the text of user data for Windows, where other programs than
/// cloud-init read it.
fn check_documents(
    merged: &Merged<'_>,
    given: &CloudInit,
    settings: &Settings,
    findings: &mut Findings,
) {
    let is_windows = guest_os::is_windows(merged);
    let schema = settings.cloud_init_schema.as_deref();
    let fits = |text: &&str| text.chars().count() <= USER_DATA_MAX;
    let is_readable = |object: &&OpenObject| {
        is_object(Some(object)) && object::fits("", object, &mut Findings::default())
    };
    let user_data = given.user_data.as_deref().filter(|_| !is_windows);
    if let Some(text) = user_data.filter(fits) {
        let diagnostics = user_data::check(text, schema);
        diagnostics::report(USER_DATA_FIELDS[0], diagnostics, findings);
    }
    if let Some(config) = given.cloud_config.as_ref().filter(is_readable) {
        let diagnostics = user_data::check_document(object::read(config), schema);
        let is_shown = |_, key: &str| user_data::knows(key, schema);
        object::report(
            USER_DATA_FIELDS[1],
            config,
            diagnostics,
            &is_shown,
            findings,
        );
    }
    if let Some(text) = given.network_data.as_deref().filter(fits) {
        let diagnostics = network::check(text);
        diagnostics::report(NETWORK_FIELDS[0], diagnostics, findings);
    }
    if let Some(config) = given.network_config.as_ref().filter(is_readable) {
        let diagnostics = network::check_document(object::read(config), false);
        // Devices are named below the sections, or below those of netplan's own key.
        let is_shown = |depth, key: &str| {
            network::knows(key) || matches!(depth, 1 | 2) && object::is_device(key)
        };
        object::report(NETWORK_FIELDS[1], config, diagnostics, &is_shown, findings);
    }
}

/// Rule [`Code::LargeCloudInit`]. On KubeVirt the controller puts long data into a Secret.
fn large(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let Some(given) = &lookup.merged.user().cloud_init else {
        return;
    };
    if lookup.backend != Backend::Libvirt {
        return;
    }
    for (location, bytes) in limits::documents(given) {
        if bytes > PORTABLE_MAX {
            let text = format!(
                "{location} has {bytes} bytes; more than {PORTABLE_MAX} work on libvirt, but on few clouds"
            );
            findings.warn(Code::LargeCloudInit, &text);
        }
    }
}

/// Rules [`Code::SecretNameRequired`], [`Code::SecretIgnored`], [`Code::NameInUse`]: no Secret of the
/// user has the name of the Secret that the controller makes for the Machine. An empty inline text counts
/// as absent. A libvirt host gets the contents, and a Machine may have no name yet.
fn secrets(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let Some(given) = &lookup.merged.user().cloud_init else {
        return;
    };
    let with_template = lookup.merged.cloud_init().unwrap_or_default();
    let machine = lookup.machine.name;
    let may_own = lookup.backend == Backend::Kubevirt && form::is_label(machine);
    let own = (may_own && CloudInitPlan::from(&with_template).needs_secret())
        .then(|| names::cloud_init_secret(machine));
    let own = own.as_deref();
    let references = [
        (
            "cloudInit.secretRef",
            if is_text(given.user_data.as_ref()) {
                "userData"
            } else {
                "cloudConfig"
            },
            &given.secret_ref,
            given.has_user_data(),
        ),
        (
            "cloudInit.networkDataSecretRef",
            if is_text(given.network_data.as_ref()) {
                "networkData"
            } else {
                "networkConfig"
            },
            &given.network_data_secret_ref,
            given.has_network_data(),
        ),
    ];
    for (field, inline_name, reference, is_inline) in references {
        let Some(reference) = reference else {
            continue;
        };
        secret(field, reference, findings);
        if is_inline {
            let text = format!(
                "spec.{field} is not used: cloudInit.{inline_name} is given inline and is used instead"
            );
            findings.warn(Code::SecretIgnored, &text);
        } else if let (Some(name), true) = (own, own == reference.name.as_deref()) {
            let detail = "the controller makes a Secret of this name for the Machine; give your Secret another name";
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
    // Keys become names of files, so Kubernetes allows none with a path in them.
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
