//! What the hypervisor of a libvirt host gives its guests: one rule for admission, which reads the status of the host, and
//! for the controller, which reads the host.

use std::borrow::Cow;
use std::fmt;

use crate::api::choice::{Choice as _, FirmwareType, HugepageSize, MachineType};
use crate::api::libvirt_host::HostFirmware;
use crate::api::normalized::Normalized;

/// What the hypervisor of a host has, as far as it is known. The lists are borrowed where many hosts are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostHardware<'a> {
    /// Machine types with their QEMU names; empty: not known.
    pub machine_types: Cow<'a, [String]>,
    /// Firmware beside BIOS; `None` before the host was reached for the first time.
    pub firmware: Option<HostFirmware>,
    /// Whether it emulates TPMs; `None` before the host was reached for the first time.
    pub tpm: Option<bool>,
    /// CPU models that its guests can have; empty: not known.
    pub cpu_models: Cow<'a, [String]>,
    /// Sizes of the huge pages that it has; `None`: not known.
    pub hugepages: Option<Cow<'a, [HugepageSize]>>,
}

impl HostHardware<'_> {
    /// Whether the host has what a guest needs. What is not known is taken to be there.
    pub fn offers(&self, need: &HardwareNeed<'_>) -> bool {
        let has =
            |names: &[String], name: &str| names.is_empty() || names.iter().any(|it| it == name);
        match need {
            HardwareNeed::MachineType(kind) => has(&self.machine_types, kind.as_str()),
            HardwareNeed::Efi => self.firmware.is_none_or(|it| it.efi),
            HardwareNeed::SecureBoot => self.firmware.is_none_or(|it| it.secure_boot),
            HardwareNeed::Tpm => self.tpm != Some(false),
            HardwareNeed::CpuModel(model) => has(&self.cpu_models, model),
            HardwareNeed::Hugepages(size) => {
                let sizes = self.hugepages.as_ref();
                sizes.is_none_or(|sizes| sizes.contains(size))
            }
        }
    }
}

/// Something that a guest needs of the hypervisor. `Display` gives its name in messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HardwareNeed<'a> {
    /// A machine type.
    MachineType(MachineType),
    /// UEFI firmware.
    Efi,
    /// UEFI firmware with Secure Boot.
    SecureBoot,
    /// Emulation of a TPM 2.0.
    Tpm,
    /// A CPU model, or a way to take that of the host.
    CpuModel(Cow<'a, str>),
    /// Huge pages of a size.
    Hugepages(HugepageSize),
}

impl<'a> HardwareNeed<'a> {
    /// All that the guest of a block needs.
    pub fn all_of(block: &'a Normalized) -> impl Iterator<Item = Self> {
        let is_secure = block.firmware.secure_boot == Some(true);
        let is_efi = block.firmware.kind == FirmwareType::Efi && !is_secure;
        let model = block.cpu_model().map(|name| Self::CpuModel(name.into()));
        [
            Some(Self::MachineType(block.machine_type)),
            is_efi.then_some(Self::Efi),
            is_secure.then_some(Self::SecureBoot),
            block.tpm.map(|_| Self::Tpm),
            model,
            block.hugepages().map(Self::Hugepages),
        ]
        .into_iter()
        .flatten()
    }
}

impl fmt::Display for HardwareNeed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MachineType(kind) => write!(f, "the machine type {kind}"),
            Self::Efi => f.write_str("UEFI firmware"),
            Self::SecureBoot => f.write_str("UEFI firmware with Secure Boot"),
            Self::Tpm => f.write_str("an emulated TPM"),
            Self::CpuModel(model) => write!(f, "the CPU model '{model}'"),
            Self::Hugepages(size) => write!(f, "huge pages of {size}"),
        }
    }
}
