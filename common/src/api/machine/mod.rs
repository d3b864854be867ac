//! `Machine`: a virtual machine as its user describes it.

mod affinity;
mod cloud_init;
mod device;
mod display;
mod domain;
mod health;
mod network;
mod overrides;
mod placement;
mod probes;
mod resources;
mod storage;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::affinity::{
    Affinity, NodeAffinity, NodeRequirement, NodeTerm, NodeTerms, PodAffinity, PodSelector,
    PodTerm, PreferredNodes, TopologySpreadConstraint, WeightedPodTerm,
};
pub use self::cloud_init::{
    CloudInit, OpenObject, SecretKeyRef, Sysprep, TemplateCloudInit, is_object, is_text,
};
pub use self::device::Device;
pub use self::display::{Console, Display, LocalSecretRef, TemplateDisplay};
pub use self::domain::{
    Bootloader, Domain, DomainClock, DomainDevices, Features, FirmwareIntent, MachineKind, Tpm,
};
pub use self::health::Watchdog;
pub use self::network::Network;
pub use self::overrides::BackendOverrides;
pub use self::placement::{AntiAffinityGroup, Placement, Toleration};
pub use self::probes::{ExecProbe, GuestAgentPing, HttpProbe, Probe, Probes, TcpProbe};
pub use self::resources::{Cpu, Memory, Resources};
pub use self::storage::{Cdrom, Disk, Image, ImageSecretRef, VolumeSelector};

use super::cel;
use super::choice::{Backend, BootDevice, Drivers, EvictionStrategy, OsFamily, PowerState};
use super::normalized::Normalized;
use super::schema;
use crate::bounds;

/// A virtual machine. Its user writes every field except `normalized`, which the webhook writes; the
/// webhook changes no other field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "vitistack.io",
        version = "v1alpha1",
        kind = "Machine",
        plural = "machines",
        shortname = "mach",
        category = "vitistack",
        namespaced,
        status = "crate::api::status::MachineStatus",
        doc = "A virtual machine, run by KubeVirt or libvirt.",
        validation = kube::core::Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
            .message("the name of a Machine must be a DNS label of at most 63 characters (lower-case letters, digits and '-')"),
        printcolumn = r#"{"name":"Template","type":"string","jsonPath":".spec.normalized.template.name"}"#,
        printcolumn = r#"{"name":"vCPUs","type":"integer","jsonPath":".status.vcpus","description":"sockets × cores × threads"}"#,
        printcolumn = r#"{"name":"Memory","type":"string","jsonPath":".spec.normalized.memory.size"}"#,
        printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
        printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
        printcolumn = r#"{"name":"IP","type":"string","jsonPath":".status.ipAddresses[0]"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
        printcolumn = r#"{"name":"Backend","type":"string","jsonPath":".spec.normalized.backend","priority":1}"#,
        printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.nodeName","priority":1}"#,
        printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::machine()))]
pub struct MachineSpec {
    /// Name of a MachineTemplate or of a built-in template (small, medium, large) whose values apply
    /// where this spec sets none. Default: the label vitistack.io/machine-template, else no template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::TemplateName>")]
    pub template: Option<String>,

    /// Backend that runs the machine: kubevirt or libvirt. Default: the webhook's setting
    /// --default-backend, which is kubevirt unless the administrator changes it. Cannot change after
    /// creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Backend>")]
    pub backend: Option<String>,

    /// Desired power state: Running (default) or Stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PowerState>")]
    pub power_state: Option<String>,

    /// Whether the machine stays off after a shutdown from inside the guest. Default false: the
    /// controller starts it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_shutdown_stops: Option<bool>,

    /// Whether a deletion of the machine is refused. Default: the template's value, else false. To delete
    /// the machine, set it to false first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_protection: Option<bool>,

    /// Family of the operating system of the guest: linux or windows. Default: the template's value, else that of the
    /// MachineImage that the machine boots from. With windows, the defaults of other fields are those that Windows
    /// needs: domain.features.hyperv, UEFI with Secure Boot, a persistent TPM, disks on sata and network cards e1000e
    /// (see drivers), cores as sockets, and 3600 seconds to shut down.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<OsFamily>")]
    pub os: Option<String>,

    /// Drivers that the guest has: inbox or virtio. With virtio, disks and network cards are virtio by default on
    /// Windows, too. Default: the template's value, else inbox on Windows and virtio otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Drivers>")]
    pub drivers: Option<String>,

    /// CPU and memory. Default of each field: the template's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Disks, at most 64, merged by name with the disks of the template: a disk with the name of a
    /// template's disk replaces only the fields that it sets, a disk with another name is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DISKS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub disks: Option<Vec<Disk>>,

    /// Network cards, at most 32, merged by name with the cards of the template. Default: one card
    /// with the name default, on the pod network (KubeVirt) or on the host's default network (libvirt).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NETWORKS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub networks: Option<Vec<Network>>,

    /// Classes of devices to boot from, in this order: disk, cdrom and network, each at most once.
    /// Default: the template's boot order, else disk, cdrom, network, without the classes that the
    /// machine lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<BootDevice>>", length(max = bounds::BOOT_ORDER_MAX), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [cel::named_once()]))]
    pub boot_order: Option<Vec<String>>,

    /// CD-ROM drives, at most 16. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::CDROMS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub cdroms: Option<Vec<Cdrom>>,

    /// Devices of the node or host, at most 16, that the machine has for itself, such as graphics processors; they keep it
    /// from being migrated. Those of the template apply if the machine has none of its own. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DEVICES_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub devices: Option<Vec<Device>>,

    /// Watchdog of the virtual hardware. The machine has one where watchdog is written, also in the template. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,

    /// Probes of the guest. On libvirt only readiness, and only by guestAgentPing. Default of each probe: the template's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,

    /// Data that cloud-init reads inside the guest at its first boot. User data and network configuration of the
    /// template apply as a whole if the machine has none of its own; metadata is merged by key. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInit>,

    /// Screen. Default of each field: the template's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<Display>,

    /// Serial console. Default of each field: the template's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console: Option<Console>,

    /// Machine type, features and firmware of the virtual hardware. Default of each field: the
    /// template's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Domain>,

    /// Time in seconds that the guest has to shut down before its power is cut, from 0 to 86400. Default: the
    /// template's value, else 3600 for Windows and 180 for others. A Machine of an earlier release without it keeps the
    /// default of the backend: 30 on KubeVirt, 60 on libvirt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = bounds::GRACE_PERIOD_MAX))]
    pub termination_grace_period_seconds: Option<i64>,

    /// What KubeVirt does with the running guest when its node is drained: LiveMigrateIfPossible migrates it, or shuts it
    /// down if it cannot be migrated; LiveMigrate migrates it, and the drain waits while it cannot be migrated; External
    /// leaves it to somebody else, and the drain waits; None shuts it down. On KubeVirt only. Default: the template's
    /// value, else LiveMigrateIfPossible.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<EvictionStrategy>")]
    pub eviction_strategy: Option<String>,

    /// Where the machine runs in relation to others. Default of each field: the template's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,

    /// Labels, at most 64, that a node (KubeVirt) or a LibvirtHost (libvirt) must have to run the
    /// machine. Default: none, so any node or host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub node_selector: Option<BTreeMap<String, String>>,

    /// Fields of the object that the backend makes of the machine, beside those of this spec. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_overrides: Option<BackendOverrides>,

    /// Values that the other fields of this spec resolve to. The webhook writes it at each change of
    /// the spec. Do not edit it: edit the other fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub normalized: Option<Normalized>,
}
