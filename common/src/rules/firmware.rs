//! Machine type, features and firmware.

use crate::api::choice::{Backend, Choice as _, MachineType, MachineTypeName, OsFamily};
use crate::api::machine::{Bootloader, Features};
use crate::api::normalized::{Firmware, Normalized, NormalizedFeatures};
use crate::code::Code;
use crate::field_path::FieldPath;
use crate::normalize::{ImageDefaults, Leaf, Merged, defaults_of};
use crate::violation::{Findings, Kind, Violation};
use crate::words::quoted;

use super::boot_image::boot_image;
use super::rule::{Check, Parts, Subject, rules};
use super::{form, guest_os};

rules! {
    "firmware" Check::Part(features), on MACHINES_AND_TEMPLATES, Always {
        Refuse HypervNeedsAcpi = "Enlightenments for Windows are on, and ACPI is off."
            because "Windows does not run without ACPI, and libvirt refuses some of the enlightenments."
            fix "Drop `acpi: false`, or `hyperv`."
            crd All,
    }
    "firmware" Check::Part(machine_type), on MACHINES_AND_TEMPLATES, Always {
        Refuse UnsupportedMachineType = "The machine type does not exist."
            because "The backends refuse it when the machine starts."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse MachineTypeNeedsLibvirt = "The machine type is i440fx, and the backend is KubeVirt."
            because "KubeVirt offers q35 only; the machine would fail to start."
            fix "Use `pc-q35`, or `backend: libvirt`."
            crd Some,
    }
    "firmware" Check::Part(firmware), on MACHINES_AND_TEMPLATES, Always {
        Refuse SecureBootNeedsEfi = "Secure Boot is on, and the firmware is BIOS."
            because "BIOS checks no signatures; KubeVirt refuses the pair."
            fix "Set `efi: true`, or drop `secureBoot`."
            crd Some,
        Refuse SecureBootNeedsQ35 = "Secure Boot is on, and the machine type is i440fx."
            because "Secure Boot needs system management mode, which i440fx does not have."
            fix "Use `pc-q35`, or drop `secureBoot`."
            crd All,
        Refuse EfiNeedsAcpi = "The firmware is UEFI, and ACPI is off."
            because "UEFI firmware passes its tables to the guest by ACPI, and does not start without ACPI."
            fix "Drop `acpi: false`, or `efi`."
            crd Some,
    }
}

fn feature(
    merged: &Merged<'_>,
    field: &'static str,
    get: fn(&Features) -> Option<bool>,
) -> Leaf<bool> {
    merged.pick_domain(field, |domain| domain.features.as_ref().and_then(get))
}

fn bootloader(
    merged: &Merged<'_>,
    field: &'static str,
    get: fn(&Bootloader) -> Option<bool>,
) -> Leaf<bool> {
    merged.pick_domain(field, |domain| {
        domain.firmware.as_ref()?.bootloader.as_ref().and_then(get)
    })
}

/// Whether UEFI is requested.
pub(super) fn written_efi(merged: &Merged<'_>) -> Leaf<bool> {
    bootloader(merged, "domain.firmware.bootloader.efi", |bootloader| {
        bootloader.efi
    })
}

/// Whether UEFI is requested, else whether the MachineImage needs it that the machine boots from, else whether Windows
/// does.
pub(crate) fn efi(merged: &Merged<'_>) -> Leaf<bool> {
    let written = written_efi(merged);
    let of_image = || boot_image(merged)?.pin.efi;
    let default = || merged.defaults().efi.or_else(of_image);
    let leaf = Leaf {
        value: written.value.or_else(default),
        ..written
    };
    guest_os::or_windows(leaf, merged)
}

/// Whether the firmware is certainly not UEFI: a template that was not found may set it.
pub(super) fn lacks_efi(merged: &Merged<'_>) -> bool {
    let efi = efi(merged).value;
    efi == Some(false) || efi.is_none() && merged.is_complete()
}

/// The defaults of a stored block that neither its spec nor the new one writes.
pub(crate) fn kept(merged: &Merged<'_>, old: &Merged<'_>, old_block: &Normalized) -> ImageDefaults {
    let [was, is] = [old, merged].map(|merged| guest_os::written(merged).value);
    let stored = defaults_of(old_block);
    let is_open = |merged: &Merged<'_>| written_efi(merged).value.is_none();
    ImageDefaults {
        os: stored.os.filter(|_| was.is_none() && is.is_none()),
        // Windows needs UEFI, so another family decides again.
        efi: stored
            .efi
            .filter(|_| was == is && is_open(old) && is_open(merged)),
    }
}

/// Whether Secure Boot is requested, else whether it is the default: on Windows with UEFI and a machine type that has it.
pub(crate) fn secure_boot(merged: &Merged<'_>) -> Leaf<bool> {
    let written = bootloader(
        merged,
        "domain.firmware.bootloader.secureBoot",
        |bootloader| bootloader.secure_boot,
    );
    let machine_type = machine_type_name(merged)
        .value
        .and_then(MachineTypeName::parse);
    let has_it = machine_type.is_none_or(|name| MachineType::from(name) != MachineType::Pc);
    if is(efi(merged), true) && has_it {
        guest_os::or_windows(written, merged)
    } else {
        written
    }
}

/// Whether ACPI is requested.
pub(crate) fn acpi(merged: &Merged<'_>) -> Leaf<bool> {
    feature(merged, "domain.features.acpi", |features| features.acpi)
}

/// Whether APIC is requested.
pub(crate) fn apic(merged: &Merged<'_>) -> Leaf<bool> {
    feature(merged, "domain.features.apic", |features| features.apic)
}

/// Whether enlightenments for Windows are requested, which is the default on Windows.
pub(crate) fn hyperv(merged: &Merged<'_>) -> Leaf<bool> {
    let written = feature(merged, "domain.features.hyperv", |features| features.hyperv);
    guest_os::or_windows(written, merged)
}

/// The features: rule [`Code::HypervNeedsAcpi`].
fn features(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let (acpi, apic, hyperv) = (acpi(merged), apic(merged), hyperv(merged));
    if is(hyperv, true) && is(acpi, false) {
        let detail = "the enlightenments need ACPI: drop domain.features.acpi: false, or hyperv";
        let code = Code::HypervNeedsAcpi;
        findings.deny(conflict(hyperv, acpi.path, "false", code, detail));
    }
    parts.features = Some(NormalizedFeatures {
        acpi: acpi.value.unwrap_or(true),
        apic: apic.value.unwrap_or(true),
        hyperv: hyperv.value.unwrap_or(false),
    });
}

fn is(leaf: Leaf<bool>, value: bool) -> bool {
    leaf.value == Some(value)
}

/// The violation for a requested value that another value, shown as `shown`, contradicts. It names the field that
/// the user can change.
pub(super) fn conflict(
    requested: Leaf<bool>,
    against: FieldPath,
    shown: &str,
    code: Code,
    detail: &str,
) -> Violation {
    let path = requested.path.or_user_path(against);
    let fault = Violation::new(path, code, Kind::Invalid, detail).unless_faulty(against);
    if path != requested.path {
        fault.value(shown)
    } else if path == FieldPath::field("os") {
        // The value is a default of Windows.
        fault.text(OsFamily::Windows.as_str())
    } else {
        fault.value("true")
    }
}

/// The requested machine type.
pub(crate) fn machine_type_name<'a>(merged: &Merged<'a>) -> Leaf<&'a str> {
    merged.pick_domain("domain.machine.type", |domain| {
        domain.machine.as_ref()?.kind.as_deref()
    })
}

/// The machine type: rules [`Code::UnsupportedMachineType`], [`Code::MachineTypeNeedsLibvirt`].
fn machine_type(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    parts.machine_type = supported_machine_type(subject.merged, subject.backend, findings);
}

fn supported_machine_type(
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
        findings.deny(fault.unless_faulty(FieldPath::field("backend")));
        return None;
    }
    Some(machine_type)
}

/// The firmware: rules [`Code::SecureBootNeedsEfi`], [`Code::SecureBootNeedsQ35`],
/// [`Code::EfiNeedsAcpi`].
fn firmware(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    parts.firmware = Some(boot_firmware(subject.merged, parts.machine_type, findings));
}

fn boot_firmware(
    merged: &Merged<'_>,
    machine_type: Option<MachineType>,
    findings: &mut Findings,
) -> Firmware {
    let (efi, secure_boot, acpi) = (efi(merged), secure_boot(merged), acpi(merged));
    let is_secure = is(secure_boot, true);
    if is_secure && lacks_efi(merged) {
        let detail =
            "Secure Boot needs UEFI: set domain.firmware.bootloader.efi: true, or drop secureBoot";
        let code = Code::SecureBootNeedsEfi;
        let against = if written_efi(merged).value.is_some() {
            efi.path
        } else {
            secure_boot.path
        };
        let fault = conflict(secure_boot, against, "false", code, detail);
        findings.deny(fault.unless_faulty(efi.path));
    }
    if is_secure && machine_type == Some(MachineType::Pc) {
        let detail = "Secure Boot needs the machine type pc-q35: set domain.machine.type, or drop secureBoot";
        let code = Code::SecureBootNeedsQ35;
        let against = machine_type_name(merged);
        let shown = quoted(against.value.unwrap_or_default());
        findings.deny(conflict(secure_boot, against.path, &shown, code, detail));
    }
    if is(efi, true) && is(acpi, false) {
        let detail = "UEFI needs ACPI: drop domain.features.acpi: false, or efi";
        findings.deny(conflict(
            efi,
            acpi.path,
            "false",
            Code::EfiNeedsAcpi,
            detail,
        ));
    }
    if is(efi, true) {
        Firmware::efi(is_secure)
    } else {
        Firmware::BIOS
    }
}
