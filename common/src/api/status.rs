//! The status of a `Machine`, written by the controller.
//!
//! Another release may have written it. A field with a value that this release does not know is read
//! as absent, and an unreadable item of a list is left out; the other fields are kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::Phase;
use super::lenient::{or_absent, readable_items};
use super::schema;
use crate::bounds;

/// State of a machine as the controller last observed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// Stage of the machine's life: Pending, Creating, Running, Stopped or Failed.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub phase: Option<Phase>,
    /// Aspects of the machine's state. The message of each says what to do.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::CONDITIONS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation of the Machine this status is about.
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
    /// Name of the running KubeVirt VirtualMachineInstance.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub vmi_name: Option<String>,
    /// IP addresses of the guest, card by card, IPv4 first. Addresses without meaning outside the
    /// guest, such as 127.0.0.1 and fe80::1, are listed only where there is no other.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ip_addresses: Vec<String>,
    /// Node or host the guest runs on.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub node_name: Option<String>,
    /// LibvirtHost the machine is bound to.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub host: Option<String>,
    /// When this status last changed.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<schema::Timestamp>")]
    pub last_updated: Option<String>,
    /// resourceVersion of the Machine as it was read when this status last changed.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub resource_version: Option<String>,
    /// Network cards of the running guest.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub network_interfaces: Vec<InterfaceStatus>,
    /// Operating system of the guest, as its agent reports it. Absent without an agent.
    #[serde(
        default,
        deserialize_with = "or_absent",
        rename = "guestOS",
        skip_serializing_if = "Option::is_none"
    )]
    pub guest_os: Option<GuestOs>,
    /// The last restart that was requested by annotation.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_restart: Option<LastRestart>,
    /// Volumes of the disks, in the order of the spec.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volumes: Vec<VolumeStatus>,
    /// Changes of the spec that the running guest does not have yet.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pending_changes: Vec<PendingChange>,
}

/// One aspect of an object's state, in Kubernetes' standard form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Aspect that the condition describes, such as Ready.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = bounds::CONDITION_TYPE_MAX))]
    pub kind: String,
    /// True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Reason for the status, as one CamelCase word.
    #[schemars(length(min = 1, max = bounds::CONDITION_REASON_MAX))]
    pub reason: String,
    /// Explanation for people, with what to do.
    #[schemars(length(max = bounds::CONDITION_MESSAGE_MAX))]
    pub message: String,
    /// When the status last changed.
    #[schemars(with = "schema::Timestamp")]
    pub last_transition_time: String,
    /// Generation of the object the condition is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A network card of the running guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Name of the card in the spec.
    pub name: String,
    /// MAC address, six bytes with colons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// IP addresses of the card, IPv4 first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
}

/// The operating system of a guest, as its agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestOs {
    /// Name of the distribution, such as Fedora Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version of the distribution, such as 40 (Cloud Edition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Release of the kernel, as `uname -r` prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// A restart that was requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastRestart {
    /// Text of the annotation machine.vitistack.io/restart-requested. The same text does not restart
    /// the machine again.
    #[schemars(length(max = bounds::TEXT_MAX))]
    pub request: String,
    /// Uid of the VirtualMachineInstance that is being replaced. Absent once another one runs, or if
    /// there was none.
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
    /// Capacity that the volume has, as a quantity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    /// Progress of the import of its image, such as 40%. Absent when no import is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
}

/// A change of the spec that the running guest does not have yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingChange {
    /// Path of the field in the block.
    pub field: String,
    /// Value that the running guest has.
    pub current: String,
    /// Value that the spec asks for.
    pub desired: String,
    /// What brings it into effect: Restart (the next restart of the guest), LiveMigration (KubeVirt
    /// plugs it in by migrating the guest) or HotPlug (it is being plugged into the running guest on
    /// its libvirt host).
    pub action: String,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status() -> Value {
        json!({
            "phase": "Running",
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Running", "message": "the guest runs",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3,
            }],
            "observedGeneration": 3,
            "vmName": "web",
            "vmiName": "web",
            "ipAddresses": ["192.0.2.1"],
            "nodeName": "node-1",
            "host": "hv1",
            "lastUpdated": "2026-01-01T00:00:00Z",
            "resourceVersion": "42",
            "networkInterfaces": [{"name": "eth0", "macAddress": "52:54:00:00:00:01"}],
            "guestOS": {"name": "Fedora Linux"},
            "lastRestart": {"request": "now"},
            "volumes": [{"name": "root", "claimName": "web-root"}],
            "pendingChanges": [
                {"field": "cpu.cores", "current": "1", "desired": "2", "action": "Restart"},
            ],
        })
    }

    #[test]
    fn an_unknown_value_loses_its_field_and_no_other() {
        let written = status();
        let read: MachineStatus = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(
            serde_json::to_value(read).unwrap(),
            written,
            "every field is read"
        );
        for field in written.as_object().unwrap().keys() {
            for unknown in [json!({"of": "a later release"}), json!([7]), json!(null)] {
                let mut changed = written.clone();
                changed[field] = unknown;
                let read: MachineStatus = serde_json::from_value(changed).unwrap();
                let mut expected = written.clone();
                expected.as_object_mut().unwrap().remove(field);
                let mut read = serde_json::to_value(read).unwrap();
                // An object without a known key is a guest of which nothing is known.
                if field == "guestOS" {
                    read.as_object_mut().unwrap().remove(field);
                }
                assert_eq!(read, expected, "{field}");
            }
        }
    }

    #[test]
    fn an_unreadable_item_loses_itself_and_no_other() {
        let mut written = status();
        let items = written["conditions"].as_array_mut().unwrap();
        items.push(json!({"type": "Novel"}));
        let read: MachineStatus = serde_json::from_value(written).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), status());
    }

    #[test]
    fn an_unknown_phase_keeps_the_restart_that_was_done() {
        let written = json!({"phase": "Hibernating", "lastRestart": {"request": "now"}});
        let read: MachineStatus = serde_json::from_value(written).unwrap();
        assert_eq!(read.phase, None);
        assert_eq!(read.last_restart.unwrap().request, "now");
    }
}
