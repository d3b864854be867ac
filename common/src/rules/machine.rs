//! What concerns a Machine as a whole: backend, power state, node selector, references of
//! cloud-init.

use crate::api::choice::{Backend, Choice as _, PowerState};
use crate::api::machine::SecretKeyRef;
use crate::api::schema::OBJECT_NAME_MAX;
use crate::code::Code;
use crate::normalize::{Leaf, Merged, Place};
use crate::violation::{Findings, Kind, Violation};

use super::form;

/// The backend: rule [`Code::UnsupportedBackend`].
pub(crate) fn backend(
    merged: &Merged<'_>,
    pinned: Backend,
    findings: &mut Findings,
) -> Option<Backend> {
    let leaf = merged.own("backend", |spec| spec.backend.as_deref());
    form::choice(leaf, pinned, Code::UnsupportedBackend, findings)
}

/// Rule [`Code::BackendChanged`], judged on what the old and the new spec resolve to.
pub(crate) fn backend_change(old: Backend, new: Backend, findings: &mut Findings) {
    if old != new {
        let detail = format!(
            "cannot change from {old} to {new}: a machine stays where it was made; create another Machine to move"
        );
        findings.deny(
            Violation::new(
                Place::Field("backend"),
                Code::BackendChanged,
                Kind::Invalid,
                detail,
            )
            .text(new.as_str()),
        );
    }
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
        form::labels(Place::Field("nodeSelector"), labels, findings);
    }
}

/// The references of cloud-init: rules [`Code::SecretNameRequired`], [`Code::SecretIgnored`]. What
/// the documents say is not judged here.
pub(crate) fn cloud_init(merged: &Merged<'_>, findings: &mut Findings) {
    let Some(cloud_init) = &merged.user().cloud_init else {
        return;
    };
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

fn secret(field: &'static str, reference: &SecretKeyRef, findings: &mut Findings) {
    let place = Place::Field(field);
    match reference.name.as_deref() {
        None | Some("") => {
            let detail = "name the Secret";
            findings.deny(Violation::new(
                format_args!("{place}.name"),
                Code::SecretNameRequired,
                Kind::Required,
                detail,
            ));
        }
        Some(name) => {
            let before = findings.violations.len();
            form::object_name(
                Leaf {
                    value: Some(name),
                    place,
                },
                findings,
            );
            if let Some(violation) = findings.violations.get_mut(before) {
                violation.field.push_str(".name");
            }
        }
    }
    if let Some(key) = reference.key.as_deref() {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if key.is_empty() || key.len() > OBJECT_NAME_MAX || !key.bytes().all(inner) {
            let detail = format!(
                "a key of a Secret is letters, digits, '-', '_' and '.', at most {OBJECT_NAME_MAX}"
            );
            findings.deny(
                Violation::new(
                    format_args!("{place}.key"),
                    Code::InvalidObjectName,
                    Kind::Invalid,
                    detail,
                )
                .text(key),
            );
        }
    }
}
