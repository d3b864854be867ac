//! The status of a `Machine`, written by the controller.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::Phase;
use super::schema;
use crate::bounds;

/// What is known of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// Where the machine is in its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What holds and what does not, and what to do about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::CONDITIONS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation of the Machine this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Name of the KubeVirt VirtualMachine, or of the libvirt domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_name: Option<String>,
    /// Name of the running KubeVirt VirtualMachineInstance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vmi_name: Option<String>,
    /// Addresses of the guest, card by card, IPv4 first. Those that mean nothing elsewhere, such as
    /// 127.0.0.1 and fe80::1, only where there is no other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
    /// Node or host the guest runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// LibvirtHost the machine is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// When this status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Timestamp>")]
    pub last_updated: Option<String>,
    /// resourceVersion of the Machine as it was read when this status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Network cards as the guest has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network_interfaces: Vec<InterfaceStatus>,
    /// What the guest runs, as its agent tells. Absent without one.
    #[serde(rename = "guestOS", skip_serializing_if = "Option::is_none")]
    pub guest_os: Option<GuestOs>,
    /// The last restart that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_restart: Option<LastRestart>,
    /// Volumes of the disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeStatus>,
    /// Changes that are wished but not yet in effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_changes: Vec<PendingChange>,
}

/// One aspect of an object's state, in Kubernetes' standard form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = bounds::CONDITION_TYPE_MAX))]
    pub kind: String,
    /// True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Why, as one CamelCase word.
    #[schemars(length(min = 1, max = bounds::CONDITION_REASON_MAX))]
    pub reason: String,
    /// Why, as a sentence that says what to do.
    #[schemars(length(max = bounds::CONDITION_MESSAGE_MAX))]
    pub message: String,
    /// When the status last changed.
    #[schemars(with = "schema::Timestamp")]
    pub last_transition_time: String,
    /// Generation of the object the condition is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A network card as the guest has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Name of the card in the spec.
    pub name: String,
    /// MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// Addresses, IPv4 and IPv6.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
}

/// The operating system of a guest, as its agent tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestOs {
    /// Name, such as Fedora Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version, such as 40 (Cloud Edition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Release of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// A restart that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastRestart {
    /// Text of the annotation machine.vitistack.io/restart-requested that asked for it. It is not
    /// acted on again.
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub request: String,
    /// Uid of the VirtualMachineInstance that has to go. Absent when another one has taken its place,
    /// or there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// The volume of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// Name of the disk in the spec.
    pub name: String,
    /// Name of the PersistentVolumeClaim, or of the libvirt volume.
    pub claim_name: String,
    /// Phase of the claim: Pending, Bound or Lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Capacity it really has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    /// Progress of the import of its image while it lasts, such as 40%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
}

/// A change that is wished but not yet in effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingChange {
    /// Path of the field in the block.
    pub field: String,
    /// What the running guest has.
    pub current: String,
    /// What the spec wishes.
    pub desired: String,
    /// What brings it into effect: Restart, or LiveMigration where KubeVirt is plugging it in.
    pub action: String,
}
