//! The block `spec.normalized`: the values that an intent resolves to, as `Cargo.lock` holds what
//! `Cargo.toml` resolves to.
//!
//! Only the webhook writes it. It is a pure function of the intent and of the pins that the block itself
//! holds (template content, storage classes, backend). All fields are typed: a block that decodes is valid.
//!
//! Fields are declared in the order of their keys, here and in the pinned template content. The block
//! is therefore written with the same text that an API server sends back, and texts can be compared.

#[cfg(test)]
pub(crate) mod fixture;
mod guest;
mod network;
mod placement;
mod running;
mod storage;

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::choice::{
    Backend, DisplayType, EvictionStrategy, FirmwareType, HugepageSize, MachineType, OsFamily,
    PowerState, TemplateSource, VideoModel, WatchdogAction,
};
use super::machine::{Affinity, OpenObject, Probe, Probes, TopologySpreadConstraint};
use super::schema;
use super::template::TemplateContent;
use crate::bounds;

pub use guest::{
    Firmware, NormalizedConsole, NormalizedCpu, NormalizedDevice, NormalizedDisplay,
    NormalizedFeatures, NormalizedHardware, NormalizedMemory, NormalizedSecretRef, NormalizedTpm,
    devices_text,
};
pub use network::NormalizedNetwork;
pub use placement::{NormalizedGroup, NormalizedPlacement, NormalizedToleration};
pub use running::is_counted;
pub use storage::{
    AnyDisk, ExistingDisk, ImagePin, NormalizedCdrom, NormalizedDisk, PinnedDataSource,
};

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

impl Normalized {
    /// The schema of the block as the CRD of Machines has it, as JSON. The whole CRD takes several times as much memory.
    #[cfg(feature = "kube")]
    pub fn schema() -> Value {
        let settings = schemars::generate::SchemaSettings::openapi3();
        let settings = settings.with(|settings| settings.inline_subschemas = true);
        let generator = settings
            .with_transform(kube::core::schema::StructuralSchemaRewriter)
            .into_generator();
        generator.into_root_schema_for::<Self>().into()
    }

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

    /// vCPUs that count in limits and quotas: of dedicated ones on libvirt those up to maxSockets, because a host keeps their
    /// processors for the machine.
    pub fn counted_vcpus(&self) -> u32 {
        let dedicated = self.dedicated_cpus();
        let kept = dedicated.filter(|_| self.backend == Backend::Libvirt);
        kept.unwrap_or_else(|| self.cpu.vcpus())
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

    /// Whether EFI variables outlast the guest. A block of version 1 leaves them to the backend, and libvirt hosts keep them.
    pub fn keeps_efi(&self) -> bool {
        let by_backend =
            self.backend == Backend::Libvirt && self.firmware.kind == FirmwareType::Efi;
        self.firmware.persistent.unwrap_or(by_backend)
    }

    /// Whether the content of a TPM outlasts the guest.
    pub fn keeps_tpm(&self) -> bool {
        self.tpm.is_some_and(|tpm| tpm.persistent)
    }

    /// Whether EFI variables or the content of a TPM outlast the guest.
    pub fn keeps_state(&self) -> bool {
        self.keeps_efi() || self.keeps_tpm()
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
