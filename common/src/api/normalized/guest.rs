//! The hardware of the guest in the block, except for disks and cards.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::{DeviceKind, DisplayType, FirmwareType, HugepageSize, VideoModel};
use crate::api::schema;
use crate::bounds;
use crate::quantity::Bytes;

/// CPU topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedCpu {
    /// Cores per socket.
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub cores: u32,
    /// Largest number of sockets that the running machine can get without a restart.
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub max_sockets: u32,
    /// Number of sockets.
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub sockets: u32,
    /// Threads per core.
    #[schemars(range(min = 1, max = bounds::VCPUS_MAX))]
    pub threads: u32,
}

impl NormalizedCpu {
    /// Largest number of vCPUs without a restart: maxSockets × cores × threads.
    pub fn most_vcpus(&self) -> u32 {
        let sockets = self.max_sockets.max(self.sockets);
        Self { sockets, ..*self }.vcpus()
    }

    /// Number of vCPUs: sockets × cores × threads.
    pub fn vcpus(&self) -> u32 {
        self.sockets
            .saturating_mul(self.cores)
            .saturating_mul(self.threads)
    }
}

/// Guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedMemory {
    /// Largest memory that the running machine can get without a restart: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub max_size: Bytes,
    /// Memory of the guest: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub size: Bytes,
}

/// Hardware of the node or host that a machine has for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedHardware {
    /// Model of the CPU. Absent: the backend's own choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CpuModelName>")]
    pub cpu_model: Option<String>,
    /// Whether each vCPU has a processor of the node for itself. Absent: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dedicated_cpu: bool,
    /// Devices of the node, in the order in which the guest has them. Absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::DEVICES_MAX))]
    pub devices: Vec<NormalizedDevice>,
    /// Size of the huge pages of the memory. Absent: ordinary pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<HugepageSize>,
}

impl NormalizedHardware {
    /// The hardware, if it is anything.
    pub fn if_any(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

/// A device of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedDevice {
    /// Name of the resource that nodes offer.
    #[schemars(with = "schema::ResourceName")]
    pub device_name: String,
    /// How the guest gets it, as KubeVirt permits it.
    pub kind: DeviceKind,
    /// Name of the device.
    #[schemars(with = "schema::Label")]
    pub name: String,
}

/// Devices as text: `name=resource`.
pub fn devices_text(devices: &[NormalizedDevice]) -> String {
    let text = |it: &NormalizedDevice| format!("{}={}", it.name, it.device_name);
    let texts: Vec<_> = devices.iter().map(text).collect();
    if texts.is_empty() {
        return "none".to_owned();
    }
    texts.join(",")
}

/// Firmware of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Firmware {
    /// Whether the firmware's variables outlast the guest. Absent with type bios, and in blocks of version 1: as the
    /// backend does by itself, which is to keep them on libvirt and not on KubeVirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Whether the firmware starts signed code only. Present exactly if type is efi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
    /// Type of firmware: bios or efi (UEFI).
    #[serde(rename = "type")]
    pub kind: FirmwareType,
}

impl Firmware {
    /// BIOS.
    pub const BIOS: Self = Self {
        kind: FirmwareType::Bios,
        secure_boot: None,
        persistent: None,
    };

    /// UEFI; whether its variables outlast the guest is left to the backend.
    pub const fn efi(secure_boot: bool) -> Self {
        Self {
            kind: FirmwareType::Efi,
            secure_boot: Some(secure_boot),
            persistent: None,
        }
    }
}

/// An emulated TPM 2.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedTpm {
    /// Whether its content outlasts the guest.
    pub persistent: bool,
}

/// Features of the virtual hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedFeatures {
    /// Whether the guest has ACPI.
    pub acpi: bool,
    /// Whether the guest has an APIC.
    pub apic: bool,
    /// Whether the guest has the Hyper-V enlightenments for Windows.
    pub hyperv: bool,
}

/// Serial console of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedConsole {
    /// Whether the output is kept.
    pub log: bool,
}

/// Screen of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedDisplay {
    /// Secret with the password, under the key display-password. Absent: no password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_secret_ref: Option<NormalizedSecretRef>,
    /// Protocol: vnc or none.
    #[serde(rename = "type")]
    pub kind: DisplayType,
    /// Model of the graphics card. Absent: the backend's own choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoModel>,
}

/// A Secret in the Machine's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedSecretRef {
    /// Name of the Secret.
    #[schemars(with = "schema::ObjectName")]
    pub name: String,
}
