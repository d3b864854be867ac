//! The status of a `Machine`, written by the controller.
//!
//! Another release may have written it. A field with a value that this release does not support is read
//! as absent, and an unreadable item of a list is left out; the other fields are kept. So it is in objects and items. One
//! of which a required field cannot be read is absent, apart from a volume: its name alone says that its disk exists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::{MigrationResult, Phase, ResetResult};
use super::lenient::{or_absent, or_default, readable_items};
use super::schema;
use crate::bounds;

/// State of a machine as the controller last observed it. Written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// Summary of the machine's state: Pending, Creating, Running, Stopped or Failed.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub phase: Option<Phase>,
    /// Aspects of the machine's state, at most 32. The message of each says what to do.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::CONDITIONS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// metadata.generation of the Machine that this status describes.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub observed_generation: Option<i64>,
    /// Name of the KubeVirt VirtualMachine, or of the libvirt domain.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub vm_name: Option<String>,
    /// Name of the running KubeVirt VirtualMachineInstance. Absent on libvirt and while none runs.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub vmi_name: Option<String>,
    /// IP addresses of the guest in the order of its network cards, IPv4 first, at most 64. Addresses that
    /// are not reachable from outside the guest, such as 127.0.0.1 and fe80::1, are listed only if there are
    /// no others.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::GUEST_ADDRESSES_MAX), inner(length(max = bounds::GUEST_ADDRESS_MAX)))]
    pub ip_addresses: Vec<String>,
    /// Name of the node or host that the guest runs on. Absent while it does not run.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub node_name: Option<String>,
    /// Name of the LibvirtHost that the machine is bound to. Absent on KubeVirt.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub host: Option<String>,
    /// Time of the last change of this status.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<schema::Timestamp>")]
    pub last_updated: Option<String>,
    /// metadata.resourceVersion of the Machine from which this status was computed.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub resource_version: Option<String>,
    /// vCPUs of the machine: sockets × cores × threads of spec.normalized.cpu.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub vcpus: Option<u32>,
    /// Network cards of the running guest, at most 32.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::NETWORKS_MAX))]
    pub network_interfaces: Vec<InterfaceStatus>,
    /// Operating system of the guest, as the guest agent reports it. Absent without an agent.
    #[serde(
        default,
        deserialize_with = "or_absent",
        rename = "guestOS",
        skip_serializing_if = "Option::is_none"
    )]
    pub guest_os: Option<GuestOs>,
    /// Screen of the running guest. Absent without a password that is in effect.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub display: Option<DisplayStatus>,
    /// Last restart: requested by annotation, or needed because the guest was taken down from outside or has to be
    /// created again. Absent if there was none.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_restart: Option<LastRestart>,
    /// Last migration that a user requested by annotation. Absent if none was requested.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_migration: Option<LastMigration>,
    /// Last reset that a user requested by annotation. Absent if none was requested.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_reset: Option<LastReset>,
    /// Volumes of the disks and CD-ROM drives, in the order of spec.normalized, at most 80.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::DISKS_MAX + bounds::CDROMS_MAX))]
    pub volumes: Vec<VolumeStatus>,
    /// Volumes on the libvirt host that are kept of disks which left the spec, the largest first, at most
    /// 256. They count in the quota of the namespace.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::KEPT_DISKS_MAX))]
    pub kept_volumes: Vec<VolumeStatus>,
    /// Changes of the spec that are not yet effective in the running guest, at most 512.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::PENDING_CHANGES_MAX))]
    pub pending_changes: Vec<PendingChange>,
}

/// One aspect of an object's state, in Kubernetes' standard form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Aspect that the condition describes, such as Ready: one CamelCase word.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = bounds::CONDITION_TYPE_MAX))]
    pub kind: String,
    /// Whether the aspect holds: True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Reason for the status, as one CamelCase word.
    #[schemars(length(min = 1, max = bounds::CONDITION_REASON_MAX))]
    pub reason: String,
    /// Explanation for people, with what to do.
    #[schemars(length(max = bounds::CONDITION_MESSAGE_MAX))]
    pub message: String,
    /// Time of the last change of status: RFC 3339 in UTC.
    #[schemars(with = "schema::Timestamp")]
    pub last_transition_time: String,
    /// metadata.generation of the object that the condition describes.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub observed_generation: Option<i64>,
}

/// Screen of a running guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisplayStatus {
    /// metadata.resourceVersion of the Secret whose password is in effect.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub password_version: Option<String>,
}

/// A network card: of the running guest, and one that the controller holds addresses for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Name of the card in the spec.
    pub name: String,
    /// MAC address of the card: six bytes in hexadecimal, separated by colons.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub mac_address: Option<String>,
    /// IP addresses that the controller holds for the card, given in the spec or allocated, at most 64. The
    /// guest gets them when it is made.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::GUEST_ADDRESSES_MAX), inner(length(max = bounds::GUEST_ADDRESS_MAX)))]
    pub allocated_addresses: Vec<String>,
    /// IP addresses that the guest reports of the card, IPv4 first, at most 64.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::GUEST_ADDRESSES_MAX), inner(length(max = bounds::GUEST_ADDRESS_MAX)))]
    pub ip_addresses: Vec<String>,
}

/// The operating system of a guest, as the guest agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestOs {
    /// Name of the distribution, such as Fedora Linux, at most 256 bytes.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::GUEST_TEXT_MAX))]
    pub name: Option<String>,
    /// Version of the distribution, such as 40 (Cloud Edition), at most 256 bytes.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::GUEST_TEXT_MAX))]
    pub version: Option<String>,
    /// Release of the kernel, as `uname -r` prints it, at most 256 bytes.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::GUEST_TEXT_MAX))]
    pub kernel: Option<String>,
}

/// The last restart: requested, or needed because the guest was taken down from outside or has to be created again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastRestart {
    /// Value of the annotation machine.vitistack.io/restart-requested, at most 1024 characters. Only
    /// another value restarts the machine again.
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub request: String,
    /// metadata.uid of the VirtualMachineInstance that the restart replaces; empty if the guest had shut
    /// itself down and no instance was left. Absent if none was running, and after the next one has come up.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub replaces: Option<String>,
    /// Why the guest is started again, if not because of the request: its pod was evicted or deleted, its
    /// node was drained, or it never ran and the spec has changed. At most 1024 characters. Absent otherwise,
    /// and after the next guest has started.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub cause: Option<String>,
}

/// The last requested reset of the hardware of a running guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastReset {
    /// Value of the annotation machine.vitistack.io/reset-requested, at most 1024 characters. Only another value resets the
    /// guest again.
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub request: String,
    /// How it has ended: Done or Refused. Absent if it was written by another release and is not known.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<ResetResult>,
    /// Why nothing was reset, and what to do. At most 1024 characters. Absent after a reset.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub message: Option<String>,
}

/// The last requested migration: of a running guest to another node, or of a stopped Machine to another libvirt host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastMigration {
    /// Value of the annotation machine.vitistack.io/migrate-requested, at most 1024 characters. Only another value
    /// moves the guest again.
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub request: String,
    /// Value of the annotation machine.vitistack.io/migrate-to at the time of the request, at most 253 characters: the node
    /// that the guest is moved to, absent if KubeVirt chooses. On libvirt the LibvirtHost that the Machine is moved to.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::OBJECT_NAME_MAX))]
    pub node: Option<String>,
    /// Name of the VirtualMachineInstanceMigration. Absent once the migration has ended.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub migration: Option<String>,
    /// Name of the LibvirtHost that the Machine leaves. Present until the Machine has its definition on the other one.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::OBJECT_NAME_MAX))]
    pub from: Option<String>,
    /// How the migration has ended: Succeeded, Failed or Refused. Absent before.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<MigrationResult>,
    /// How far it is, or why it has ended like this and what to do. At most 1024 characters. Absent until KubeVirt has the
    /// migration.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub message: Option<String>,
}

/// The volume of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// Name of the disk in the spec.
    pub name: String,
    /// Name of the PersistentVolumeClaim, or of the libvirt volume.
    #[serde(deserialize_with = "or_default")]
    pub claim_name: String,
    /// Phase of the PersistentVolumeClaim: Pending, Bound or Lost. Absent if it is not known.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub phase: Option<String>,
    /// Current capacity of the volume: a quantity in bytes. Absent before the volume exists.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub capacity: Option<String>,
    /// Progress of the image import in percent, such as 40%. Absent when no import is running.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub progress: Option<String>,
}

/// A change of the spec that is not yet effective in the running guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingChange {
    /// Path of the field below spec.normalized, or metadata.labels or metadata.annotations.
    pub field: String,
    /// Value in the running guest.
    pub current: String,
    /// Value in the Machine.
    pub desired: String,
    /// What makes the change effective: Restart (the next restart of the guest, which reads some data
    /// for cloud-init on a new instance only: see the condition RestartRequired), LiveMigration (the
    /// next live migration, which KubeVirt begins by itself for some fields: see the condition
    /// MigrationRequired) or HotPlug (the backend changes the running guest).
    pub action: String,
}

impl MachineStatus {
    /// This status with lists that the CRD accepts: what is beyond their limits is left out.
    #[must_use]
    pub fn within_limits(mut self) -> Self {
        self.ip_addresses.truncate(bounds::GUEST_ADDRESSES_MAX);
        self.network_interfaces.truncate(bounds::NETWORKS_MAX);
        for nic in &mut self.network_interfaces {
            nic.ip_addresses.truncate(bounds::GUEST_ADDRESSES_MAX);
            nic.allocated_addresses
                .truncate(bounds::GUEST_ADDRESSES_MAX);
        }
        self.volumes
            .truncate(bounds::DISKS_MAX + bounds::CDROMS_MAX);
        self.kept_volumes.truncate(bounds::KEPT_DISKS_MAX);
        self.pending_changes.truncate(bounds::PENDING_CHANGES_MAX);
        self
    }
}

#[cfg(test)]
mod tests;
