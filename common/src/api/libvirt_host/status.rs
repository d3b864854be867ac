//! `LibvirtHost.status`: what the controller observed on the host.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::{Choice as _, HugepageSize};
use crate::api::left_volumes::{KeptVolume, Tombstone};
use crate::api::lenient::{or_absent, readable_items};
use crate::api::schema;
use crate::api::status::Condition;
use crate::bounds;
use crate::quantity::Bytes;

/// State of a host as the controller last observed it. Written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LibvirtHostStatus {
    /// Aspects of the host's state: Reachable, Ready, PoolsReady, NetworksReady, MacFiltered and Confined, and
    /// VolumesListed if volumes of deleted Machines are in no list. The message of each says what to do.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::CONDITIONS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// metadata.generation of the LibvirtHost that this status describes.
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
    /// UUID of the host, as virsh capabilities prints it. While it has domains of Machines, a host with another UUID and no
    /// domain of its Machines is not used, unless the annotation machine.vitistack.io/accept-host has its UUID.
    #[serde(
        rename = "hostUUID",
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = bounds::NAME_MAX))]
    pub host_uuid: Option<String>,
    /// Machine types that the host can run, with their QEMU names, at most 512.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::MACHINE_TYPES_MAX), inner(length(max = bounds::NAME_MAX)), extend("x-kubernetes-list-type" = "set"))]
    pub machine_types: Vec<String>,
    /// CPU models that guests can have with the virtType of the host, with host-model and the like, at most 512. Absent
    /// if the host does not say.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::CPU_MODELS_MAX), inner(length(max = bounds::CPU_MODEL_MAX)), extend("x-kubernetes-list-type" = "set"))]
    pub cpu_models: Vec<String>,
    /// Sizes of the huge pages that the host has, whether guests have them or not. Absent if the host does not say.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = HugepageSize::ALL.len()), extend("x-kubernetes-list-type" = "set"))]
    pub hugepages: Option<Vec<HugepageSize>>,
    /// Firmware other than BIOS that the host can boot guests with.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub firmware: Option<HostFirmware>,
    /// Whether the host can emulate a TPM 2.0, which swtpm does.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub tpm: Option<bool>,
    /// CPUs and memory of the host.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub capacity: Option<HostResources>,
    /// CPUs and memory for all Machines together: (capacity − reserved) × overcommit. Each CPU of spec.dedicatedCpus counts
    /// as one, whatever is reserved and overcommitted.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub allocatable: Option<HostResources>,
    /// CPUs and memory of all domains on the host, and of Machines bound to it that have no domain yet.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub allocated: Option<HostResources>,
    /// Numbers of domains on the host.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub domains: Option<HostDomains>,
    /// Time of the host's last answer to the controller.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<schema::Timestamp>")]
    pub last_seen_time: Option<String>,
    /// Machines that were deleted while the host did not answer, or while one of its pools could not be read or was not
    /// mounted, at most 1024. The controller removes their domains and volumes when the host answers and its pools can
    /// be read again.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::TOMBSTONES_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"]))]
    pub tombstones: Vec<Tombstone>,
    /// Volumes that are kept of Machines which were deleted, at most 1024, and at most 256 of one namespace. The
    /// annotation machine.vitistack.io/release-volume deletes one: on a Machine of the same name, or, as pool/volume,
    /// on this LibvirtHost.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::KEPT_VOLUMES_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pool", "volume"]))]
    pub kept_volumes: Vec<KeptVolume>,
    /// Number of disks in the pools of spec.storage that have the names of Machines which do not exist, and that neither
    /// keptVolumes nor tombstones list. The condition VolumesListed names some of them.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub unlisted_volumes: Option<u32>,
}

/// Firmware that a host can boot guests with, in addition to BIOS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFirmware {
    /// Whether the host can boot guests with UEFI.
    pub efi: bool,
    /// Whether the host can boot guests with UEFI and Secure Boot.
    pub secure_boot: bool,
}

/// Amounts of CPUs and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostResources {
    /// Number of CPUs.
    pub cpu: u32,
    /// Memory: a quantity in bytes.
    #[schemars(with = "schema::QuantityText")]
    pub memory: Bytes,
}

impl HostResources {
    /// What is allocated on a host with so many dedicated CPUs left, as a Machine sees it: without dedicated CPUs of its own it
    /// gets nothing of those.
    #[must_use]
    pub fn beside_dedicated(self, cpus_left: u32, has_dedicated: bool) -> Self {
        let kept = if has_dedicated { 0 } else { cpus_left };
        Self {
            cpu: self.cpu.saturating_add(kept),
            ..self
        }
    }

    /// What is left of it.
    #[must_use]
    pub fn less(self, taken: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(taken.cpu),
            memory: Bytes::new(self.memory.get().saturating_sub(taken.memory.get())),
        }
    }
}

/// Numbers of domains on a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostDomains {
    /// Domains of Machines that exist.
    pub ours: u32,
    /// Domains that the controller did not create. It never changes them.
    pub foreign: u32,
    /// Domains that the controller created for a Machine that no longer exists.
    pub orphaned: u32,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status() -> Value {
        let resources = json!({"cpu": 8, "memory": "16Gi"});
        json!({
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Ready", "message": "the host runs Machines",
                "lastTransitionTime": "2026-11-28T09:00:00Z",
            }],
            "observedGeneration": 3,
            "libvirtVersion": "9.0.0",
            "hostUUID": "00000000-0000-0000-0000-00000000000a",
            "capacity": resources,
            "allocated": resources,
            "lastSeenTime": "2026-11-28T09:00:00Z",
            "tombstones": [{"machine": "default/web", "uid": "gone", "since": "2026-11-28T09:00:00Z", "volumes": []}],
            "keptVolumes": [{
                "machine": "default/db", "uid": "gone", "disk": "data", "pool": "vms", "volume": "default-db.data.qcow2",
            }],
        })
    }

    /// What a host still has of deleted Machines must not be lost with another field.
    #[test]
    fn a_field_with_an_unknown_value_is_read_as_absent_and_the_others_are_kept() {
        let written = status();
        let read: LibvirtHostStatus = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(
            serde_json::to_value(read).unwrap(),
            written,
            "every field is read"
        );
        for field in written.as_object().unwrap().keys() {
            for unknown in [json!("of a later release"), json!([7]), json!(null)] {
                let mut changed = written.clone();
                changed[field] = unknown.clone();
                let read: LibvirtHostStatus = serde_json::from_value(changed.clone()).unwrap();
                // Any text is a version or a time.
                if unknown.is_string() && written[field].is_string() {
                    assert_eq!(serde_json::to_value(read).unwrap(), changed, "{field}");
                    continue;
                }
                let mut expected = written.clone();
                expected.as_object_mut().unwrap().remove(field);
                assert_eq!(serde_json::to_value(read).unwrap(), expected, "{field}");
            }
        }
    }

    #[test]
    fn an_unreadable_tombstone_is_left_out_and_the_others_are_kept() {
        let mut written = status();
        let items = written["tombstones"].as_array_mut().unwrap();
        items.push(json!({"of": "a later release"}));
        let read: LibvirtHostStatus = serde_json::from_value(written).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), status());
    }
}
