//! Virtual hardware of a Machine: chipset, features and firmware.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::MachineTypeName;
use crate::api::schema;

/// The virtual hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.firmware) || !has(self.firmware.bootloader) || !has(self.firmware.bootloader.secureBoot) || !self.firmware.bootloader.secureBoot || !has(self.machine) || !has(self.machine.type) || !(self.machine.type in ['pc', 'pc-i440fx'])",
        "message": "secureBoot needs the machine type pc-q35"
    },
    {
        "rule": "!has(self.firmware) || !has(self.firmware.bootloader) || !has(self.firmware.bootloader.efi) || !self.firmware.bootloader.efi || !has(self.features) || !has(self.features.acpi) || self.features.acpi",
        "message": "efi needs acpi"
    }
]))]
pub struct Domain {
    /// Hardware clock of the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<DomainClock>,
    /// Devices of the virtual hardware besides disks and network cards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<DomainDevices>,
    /// Features of the virtual hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<Features>,
    /// Firmware that starts the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<FirmwareIntent>,
    /// Chipset of the virtual hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineKind>,
}

/// Hardware clock of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainClock {
    /// Time zone of the time that the hardware clock shows: the name of an IANA time zone with its area, such as
    /// Europe/Oslo, or UTC. Default UTC. Windows expects the local time, Linux UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::TimeZoneName>")]
    pub timezone: Option<String>,
}

/// Devices of a machine besides disks and network cards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainDevices {
    /// Emulated TPM 2.0. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<Tpm>,
}

/// An emulated TPM 2.0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.persistent) || !self.persistent || !has(self.enabled) || self.enabled",
        "message": "persistent needs a TPM that is enabled"
    }
]))]
pub struct Tpm {
    /// Whether the machine has a TPM. Default true where tpm is written; false removes the TPM of a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether the content of the TPM, such as the keys that encrypt a disk, outlasts the guest. Default false: the
    /// content may be lost whenever the guest is off. Setting it to false discards the content and needs the
    /// annotation machine.vitistack.io/discard-state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
}

/// Chipset of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineKind {
    /// Machine type: pc-q35 (default), with q35 as another name for it; or, on libvirt only, pc-i440fx,
    /// with pc as another name for it.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<MachineTypeName>")]
    pub kind: Option<String>,
}

/// Features of the virtual hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.hyperv) || !self.hyperv || !has(self.acpi) || self.acpi",
        "message": "hyperv needs acpi"
    }
]))]
pub struct Features {
    /// Whether the guest has ACPI, which a shutdown by power button needs. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acpi: Option<bool>,
    /// Whether the guest has an APIC, the interrupt controller. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apic: Option<bool>,
    /// Whether the guest has the Hyper-V enlightenments for Windows. Needs acpi. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<bool>,
}

/// Firmware of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FirmwareIntent {
    /// Boot loader of the firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootloader: Option<Bootloader>,
}

/// Boot loader of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.secureBoot) || !self.secureBoot || !has(self.efi) || self.efi",
        "message": "secureBoot needs efi"
    },
    {
        "rule": "!has(self.persistent) || !self.persistent || !has(self.efi) || self.efi",
        "message": "persistent needs efi"
    }
]))]
pub struct Bootloader {
    /// Whether the guest boots with UEFI instead of BIOS. Needs acpi. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efi: Option<bool>,
    /// Whether the variables of the UEFI firmware, such as its boot entries, outlast the guest. Needs efi. Default
    /// true with efi; a machine that was created with efi before this field was supported keeps none on KubeVirt until
    /// it is set. Setting it to false discards the variables and needs the annotation
    /// machine.vitistack.io/discard-state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Whether the firmware starts signed code only (Secure Boot). Needs efi and the machine type
    /// pc-q35. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
}
