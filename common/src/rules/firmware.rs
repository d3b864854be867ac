//! Machine type, features and firmware.

use crate::api::choice::{Backend, Choice as _, FirmwareType, MachineType, MachineTypeName};
use crate::api::machine::{Bootloader, Domain, Features};
use crate::api::normalized::{Firmware, NormalizedFeatures};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{Leaf, Merged};
use crate::violation::{Findings, Kind, Violation};
use crate::words::quoted;

use super::form;

fn pick<'a, V>(
    merged: &Merged<'a>,
    field: &'static str,
    get: impl Fn(&'a Domain) -> Option<V>,
) -> Leaf<V> {
    merged.pick(
        field,
        |spec| spec.domain.as_ref().and_then(&get),
        |template| template.domain.as_ref().and_then(&get),
    )
}

fn feature(
    merged: &Merged<'_>,
    field: &'static str,
    get: fn(&Features) -> Option<bool>,
) -> Leaf<bool> {
    pick(merged, field, |domain| {
        domain.features.as_ref().and_then(get)
    })
}

fn bootloader(
    merged: &Merged<'_>,
    field: &'static str,
    get: fn(&Bootloader) -> Option<bool>,
) -> Leaf<bool> {
    pick(merged, field, |domain| {
        domain.firmware.as_ref()?.bootloader.as_ref().and_then(get)
    })
}

/// Whether UEFI is asked for.
pub(crate) fn efi(merged: &Merged<'_>) -> Leaf<bool> {
    bootloader(merged, "domain.firmware.bootloader.efi", |bootloader| {
        bootloader.efi
    })
}

/// Whether Secure Boot is asked for.
pub(crate) fn secure_boot(merged: &Merged<'_>) -> Leaf<bool> {
    bootloader(
        merged,
        "domain.firmware.bootloader.secureBoot",
        |bootloader| bootloader.secure_boot,
    )
}

/// Whether ACPI is asked for.
pub(crate) fn acpi(merged: &Merged<'_>) -> Leaf<bool> {
    feature(merged, "domain.features.acpi", |features| features.acpi)
}

/// Whether APIC is asked for.
pub(crate) fn apic(merged: &Merged<'_>) -> Leaf<bool> {
    feature(merged, "domain.features.apic", |features| features.apic)
}

/// Whether enlightenments for Windows are asked for.
pub(crate) fn hyperv(merged: &Merged<'_>) -> Leaf<bool> {
    feature(merged, "domain.features.hyperv", |features| features.hyperv)
}

/// The features: rule [`Code::HypervNeedsAcpi`].
pub(crate) fn features(merged: &Merged<'_>, findings: &mut Findings) -> NormalizedFeatures {
    let (acpi, apic, hyperv) = (acpi(merged), apic(merged), hyperv(merged));
    if is(hyperv, true) && is(acpi, false) {
        let detail = "the enlightenments need ACPI: drop domain.features.acpi: false, or hyperv";
        let code = Code::HypervNeedsAcpi;
        findings.deny(contradiction(hyperv, acpi.path, "false", code, detail));
    }
    NormalizedFeatures {
        acpi: acpi.value.unwrap_or(true),
        apic: apic.value.unwrap_or(true),
        hyperv: hyperv.value.unwrap_or(false),
    }
}

fn is(leaf: Leaf<bool>, value: bool) -> bool {
    leaf.value == Some(value)
}

/// A wish that another value, shown as `shown`, contradicts: told at the one the user can change.
fn contradiction(
    wish: Leaf<bool>,
    against: FieldPath,
    shown: &str,
    code: Code,
    detail: &str,
) -> Violation {
    let path = wish.path.or_user_path(against);
    let shown = if path == wish.path { "true" } else { shown };
    Violation::new(path, code, Kind::Invalid, detail)
        .value(shown)
        .given(against)
}

/// What is asked for as the machine type.
pub(crate) fn machine_type_name<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    pick(merged, "domain.machine.type", |domain| {
        domain.machine.as_ref()?.kind.as_deref()
    })
}

/// The machine type: rules [`Code::UnsupportedMachineType`], [`Code::MachineTypeNeedsLibvirt`].
pub(crate) fn machine_type(
    merged: &Merged<'_>,
    backend: Backend,
    findings: &mut Findings,
) -> Option<MachineType> {
    let leaf = machine_type_name(merged);
    let name = form::choice(
        leaf,
        MachineTypeName::PcQ35,
        Code::UnsupportedMachineType,
        findings,
    )?;
    let machine_type = MachineType::from(name);
    if machine_type == MachineType::Pc && backend == Backend::Kubevirt {
        let detail = "KubeVirt runs pc-q35 only; use that, or set backend: libvirt";
        let code = Code::MachineTypeNeedsLibvirt;
        let fault = Violation::new(leaf.path, code, Kind::Invalid, detail).text(name.as_str());
        findings.deny(fault.given(FieldPath::field("backend")));
        return None;
    }
    Some(machine_type)
}

/// The firmware: rules [`Code::SecureBootNeedsEfi`], [`Code::SecureBootNeedsQ35`],
/// [`Code::EfiNeedsAcpi`].
pub(crate) fn firmware(
    merged: &Merged<'_>,
    machine_type: Option<MachineType>,
    findings: &mut Findings,
) -> Firmware {
    let (efi, secure_boot, acpi) = (efi(merged), secure_boot(merged), acpi(merged));
    let is_secure = is(secure_boot, true);
    // An unknown template may have brought it.
    let lacks_efi = is(efi, false) || efi.value.is_none() && merged.is_complete();
    if is_secure && lacks_efi {
        let detail =
            "Secure Boot needs UEFI: set domain.firmware.bootloader.efi: true, or drop secureBoot";
        let code = Code::SecureBootNeedsEfi;
        let against = if efi.value.is_some() {
            efi.path
        } else {
            secure_boot.path
        };
        let fault = contradiction(secure_boot, against, "false", code, detail);
        findings.deny(fault.given(efi.path));
    }
    if is_secure && machine_type == Some(MachineType::Pc) {
        let detail = "Secure Boot needs the machine type pc-q35: set domain.machine.type, or drop secureBoot";
        let code = Code::SecureBootNeedsQ35;
        let against = machine_type_name(merged);
        let shown = quoted(against.value.unwrap_or_default());
        findings.deny(contradiction(
            secure_boot,
            against.path,
            &shown,
            code,
            detail,
        ));
    }
    if is(efi, true) && is(acpi, false) {
        let detail = "UEFI needs ACPI: drop domain.features.acpi: false, or efi";
        findings.deny(contradiction(
            efi,
            acpi.path,
            "false",
            Code::EfiNeedsAcpi,
            detail,
        ));
    }
    if is(efi, true) {
        Firmware {
            kind: FirmwareType::Efi,
            secure_boot: Some(is_secure),
        }
    } else {
        Firmware {
            kind: FirmwareType::Bios,
            secure_boot: None,
        }
    }
}
