//! Machine type, features and firmware.

use crate::api::choice::{Backend, FirmwareType, MachineType, MachineTypeName};
use crate::api::machine::{Bootloader, Domain, Features};
use crate::api::normalized::{Firmware, NormalizedFeatures};
use crate::code::Code;
use crate::normalize::{Leaf, Merged, Place};
use crate::violation::{Findings, Kind, Violation};

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

/// The features; no single one can be wrong.
pub(crate) fn features(merged: &Merged<'_>) -> NormalizedFeatures {
    NormalizedFeatures {
        acpi: feature(merged, "domain.features.acpi", |features| features.acpi)
            .value
            .unwrap_or(true),
        apic: feature(merged, "domain.features.apic", |features| features.apic)
            .value
            .unwrap_or(true),
        hyperv: hyperv(merged).value.unwrap_or(false),
    }
}

fn hyperv(merged: &Merged<'_>) -> Leaf<bool> {
    feature(merged, "domain.features.hyperv", |features| features.hyperv)
}

/// The machine type: rules [`Code::UnsupportedMachineType`], [`Code::MachineTypeNeedsLibvirt`].
pub(crate) fn machine_type(
    merged: &Merged<'_>,
    backend: Backend,
    findings: &mut Findings,
) -> Option<MachineType> {
    let leaf = pick(merged, "domain.machine.type", |domain| {
        domain.machine.as_ref()?.kind.as_deref()
    });
    let name = form::choice(
        leaf,
        MachineTypeName::PcQ35,
        Code::UnsupportedMachineType,
        findings,
    )?;
    let machine_type = MachineType::from(name);
    if machine_type == MachineType::Pc && backend == Backend::Kubevirt {
        let detail = "KubeVirt runs pc-q35 only; use that, or set backend: libvirt";
        findings.deny(
            Violation::new(
                leaf.place,
                Code::MachineTypeNeedsLibvirt,
                Kind::Invalid,
                detail,
            )
            .text(&name.to_string()),
        );
        return None;
    }
    Some(machine_type)
}

/// The firmware: rules [`Code::SecureBootNeedsEfi`], [`Code::SecureBootNeedsQ35`],
/// [`Code::EfiNeedsAcpi`], [`Code::HypervNeedsAcpi`].
pub(crate) fn firmware(
    merged: &Merged<'_>,
    machine_type: Option<MachineType>,
    features: NormalizedFeatures,
    findings: &mut Findings,
) -> Option<Firmware> {
    let efi = bootloader(merged, "domain.firmware.bootloader.efi", |bootloader| {
        bootloader.efi
    });
    let secure_boot = bootloader(
        merged,
        "domain.firmware.bootloader.secureBoot",
        |bootloader| bootloader.secure_boot,
    );
    let before = findings.violations.len();
    let refuse =
        |place: Place, code, detail| Violation::new(place, code, Kind::Invalid, detail).value(true);
    let is_efi = efi.value == Some(true);
    let is_secure = secure_boot.value == Some(true);
    if is_secure && !is_efi {
        let detail =
            "Secure Boot needs UEFI: set domain.firmware.bootloader.efi: true, or drop secureBoot";
        findings.deny(refuse(secure_boot.place, Code::SecureBootNeedsEfi, detail));
    }
    if is_secure && machine_type == Some(MachineType::Pc) {
        let detail = "Secure Boot needs the machine type pc-q35: set domain.machine.type, or drop secureBoot";
        findings.deny(refuse(secure_boot.place, Code::SecureBootNeedsQ35, detail));
    }
    if is_efi && !features.acpi {
        let detail = "UEFI needs ACPI: drop domain.features.acpi: false, or efi";
        findings.deny(refuse(efi.place, Code::EfiNeedsAcpi, detail));
    }
    if features.hyperv && !features.acpi {
        let detail = "the enlightenments need ACPI: drop domain.features.acpi: false, or hyperv";
        findings.deny(refuse(hyperv(merged).place, Code::HypervNeedsAcpi, detail));
    }
    let kind = if is_efi {
        FirmwareType::Efi
    } else {
        FirmwareType::Bios
    };
    (findings.violations.len() == before).then_some(Firmware {
        kind,
        secure_boot: is_efi.then_some(is_secure),
    })
}
