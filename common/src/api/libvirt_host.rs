//! `LibvirtHost`: a host whose libvirt runs Machines.
//!
//! ```text
//! spec ── what its administrator offers: how to get there, classes ──▶ pools, networks ──▶ bridges
//! status ── what the controller found there
//! ```
//! Pools and networks are the administrator's: they are looked up and reported, never made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cel;
use super::choice::{CpuMode, HostNetworkType, Provisioning, VirtType, VolumeFormat};
use super::lenient::{or_absent, readable_items};
use super::schema;
use super::status::Condition;
use crate::bounds;
use crate::quantity::Bytes;

/// A host whose libvirt runs Machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "vitistack.io",
        version = "v1alpha1",
        kind = "LibvirtHost",
        plural = "libvirthosts",
        shortname = "lvh",
        category = "vitistack",
        status = "LibvirtHostStatus",
        doc = "A host whose libvirt runs Machines.",
        printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
        printcolumn = r#"{"name":"Reachable","type":"string","jsonPath":".status.conditions[?(@.type==\"Reachable\")].status"}"#,
        printcolumn = r#"{"name":"Schedulable","type":"boolean","jsonPath":".spec.schedulable","description":"Empty: true"}"#,
        printcolumn = r#"{"name":"CPU","type":"integer","jsonPath":".status.allocatable.cpu","description":"vCPUs that Machines may have"}"#,
        printcolumn = r#"{"name":"Memory","type":"string","jsonPath":".status.allocatable.memory","description":"Memory that Machines may have"}"#,
        printcolumn = r#"{"name":"Machines","type":"integer","jsonPath":".status.domains.ours"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
        printcolumn = r#"{"name":"URI","type":"string","jsonPath":".spec.uri","priority":1}"#,
        printcolumn = r#"{"name":"Libvirt","type":"string","jsonPath":".status.libvirtVersion","priority":1}"#,
        printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [cel::credentials()]))]
pub struct LibvirtHostSpec {
    /// Where its libvirt is: qemu:///system on the controller's own host, qemu+tls://host/system or
    /// qemu+ssh://user@host/system elsewhere; test:///default is libvirt's own mock. No parameters.
    #[schemars(with = "schema::HostUriText")]
    pub uri: String,
    /// Secret with what the controller shows the host: tls.crt, tls.key and ca.crt for tls,
    /// ssh-privatekey and known_hosts for ssh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<CredentialsSecretRef>,
    /// How its guests are run: kvm, or qemu where the processor does not help. Said here, never
    /// guessed: a host may have /dev/kvm and not be able to use it.
    pub virt_type: VirtType,
    /// Which CPU guests see: host-passthrough, host-model or maximum. Default: host-passthrough with
    /// kvm, maximum with qemu.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_mode: Option<CpuMode>,
    /// Whether new Machines are placed here. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable: Option<bool>,
    /// Whether the controller only observes what is here, and changes nothing. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<bool>,
    /// How many times what the host has its Machines may have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overcommit: Option<Overcommit>,
    /// What is kept for the host itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Reserved>,
    /// The storage classes that disks may name here, and the pools they stand for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::HOST_CLASSES_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["storageClass"]))]
    pub storage: Option<Vec<HostStorage>>,
    /// Pool that images are downloaded to, and that image.volume names volumes of. Absent: Machines
    /// with images do not fit here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LibvirtName>")]
    pub image_pool: Option<String>,
    /// The networks that Machines may be on here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::HOST_NETWORKS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub networks: Option<Vec<HostNetwork>>,
}

/// A Secret by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsSecretRef {
    /// Namespace of the Secret.
    #[schemars(with = "schema::Label")]
    pub namespace: String,
    /// Name of the Secret.
    #[schemars(with = "schema::ObjectName")]
    pub name: String,
}

/// How many times what a host has its Machines may have together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Overcommit {
    /// vCPUs for each CPU of the host, such as "4" or "1.5". Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Factor>")]
    pub cpu: Option<String>,
    /// Memory of guests for the memory of the host, such as "1.2". Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Factor>")]
    pub memory: Option<String>,
}

/// What is kept for a host itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    /// CPUs, such as 1 or 500m. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub cpu: Option<String>,
    /// Memory, such as 2Gi. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub memory: Option<String>,
}

/// A storage class, and what it stands for on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.format) || self.format != 'raw' || (has(self.provisioning) && self.provisioning == 'copy')",
        "message": "format raw needs provisioning: copy, because a raw volume cannot stand on another one"
    }
]))]
pub struct HostStorage {
    /// Name that disks name in storageClass. No StorageClass of Kubernetes has to have it.
    #[schemars(with = "schema::HostClassName")]
    pub storage_class: String,
    /// Pool of libvirt's that the volumes are made in.
    #[schemars(with = "schema::LibvirtName")]
    pub pool: String,
    /// Format of the volumes: qcow2 (default) or raw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<VolumeFormat>,
    /// How a volume comes to the content of an image: overlay (default), which stands on the image
    /// and is made at once, or copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
}

/// A network, and what it is on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "self.type != 'bridge' || !has(self.vlans) || self.vlans.size() <= 1",
        "message": "a plain bridge is in one VLAN at most; use a bridge for each, or type ovs"
    },
    {
        "rule": "self.type == 'network' || self.source.matches('^[^\\\\s/:]{1,15}$')",
        "message": "source must be the name of a Linux interface: at most 15 characters without blanks, '/' and ':'"
    }
]))]
pub struct HostNetwork {
    /// The bridge that a NetworkConfiguration names, or default for network cards that name none.
    #[schemars(with = "schema::BridgeName")]
    pub name: String,
    /// What it is: network (of libvirt's), bridge or ovs.
    #[serde(rename = "type")]
    pub kind: HostNetworkType,
    /// Its name on the host.
    #[schemars(with = "schema::LibvirtName")]
    pub source: String,
    /// VLANs that are offered. Absent: any with ovs, untagged only with the others. A plain bridge is
    /// in one VLAN at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::HOST_VLANS_MAX), inner(range(min = bounds::VLAN_MIN, max = bounds::VLAN_MAX)), extend("x-kubernetes-list-type" = "set"))]
    pub vlans: Option<Vec<u16>>,
}

impl HostNetwork {
    /// Whether it carries this VLAN, or frames without a tag.
    pub fn carries(&self, vlan: Option<i64>) -> bool {
        match (&self.vlans, vlan) {
            (None, None) => true,
            (None, Some(_)) => self.kind == HostNetworkType::Ovs,
            (Some(vlans), None) => vlans.is_empty(),
            (Some(vlans), Some(vlan)) => vlans.iter().any(|known| i64::from(*known) == vlan),
        }
    }
}

/// State of a host as the controller last observed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LibvirtHostStatus {
    /// Aspects of the host's state: Reachable, Ready, PoolsReady and NetworksReady. The message of each
    /// says what to do.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::CONDITIONS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation of the LibvirtHost this status is about.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub observed_generation: Option<i64>,
    /// Version of libvirt on the host, such as 9.0.0.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::NAME_MAX))]
    pub libvirt_version: Option<String>,
    /// Version of the hypervisor on the host, such as 7.2.22.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::NAME_MAX))]
    pub hypervisor_version: Option<String>,
    /// Machine types that the host can run, as QEMU names them.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::MACHINE_TYPES_MAX), inner(length(max = bounds::NAME_MAX)), extend("x-kubernetes-list-type" = "set"))]
    pub machine_types: Vec<String>,
    /// Firmware in addition to BIOS that the host can boot guests with.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub firmware: Option<HostFirmware>,
    /// CPUs and memory of the host.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub capacity: Option<HostResources>,
    /// CPUs and memory for all Machines together: capacity less reserved, times overcommit.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub allocatable: Option<HostResources>,
    /// CPUs and memory of the Machines bound to the host and of foreign domains.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub allocated: Option<HostResources>,
    /// Number of domains on the host.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub domains: Option<HostDomains>,
    /// When the host last answered the controller.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<schema::Timestamp>")]
    pub last_seen_time: Option<String>,
    /// Machines that were deleted while the host did not answer. Their domains and volumes are removed
    /// once it answers.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::TOMBSTONES_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"]))]
    pub tombstones: Vec<Tombstone>,
}

/// Firmware a host can boot guests with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFirmware {
    /// UEFI.
    pub efi: bool,
    /// UEFI with Secure Boot.
    pub secure_boot: bool,
}

/// CPUs and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostResources {
    /// CPUs.
    pub cpu: u32,
    /// Memory.
    #[schemars(with = "schema::QuantityText")]
    pub memory: Bytes,
}

/// Domains on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostDomains {
    /// Those of Machines.
    pub ours: u32,
    /// Those that somebody else made. They are never touched.
    pub foreign: u32,
    /// Those whose Machine is gone or is bound to another host.
    pub orphaned: u32,
}

/// A Machine that was deleted while its host did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tombstone {
    /// Its namespace and name, with a slash between.
    #[schemars(length(max = 2 * bounds::NAME_MAX + 1))]
    pub machine: String,
    /// Its uid.
    #[schemars(length(min = 1, max = bounds::NAME_MAX))]
    pub uid: String,
    /// When it was deleted.
    #[schemars(with = "schema::Timestamp")]
    pub since: String,
}
