//! Machines and statuses for unit tests.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use common::api::choice::{
    AccessMode, Backend, DiskBus, FirmwareType, MachineType, NicModel, PowerState, ReclaimPolicy,
    VolumeMode,
};
use common::api::normalized::{
    BLOCK_VERSION, ExistingDisk, Firmware, Normalized, NormalizedCpu, NormalizedDisk,
    NormalizedFeatures, NormalizedMemory, NormalizedNetwork,
};
use common::api::status::{Condition, MachineStatus};
use common::names;
use common::quantity::Bytes;
use common::render::CloudInitPlan;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::addresses::Conflict;
use crate::cache::compressed::Compressed;
use crate::caches::Caches;
use crate::held_addresses::Addresses;
use crate::machine::{Block, CachedMachine, Machine};
use crate::machine_index::MachineIndex;
use crate::objects::{Meta as _, Network};

/// A new Machine `default/web` with this block.
pub fn machine(block: Normalized) -> Machine {
    Machine {
        metadata: ObjectMeta {
            name: Some("web".into()),
            namespace: Some("default".into()),
            uid: Some("uid-of-web".into()),
            generation: Some(1),
            resource_version: Some("1".into()),
            ..ObjectMeta::default()
        },
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        backend: Some(block.backend),
        is_protected: block.deletion_protection,
        block: Block::Matching(Box::new(block)),
        cloud_init: CloudInitPlan::default(),
        status: MachineStatus::default(),
        named_template: None,
        lacks_template: false,
        namespace_uid: String::new(),
        addresses: Addresses::default(),
    }
}

/// Sets an annotation.
pub fn annotate(machine: &mut Machine, key: &str, value: &str) {
    let annotations = machine.metadata.annotations.get_or_insert_default();
    annotations.insert(key.to_owned(), value.to_owned());
}

/// Sets the paused annotation.
pub fn pause(machine: &mut Machine) {
    annotate(machine, names::ANNOTATION_PAUSED, "true");
}

/// A block for the KubeVirt backend: 2 vCPUs, 2 GiB, the disk `root`, the card `default` on the pod network.
pub fn block() -> Normalized {
    Normalized {
        version: BLOCK_VERSION,
        intent_hash: "sha256:0".into(),
        template: None,
        annotation_keys: Vec::new(),
        backend: Backend::Kubevirt,
        power_state: PowerState::Running,
        deletion_protection: false,
        guest_shutdown_stops: false,
        cpu: NormalizedCpu {
            sockets: 1,
            cores: 2,
            threads: 1,
            max_sockets: 1,
        },
        hardware: None,
        watchdog: None,
        probes: None,
        overrides: None,
        memory: NormalizedMemory {
            size: Bytes::mib(2048),
            max_size: Bytes::mib(2048),
        },
        machine_type: MachineType::Q35,
        firmware: Firmware {
            persistent: None,
            kind: FirmwareType::Bios,
            secure_boot: None,
        },
        os: None,
        tpm: None,
        timezone: None,
        termination_grace_period_seconds: None,
        eviction_strategy: None,
        placement: None,
        features: NormalizedFeatures {
            acpi: true,
            apic: true,
            hyperv: false,
        },
        disks: vec![disk("root", ReclaimPolicy::Delete)],
        existing_disks: vec![],
        cdroms: vec![],
        networks: vec![nic("default", None)],
        display: None,
        console: None,
        node_selector: BTreeMap::new(),
    }
}

/// A disk on an existing claim.
pub fn existing_disk(name: &str, claim: &str) -> ExistingDisk {
    ExistingDisk {
        boot_order: None,
        bus: DiskBus::Virtio,
        claim_name: Some(claim.into()),
        name: name.into(),
        serial: None,
        shareable: false,
        volume_name: None,
    }
}

/// A disk of 20 GiB without an image.
pub fn disk(name: &str, reclaim_policy: ReclaimPolicy) -> NormalizedDisk {
    NormalizedDisk {
        name: name.into(),
        size: Bytes::mib(20 * 1024),
        storage_class: "standard".into(),
        access_mode: AccessMode::ReadWriteOnce,
        volume_mode: VolumeMode::Filesystem,
        bus: DiskBus::Virtio,
        boot_order: None,
        hotpluggable: false,
        reclaim_policy,
        image: None,
        selector: None,
        image_pin: None,
        serial: None,
        volume_name: None,
    }
}

/// A network card without an address; `network`: its NetworkConfiguration.
pub fn nic(name: &str, network: Option<&str>) -> NormalizedNetwork {
    NormalizedNetwork {
        name: name.into(),
        network_name: network.map(Into::into),
        model: NicModel::Virtio,
        mac_address: None,
        ip_addresses: vec![],
        boot_order: None,
    }
}

/// A Machine of this name, uid and block, whose status names the host.
pub fn cached(name: &str, uid: &str, block: Normalized, host: Option<&str>) -> CachedMachine {
    let mut machine = machine(block);
    machine.metadata.name = Some(name.into());
    machine.metadata.uid = Some(uid.into());
    machine.status.host = host.map(Into::into);
    CachedMachine::from(machine)
}

/// Machines with these uids.
pub fn machine_index(uids: &[&str]) -> MachineIndex {
    let index = MachineIndex::default();
    for uid in uids {
        index.apply(&Event::Apply(cached(uid, uid, block(), None)));
    }
    index
}

/// The watch of the users' Secrets reports one in this version.
pub fn set_secret_version(caches: &Caches, namespace: &str, name: &str, version: &str) {
    let entry = (
        [namespace, "/", name].concat().into(),
        version.to_owned().into(),
    );
    caches
        .secret_versions
        .change(|versions| versions.extend([entry]));
}

/// Caches with these Machines.
pub fn caches(machines: &[Machine], cluster: &str) -> Caches {
    let (store, mut writer) = reflector::store();
    let caches = Caches::new(store);
    for machine in machines {
        let event = Event::Apply(CachedMachine::from(machine.clone()));
        caches.apply(&event, &mut writer, cluster);
    }
    caches
}

/// The conflicts of a Machine with others, as far as these NetworkConfigurations of its namespace are known.
pub fn conflicts(
    machine: &Machine,
    cluster: &str,
    others: &[Machine],
    networks: &BTreeMap<String, Arc<Network>>,
) -> Vec<Conflict> {
    let caches = caches(others, cluster);
    for (name, network) in networks {
        let mut network = Network::clone(network);
        network.metadata.namespace = Some(machine.namespace().to_owned());
        network.metadata.name = Some(name.clone());
        caches.networks.apply(Event::Apply(network), |_| {});
    }
    caches.conflicts(machine, cluster, &|| vec![])
}

/// A status with the condition `Ready` only.
pub fn ready(status: &str, reason: &str) -> MachineStatus {
    MachineStatus {
        conditions: vec![Condition {
            kind: "Ready".into(),
            status: status.into(),
            reason: reason.into(),
            message: "why".into(),
            last_transition_time: "2026-01-01T00:00:00Z".into(),
            observed_generation: Some(1),
        }],
        ..MachineStatus::default()
    }
}

/// A status without the messages of its conditions, which may differ from those of another release, without the time of
/// the last write, and without the number of vCPUs, which earlier releases did not write.
pub fn without_texts(mut status: MachineStatus) -> MachineStatus {
    status.last_updated = None;
    status.vcpus = None;
    for condition in &mut status.conditions {
        condition.message.clear();
    }
    status
}

/// Decodes an object and gives it metadata with everything that the caches keep.
///
/// # Panics
/// If the object does not decode.
pub fn with_full_metadata<T: DeserializeOwned>(object: &Value) -> T {
    let mut object = object.clone();
    object["metadata"] = json!({
        "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7",
        "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-02T03:04:05Z",
        "labels": {"vitistack.io/machine": "web"}, "annotations": {"vitistack.io/x": "\"ü\n"},
        "finalizers": ["a"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "b", "uid": "c"}],
    });
    serde_json::from_value(object).unwrap()
}

/// Fails unless a value from the compressed cache equals the one that was stored.
///
/// # Panics
/// If it does not.
pub fn assert_survives_compression<T: Serialize + DeserializeOwned + Debug>(value: &T) {
    let back = Compressed::new(value).decompress();
    assert_eq!(format!("{back:?}"), format!("{value:?}"));
}
