//! State that firmware and devices keep between two starts of a guest: EFI variables and the content of the TPM.

use std::collections::BTreeMap;

use crate::api::choice::Backend;
use crate::api::machine::Tpm;
use crate::api::normalized::{Normalized, NormalizedTpm};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Leaf, LeftToBackend, Merged};
use crate::violation::Findings;
use crate::words::quoted;

use super::rule::{Check, Lookup, Parts, Subject, rules};
use super::{firmware, guest_os};

rules! {
    "firmware" Check::Part(efi_state), on MACHINES_AND_TEMPLATES, Always {
        Refuse PersistentNeedsEfi = "EFI variables are to persist, and the firmware is BIOS."
            because "BIOS has no such variables."
            fix "Set `efi: true`, or drop `persistent`."
            crd Some,
    }
    "firmware" Check::Part(tpm), on MACHINES_AND_TEMPLATES, Always {
        Refuse PersistentNeedsTpm = "The content of the TPM is to persist, and the TPM is not enabled."
            because "Without a TPM there is nothing to keep."
            fix "Drop `enabled: false`, or `persistent`."
            crd Some,
    }
    "firmware" Check::Lookup(state_class), on MACHINES, Always {
        Warn NoStateStorageClass = "EFI variables or the content of a TPM are to persist on KubeVirt, and the cluster has no default storage class."
            because "KubeVirt keeps them in a claim of the class that `vmStateStorageClass` of its configuration names, else of the default class. Without either the instance is not started, and that is found only then."
            fix "Mark a class as default, set `vmStateStorageClass` of KubeVirt, or set `persistent: false`."
            crd Nothing,
    }
}

fn tpm_field(
    merged: &Merged<'_>,
    field: &'static str,
    get: fn(&Tpm) -> Option<bool>,
) -> Leaf<bool> {
    merged.pick_domain(field, |domain| {
        domain.devices.as_ref()?.tpm.as_ref().and_then(get)
    })
}

/// Whether EFI variables are requested to persist.
pub(super) fn efi(merged: &Merged<'_>) -> Leaf<bool> {
    merged.pick_domain("domain.firmware.bootloader.persistent", |domain| {
        let bootloader = domain.firmware.as_ref()?.bootloader.as_ref()?;
        bootloader.persistent
    })
}

/// The field that requests the TPM or its persistence.
pub(super) fn tpm_path(merged: &Merged<'_>) -> FieldPath {
    let written = merged.pick_domain("domain.devices.tpm", |domain| {
        domain.devices.as_ref()?.tpm.as_ref()
    });
    if written.value.is_none() && guest_os::is_windows(merged) {
        return guest_os::family(merged).path;
    }
    written.path
}

/// Whether EFI variables persist, with UEFI. `None`: that is left to the backend, as in blocks of version 1.
pub(super) fn persistent_efi(merged: &Merged<'_>, is_unspecified: bool) -> Option<bool> {
    efi(merged).value.or((!is_unspecified).then_some(true))
}

/// The TPM that is requested, else a persistent one on Windows.
pub(super) fn requested_tpm(merged: &Merged<'_>) -> Option<NormalizedTpm> {
    let is_written = merged.pick_domain("domain.devices.tpm", |domain| {
        domain.devices.as_ref()?.tpm.as_ref()
    });
    let enabled = tpm_field(merged, "domain.devices.tpm.enabled", |tpm| tpm.enabled);
    let is_windows = guest_os::is_windows(merged);
    let is_enabled = enabled
        .value
        .unwrap_or(is_written.value.is_some() || is_windows);
    let persistent = tpm_field(merged, "domain.devices.tpm.persistent", |tpm| {
        tpm.persistent
    });
    is_enabled.then(|| NormalizedTpm {
        persistent: persistent.value.unwrap_or(is_windows),
    })
}

/// A TPM as text.
pub(super) fn describe(tpm: Option<NormalizedTpm>) -> &'static str {
    match tpm {
        None => "none",
        Some(NormalizedTpm { persistent: false }) => "not persistent",
        Some(NormalizedTpm { persistent: true }) => "persistent",
    }
}

/// The EFI variables: rule [`Code::PersistentNeedsEfi`].
fn efi_state(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let (persistent, efi) = (efi(merged), firmware::efi(merged));
    if persistent.value == Some(true) && firmware::lacks_efi(merged) {
        let detail = "only UEFI has variables that persist: set domain.firmware.bootloader.efi: true, or drop persistent";
        let against = if firmware::written_efi(merged).value.is_some() {
            efi.path
        } else {
            persistent.path
        };
        let code = Code::PersistentNeedsEfi;
        let fault = firmware::conflict(persistent, against, "false", code, detail);
        findings.deny(fault.unless_faulty(efi.path));
    }
    if let Some(firmware) = &mut parts.firmware
        && efi.value == Some(true)
    {
        firmware.persistent = persistent_efi(merged, subject.pins.left_to_backend.efi_state);
    }
}

/// The TPM: rule [`Code::PersistentNeedsTpm`].
fn tpm(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let enabled = tpm_field(merged, "domain.devices.tpm.enabled", |tpm| tpm.enabled);
    let persistent = tpm_field(merged, "domain.devices.tpm.persistent", |tpm| {
        tpm.persistent
    });
    if persistent.value == Some(true) && enabled.value == Some(false) {
        // The persistence of a template's TPM that the Machine removes is no fault.
        if persistent.path.is_from_user() || !enabled.path.is_from_user() {
            let detail = "a TPM that is not enabled keeps nothing: drop domain.devices.tpm.enabled: false, or persistent";
            let code = Code::PersistentNeedsTpm;
            findings.deny(firmware::conflict(
                persistent,
                enabled.path,
                "false",
                code,
                detail,
            ));
        }
    }
    parts.tpm = requested_tpm(merged);
}

/// Rule [`Code::NoStateStorageClass`].
fn state_class(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    if lookup.backend != Backend::Kubevirt {
        return;
    }
    let merged = lookup.merged;
    let keeps_efi = firmware::efi(merged).value == Some(true)
        && persistent_efi(merged, LeftToBackend::by(lookup.stored).efi_state) == Some(true);
    let keeps_tpm = requested_tpm(merged).is_some_and(|tpm| tpm.persistent);
    let kept = lookup.stored.is_some_and(Normalized::keeps_state);
    let (path, what) = match (keeps_efi, keeps_tpm) {
        _ if kept => return,
        (false, false) => return,
        (true, false) => (firmware::efi(merged).path, "EFI variables"),
        (false, true) => (tpm_path(merged), "the content of the TPM"),
        (true, true) => (tpm_path(merged), "EFI variables and the content of the TPM"),
    };
    let kubevirt = lookup.catalog.kubevirt();
    let kubevirt = kubevirt.as_deref();
    let has_default = lookup.catalog.default_storage_class().is_some();
    let exists = |class: &str| lookup.catalog.storage_class(class).is_some();
    if kubevirt.map_or(has_default, |row| row.stores_state(exists, has_default)) {
        return;
    }
    let text = match kubevirt.and_then(|row| row.state_class.as_deref()) {
        Some(class) => format!(
            "{path}: KubeVirt is to keep {what} in the storage class {} of its vmStateStorageClass, which does not exist, so the machine does not start; persistent: false keeps nothing",
            quoted(class)
        ),
        None => format!(
            "{path}: without a default storage class, KubeVirt can keep {what} only in a class that its vmStateStorageClass names, else the machine does not start; persistent: false keeps nothing"
        ),
    };
    findings.warn(Code::NoStateStorageClass, &text);
}
