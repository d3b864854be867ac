//! The block `spec.normalized`: the values that an intent resolves to, as `Cargo.lock` holds what
//! `Cargo.toml` resolves to.
//!
//! Only the webhook writes it. It is a pure function of the intent and of the pins that the block itself
//! holds (template content, storage classes, backend). All fields are typed: a block that decodes is valid.
//!
//! Fields are declared in the order of their keys, here and in the pinned template content. The block
//! is therefore written with the same text that an API server sends back, and texts can be compared.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::choice::{
    AccessMode, Backend, DeviceKind, DiskBus, DisplayType, EvictionStrategy, FirmwareType,
    GroupScope, HugepageSize, MachineType, NicModel, OsFamily, PowerState, ReclaimPolicy,
    TaintEffect, TemplateSource, TolerationOperator, VideoModel, VolumeMode, WatchdogAction,
};
use super::machine::{Affinity, Image, OpenObject, Probe, Probes, TopologySpreadConstraint};
use super::schema;
use super::template::TemplateContent;
use crate::bounds;
use crate::mac::Mac;
use crate::quantity::Bytes;

/// Version of the block's layout and semantics that this release writes. It reads all earlier ones.
pub const BLOCK_VERSION: u32 = if cfg!(feature = "next-version") { 3 } else { 2 };

/// Values that the intent resolves to. Written by the webhook. Of a spec, the controller reads only this
/// block and cloudInit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Normalized {
    /// Keys of annotations of the Machine that its instance and pod have, too, in which * behind the / stands for any
    /// characters, as the MachinePolicies of the namespace allowed when the spec changed last; on KubeVirt only. Absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::POLICY_ITEMS_MAX))]
    pub annotation_keys: Vec<String>,
    /// Backend that runs the machine: kubevirt or libvirt.
    pub backend: Backend,
    /// CD-ROM drives of the machine.
    #[schemars(length(max = bounds::CDROMS_MAX))]
    pub cdroms: Vec<NormalizedCdrom>,
    /// Serial console. Absent: its output is kept as the backend does by itself, as in blocks of version 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console: Option<NormalizedConsole>,
    /// CPU topology.
    pub cpu: NormalizedCpu,
    /// Whether a deletion of the machine is refused. Absent: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletion_protection: bool,
    /// Disks that have a volume of their own, in the order in which the guest sees them.
    #[schemars(length(max = bounds::DISKS_MAX))]
    pub disks: Vec<NormalizedDisk>,
    /// Screen. Absent: VNC without a password and with the backend's own graphics card, as in blocks of version 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<NormalizedDisplay>,
    /// What KubeVirt does with the running guest when its node is drained; on KubeVirt only. Absent:
    /// LiveMigrateIfPossible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_strategy: Option<EvictionStrategy>,
    /// Disks on claims or volumes of a libvirt host that exist and are used as they are. No list of the controller's own
    /// volumes has them, so nothing creates, changes or deletes one. Absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::DISKS_MAX))]
    pub existing_disks: Vec<ExistingDisk>,
    /// Features of the virtual hardware.
    pub features: NormalizedFeatures,
    /// Firmware that starts the guest.
    pub firmware: Firmware,
    /// Whether the machine stays off after a shutdown from inside the guest.
    pub guest_shutdown_stops: bool,
    /// Hardware of the node or host that the machine has for itself. Absent: none, and the backend's own CPU model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<NormalizedHardware>,
    /// SHA-256 digest of the intent that this block was computed from: the spec without this block, and
    /// the label vitistack.io/machine-template.
    #[schemars(length(max = bounds::DIGEST_MAX))]
    pub intent_hash: String,
    /// Machine type: q35 or pc.
    pub machine_type: MachineType,
    /// Guest memory.
    pub memory: NormalizedMemory,
    /// Network cards in the order in which the guest sees them.
    #[schemars(length(max = bounds::NETWORKS_MAX))]
    pub networks: Vec<NormalizedNetwork>,
    /// Labels that a node or host must have to run the machine.
    #[schemars(with = "BTreeMap<String, schema::LabelValue>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub node_selector: BTreeMap<String, String>,
    /// Family of the operating system of the guest. Absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<OsFamily>,
    /// Fields of KubeVirt's VirtualMachine beside those that follow from the others. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::OverridesObject>")]
    pub overrides: Option<OpenObject>,
    /// Where the machine runs: in relation to others, and on which tainted nodes. Absent: anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<NormalizedPlacement>,
    /// Desired power state: Running or Stopped.
    pub power_state: PowerState,
    /// Probes of the guest, with KubeVirt's defaults. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
    /// Template that was merged into the spec, with its content at that time. Absent without a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplatePin>,
    /// Time in seconds that the guest has to shut down before its power is cut. Absent in blocks of earlier releases: 30
    /// on KubeVirt, 60 on libvirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = bounds::GRACE_PERIOD_MAX))]
    pub termination_grace_period_seconds: Option<u32>,
    /// Time zone of the hardware clock. Absent: UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::TimeZoneName>")]
    pub timezone: Option<String>,
    /// Emulated TPM 2.0. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<NormalizedTpm>,
    /// Version of the block's layout and semantics.
    #[schemars(range(min = 1))]
    pub version: u32,
    /// What the watchdog of the virtual hardware does when its timer runs out. Absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<WatchdogAction>,
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

impl Normalized {
    /// The group of Machines that are kept apart.
    pub fn group(&self) -> Option<&NormalizedGroup> {
        let placement = self.placement.as_ref();
        placement.and_then(|placement| placement.anti_affinity_group.as_ref())
    }

    /// The taints of nodes that the machine may run on all the same.
    pub fn tolerations(&self) -> &[NormalizedToleration] {
        let placement = self.placement.as_ref();
        placement.map_or(&[], |placement| &placement.tolerations)
    }

    /// Fields of KubeVirt's VirtualMachine beside those that follow from the others.
    pub fn overrides(&self) -> Option<&Map<String, Value>> {
        self.overrides.as_ref().map(|overrides| &overrides.0)
    }

    /// By what it is noticed whether the guest serves.
    pub fn readiness_probe(&self) -> Option<&Probe> {
        self.probes.as_ref()?.readiness.as_deref()
    }

    /// By what KubeVirt notices whether the guest still works.
    pub fn liveness_probe(&self) -> Option<&Probe> {
        self.probes.as_ref()?.liveness.as_deref()
    }

    /// Nodes and pods that the machine is placed by.
    pub fn affinity(&self) -> Option<&Affinity> {
        self.placement.as_ref()?.affinity.as_ref()
    }

    /// How pods are spread over nodes.
    pub fn spread(&self) -> &[TopologySpreadConstraint] {
        let placement = self.placement.as_ref();
        placement.map_or(&[], |placement| &placement.topology_spread_constraints)
    }

    /// Name of the PriorityClass of the guest's pod.
    pub fn priority_class(&self) -> Option<&str> {
        let placement = self.placement.as_ref()?;
        placement.priority_class_name.as_deref()
    }

    /// Model of the CPU; `None`: the backend's own choice.
    pub fn cpu_model(&self) -> Option<&str> {
        self.hardware.as_ref()?.cpu_model.as_deref()
    }

    /// Whether each vCPU has a processor for itself.
    pub fn has_dedicated_cpus(&self) -> bool {
        let hardware = self.hardware.as_ref();
        hardware.is_some_and(|hardware| hardware.dedicated_cpu)
    }

    /// Size of the huge pages of the memory; `None`: ordinary pages.
    pub fn hugepages(&self) -> Option<HugepageSize> {
        self.hardware.as_ref()?.hugepages
    }

    /// The devices of the node that the machine has for itself.
    pub fn devices(&self) -> &[NormalizedDevice] {
        let hardware = self.hardware.as_ref();
        hardware.map_or(&[], |hardware| &hardware.devices)
    }

    /// How many processors the machine has for itself: one for each vCPU that it can get without a restart; `None`: it has
    /// no dedicated CPUs.
    pub fn dedicated_cpus(&self) -> Option<u32> {
        self.has_dedicated_cpus().then(|| self.cpu.most_vcpus())
    }

    /// How many devices the machine has for itself, by the name of their resource.
    pub fn device_counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for device in self.devices() {
            *counts.entry(device.device_name.as_str()).or_default() += 1;
        }
        counts
    }

    /// What happens to the running guest when its node is drained. Never the cluster's default: it does not depend on how
    /// KubeVirt is configured.
    pub fn on_eviction(&self) -> EvictionStrategy {
        let requested = self.eviction_strategy;
        requested.unwrap_or(EvictionStrategy::LiveMigrateIfPossible)
    }

    /// Protocol of the screen.
    pub fn display_type(&self) -> DisplayType {
        let display = self.display.as_ref();
        display.map_or(DisplayType::Vnc, |display| display.kind)
    }

    /// Model of the graphics card; `None`: the backend's own choice.
    pub fn video(&self) -> Option<VideoModel> {
        self.display.as_ref()?.video
    }

    /// Name of the Secret with the password of the screen.
    pub fn display_secret(&self) -> Option<&str> {
        let secret = self.display.as_ref()?.password_secret_ref.as_ref();
        secret.map(|secret| secret.name.as_str())
    }

    /// Whether the output of the serial console is kept; `None`: as the backend does by itself.
    pub fn console_log(&self) -> Option<bool> {
        self.console.map(|console| console.log)
    }

    /// Whether EFI variables or the content of a TPM outlast the guest.
    pub fn keeps_state(&self) -> bool {
        self.firmware.persistent == Some(true) || self.tpm.is_some_and(|tpm| tpm.persistent)
    }
}

/// The template that was merged into a spec, with its content at that time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplatePin {
    /// Content of the template when it was merged.
    pub content: Arc<TemplateContent>,
    /// Name of the template.
    #[schemars(length(max = bounds::NAME_MAX))]
    pub name: String,
    /// Value of the annotation machine.vitistack.io/refresh-template when the template was last merged,
    /// at most 1024 characters. Absent without the annotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub refresh: Option<String>,
    /// Source of the content: BuiltIn or MachineTemplate.
    pub source: TemplateSource,
}

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

/// A disk of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedDisk {
    /// Access mode of the volume.
    pub access_mode: AccessMode,
    /// Position in the boot order, from 1. Absent: the guest does not boot from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// Bus that the disk is attached to in the guest.
    pub bus: DiskBus,
    /// Whether KubeVirt plugs the disk into the guest after each start, and can unplug it while the guest runs; on KubeVirt
    /// only. Such a disk has no position in the boot order. Absent: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hotpluggable: bool,
    /// Image that the new volume is filled with; of a MachineImage, its name and its source when the disk was added.
    /// Absent: an empty disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// What else the MachineImage said when the disk was added. Present exactly if image has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pin: Option<ImagePin>,
    /// Name of the disk.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// What the controller does with the volume after the machine is deleted.
    pub reclaim_policy: ReclaimPolicy,
    /// Labels of an existing PersistentVolume to use as the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub selector: Option<BTreeMap<String, String>>,
    /// Serial number that the guest sees, by which it names the disk. Absent: none, as in blocks of version 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::DiskSerial>")]
    pub serial: Option<String>,
    /// Capacity of the disk: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub size: Bytes,
    /// Name of the StorageClass; empty for no class.
    #[schemars(with = "schema::StorageClassName")]
    pub storage_class: String,
    /// Mode of the volume.
    pub volume_mode: VolumeMode,
    /// Name of an existing PersistentVolume to use as the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::OBJECT_NAME_MAX))]
    pub volume_name: Option<String>,
}

/// A MachineImage beside the source that is part of the image: its content when the webhook resolved the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePin {
    /// CDI's DataSource that the volume is a clone of. Absent: the source is part of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source: Option<PinnedDataSource>,
    /// Whether machines that boot from the image have UEFI firmware by default. Absent: the image does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub efi: Option<bool>,
    /// Smallest capacity of a volume that holds the image: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub min_disk_size: Bytes,
    /// Family of the operating system: linux or windows. Absent: the image does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<OsFamily>,
}

/// A DataSource of CDI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedDataSource {
    /// Name of the DataSource.
    #[schemars(with = "schema::ObjectName")]
    pub name: String,
    /// Namespace of the DataSource.
    #[schemars(with = "schema::Label")]
    pub namespace: String,
}

/// Where a machine runs: in relation to others, and on which tainted nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedPlacement {
    /// Nodes and pods that the machine is placed by; on KubeVirt only. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Group of Machines of the namespace that are kept apart. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anti_affinity_group: Option<NormalizedGroup>,
    /// Name of the PriorityClass of the guest's pod; on KubeVirt only. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub priority_class_name: Option<String>,
    /// Taints of nodes that the machine may run on all the same; on KubeVirt only. Absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::TOLERATIONS_MAX))]
    pub tolerations: Vec<NormalizedToleration>,
    /// How pods are spread over nodes; on KubeVirt only. Absent: as the cluster does by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
}

impl NormalizedPlacement {
    /// The placement, if it says anything.
    pub fn if_any(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

/// A taint of nodes that the machine may run on all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedToleration {
    /// What the taint does. Absent: any effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// Key of the taint. Absent: any key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelKey>")]
    pub key: Option<String>,
    /// How the value of the taint is compared.
    pub operator: TolerationOperator,
    /// How long the guest stays on a node that gets such a taint, in seconds. Absent: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
    /// Value of the taint. Absent: none, or any with the operator Exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelValue>")]
    pub value: Option<String>,
}

/// A group of Machines that are kept apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedGroup {
    /// Name of the group in the namespace.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// Whether the machine is not started where it would share a host or zone with another one of the group.
    pub required: bool,
    /// What the machines do not share.
    pub scope: GroupScope,
}

impl fmt::Display for NormalizedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let required = if self.required {
            "required"
        } else {
            "preferred"
        };
        write!(f, "{} by {}, {required}", self.name, self.scope)
    }
}

/// A disk of a machine on a claim, or on a volume of a libvirt host, that exists and is used as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExistingDisk {
    /// Position in the boot order, from 1. Absent: the guest does not boot from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// Bus that the disk is attached to in the guest.
    pub bus: DiskBus,
    /// Name of the PersistentVolumeClaim in the Machine's namespace; on KubeVirt only, where every such disk has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub claim_name: Option<String>,
    /// Name of the disk.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// Serial number that the guest sees, by which it names the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::DiskSerial>")]
    pub serial: Option<String>,
    /// Whether several machines may have the disk at the same time. Absent: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shareable: bool,
    /// Name of the volume in the pool with existing volumes that the host offers; on libvirt only, where every such disk
    /// has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub volume_name: Option<String>,
}

impl ExistingDisk {
    /// Name of the claim or volume that the disk is on.
    pub fn source(&self) -> &str {
        let source = self.claim_name.as_ref().or(self.volume_name.as_ref());
        source.map_or("", String::as_str)
    }
}

/// A disk of a block of either kind, as far as the guest sees it.
#[derive(Clone, Copy, Debug)]
pub enum AnyDisk<'a> {
    /// It has a volume of its own.
    Own(&'a NormalizedDisk),
    /// It is on an existing claim.
    Existing(&'a ExistingDisk),
}

impl<'a> AnyDisk<'a> {
    /// Name of the disk.
    pub fn name(self) -> &'a str {
        match self {
            Self::Own(disk) => &disk.name,
            Self::Existing(disk) => &disk.name,
        }
    }

    /// Bus of the disk.
    pub fn bus(self) -> DiskBus {
        match self {
            Self::Own(disk) => disk.bus,
            Self::Existing(disk) => disk.bus,
        }
    }

    /// Serial number of the disk.
    pub fn serial(self) -> Option<&'a str> {
        match self {
            Self::Own(disk) => disk.serial.as_deref(),
            Self::Existing(disk) => disk.serial.as_deref(),
        }
    }

    /// Position of the disk in the boot order.
    pub fn boot_order(self) -> Option<u32> {
        match self {
            Self::Own(disk) => disk.boot_order,
            Self::Existing(disk) => disk.boot_order,
        }
    }

    /// Whether KubeVirt plugs the disk into the running guest and out of it.
    pub fn is_hotpluggable(self) -> bool {
        match self {
            Self::Own(disk) => disk.hotpluggable,
            Self::Existing(_) => false,
        }
    }

    /// Whether several machines may have the disk at the same time.
    pub fn is_shareable(self) -> bool {
        match self {
            Self::Own(_) => false,
            Self::Existing(disk) => disk.shareable,
        }
    }
}

impl Normalized {
    /// All disks in the order in which the guest sees them: that of the spec, which the boot order has if the guest
    /// boots from disks; else those with a volume of their own first. Those that the guest does not boot from are last.
    pub fn all_disks(&self) -> Vec<AnyDisk<'_>> {
        let own = self.disks.iter().map(AnyDisk::Own);
        let existing = self.existing_disks.iter().map(AnyDisk::Existing);
        let mut disks: Vec<_> = own.chain(existing).collect();
        if !self.existing_disks.is_empty() {
            disks.sort_by_key(|disk| disk.boot_order().unwrap_or(u32::MAX));
        }
        disks
    }
}

/// A CD-ROM drive of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedCdrom {
    /// Position in the boot order, from 1. Absent: the guest does not boot from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// Whether KubeVirt puts media into the drive of a running guest, and takes them out; on KubeVirt only. Such a drive
    /// has its position in the boot order also while it is empty. Absent: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hotpluggable: bool,
    /// Image in the drive; of a MachineImage, its name and its source when the image was put into the drive. Absent: an
    /// empty drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// What else the MachineImage said when the image was put into the drive. Present exactly if image has a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pin: Option<ImagePin>,
    /// Name of the drive.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// Capacity of the volume that the image is imported into: a quantity in bytes. Absent without such
    /// a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub size: Option<Bytes>,
    /// Name of the StorageClass of that volume. Absent without such a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::StorageClassName>")]
    pub storage_class: Option<String>,
}

/// A network card of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedNetwork {
    /// Position in the boot order, from 1. Absent: the guest does not boot from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// IP addresses from the spec. Absent: none are given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<schema::AddressText>", length(max = bounds::CARD_ADDRESSES_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub ip_addresses: Vec<IpAddr>,
    /// MAC address from the spec. Absent: the controller derives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::MacText>")]
    pub mac_address: Option<Mac>,
    /// Model of the card.
    pub model: NicModel,
    /// Name of the card.
    #[schemars(with = "schema::NicName")]
    pub name: String,
    /// Name of the NetworkConfiguration that the card is attached to. Absent: the pod network (KubeVirt)
    /// or the host's default network (libvirt).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub network_name: Option<String>,
}
