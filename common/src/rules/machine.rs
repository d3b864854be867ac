//! What concerns a Machine as a whole: backend, power state, node selector, references of
//! cloud-init.

use crate::api::choice::{Backend, PowerState};
use crate::api::machine::SecretKeyRef;
use crate::api::schema::OBJECT_NAME_MAX;
use crate::code::Code;
use crate::normalize::{Merged, Place};
use crate::violation::{Findings, Kind, Site, Violation};

use super::{form, limits};

/// The backend: rule [`Code::UnsupportedBackend`].
pub(crate) fn backend(
    merged: &Merged<'_>,
    pinned: Backend,
    findings: &mut Findings,
) -> Option<Backend> {
    let leaf = merged.own("backend", |spec| spec.backend.as_deref());
    form::choice(leaf, pinned, Code::UnsupportedBackend, findings)
}

/// The power state: rule [`Code::UnsupportedPowerState`].
pub(crate) fn power_state(merged: &Merged<'_>, findings: &mut Findings) -> Option<PowerState> {
    let leaf = merged.own("powerState", |spec| spec.power_state.as_deref());
    form::choice(
        leaf,
        PowerState::Running,
        Code::UnsupportedPowerState,
        findings,
    )
}

/// Rule [`Code::InvalidLabel`] for the node selector.
pub(crate) fn node_selector(merged: &Merged<'_>, findings: &mut Findings) {
    if let Some(labels) = &merged.user().node_selector {
        form::labels(Place::field("nodeSelector"), labels, findings);
    }
}

/// The references of cloud-init: rules [`Code::SecretNameRequired`], [`Code::SecretIgnored`]. What
/// the documents say is not judged here.
pub(crate) fn cloud_init(merged: &Merged<'_>, findings: &mut Findings) {
    let Some(cloud_init) = &merged.user().cloud_init else {
        return;
    };
    limits::cloud_init(cloud_init, findings);
    let references = [
        (
            "cloudInit.secretRef",
            "userData",
            &cloud_init.secret_ref,
            &cloud_init.user_data,
        ),
        (
            "cloudInit.networkDataSecretRef",
            "networkData",
            &cloud_init.network_data_secret_ref,
            &cloud_init.network_data,
        ),
    ];
    for (field, inline_name, reference, inline) in references {
        let Some(reference) = reference else {
            continue;
        };
        secret(field, reference, findings);
        if inline.is_some() {
            let text = format!(
                "spec.{field} is not used: cloudInit.{inline_name} is given inline and wins"
            );
            findings.warn(Code::SecretIgnored, &text);
        }
    }
}

/// A reference to a Secret: rules [`Code::SecretNameRequired`], [`Code::InvalidObjectName`].
fn secret(field: &'static str, reference: &SecretKeyRef, findings: &mut Findings) {
    let site = Site::from(Place::field(field));
    let name = site.clone().member("name");
    match reference.name.as_deref() {
        None | Some("") => {
            let detail = "name the Secret";
            let code = Code::SecretNameRequired;
            findings.deny(Violation::new(name, code, Kind::Required, detail));
        }
        Some(text) if !form::is_object_name(text) => {
            findings.deny(form::invalid_object_name(name, text));
        }
        Some(_) => {}
    }
    let is_key = |key: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        (1..=OBJECT_NAME_MAX).contains(&key.len()) && key.bytes().all(inner)
    };
    if let Some(key) = reference.key.as_deref().filter(|key| !is_key(key)) {
        let detail = format!(
            "a key of a Secret is letters, digits, '-', '_' and '.', at most {OBJECT_NAME_MAX}"
        );
        let site = site.member("key");
        let fault = Violation::new(site, Code::InvalidObjectName, Kind::Invalid, detail);
        findings.deny(fault.text(key));
    }
}
