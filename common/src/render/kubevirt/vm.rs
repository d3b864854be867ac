//! The VirtualMachine.

use std::collections::BTreeMap;

use super::devices;
use super::features;
use super::identity::{machine_owner, metadata};
use super::placement;
use super::types::{
    Cpu, Domain, Hugepages, InstanceSpec, MachineKind, Memory, Template, TemplateMetadata,
    VirtualMachine, VirtualMachineSpec,
};
use crate::api::choice::{Choice as _, PowerState};
use crate::api::normalized::{Normalized, NormalizedMemory};
use crate::names;
use crate::quantity::Bytes;
use crate::render::cloud_init::CloudInitPlan;
use crate::render::identity::{Identity, digest};

/// KubeVirt hot-plugs memory only into guests that start with at least this much.
const HOTPLUG_MEMORY_MIN: Bytes = Bytes::mib(1024);
/// KubeVirt hot-plugs memory in units of a huge page.
const HOTPLUG_MEMORY_UNIT: Bytes = Bytes::mib(2);

/// What a VirtualMachine is rendered from.
#[derive(Clone, Copy, Debug)]
pub struct VirtualMachineInput<'a> {
    /// Name, namespace and uid of the Machine, from which names of objects, MAC addresses and the SMBIOS uuid are derived.
    pub machine: Identity<'a>,
    /// The Machine's normalized spec.
    pub block: &'a Normalized,
    /// The Machine's cloud-init data.
    pub cloud_init: &'a CloudInitPlan,
    /// Name of the NetworkAttachmentDefinition by name of the NetworkConfiguration. Only entries whose
    /// names differ are needed.
    pub attachments: &'a BTreeMap<String, String>,
    /// Labels of the Machine that its guest has, too.
    pub labels: &'a BTreeMap<String, String>,
    /// Annotations of the Machine that its guest has, too.
    pub annotations: &'a BTreeMap<String, String>,
    /// Annotations of the instance: see [`CloudInitPlan::secret_revisions`].
    pub secret_revisions: &'a BTreeMap<String, String>,
}

/// The VirtualMachine of a Machine.
pub fn virtual_machine(input: &VirtualMachineInput<'_>) -> VirtualMachine {
    let VirtualMachineInput { machine, block, .. } = input;
    let (mut disks, mut volumes) = devices::disks(machine, block);
    if let Some(volume) = input.cloud_init.volume(machine) {
        disks.push(devices::cloud_init_disk(block, volume.sysprep.is_some()));
        volumes.push(volume);
    }
    let (interfaces, networks) = devices::networks(machine, block, |network| {
        input
            .attachments
            .get(network)
            .map_or(network, String::as_str)
    });
    let domain = Domain {
        clock: features::clock(block),
        cpu: cpu(block),
        devices: devices::devices(block, disks, interfaces),
        features: features::features(block),
        firmware: features::firmware(machine, block),
        machine: MachineKind {
            r#type: block.machine_type.as_str().to_owned(),
        },
        memory: memory(block),
    };
    let spec = VirtualMachineSpec {
        run_strategy: run_strategy(block).to_owned(),
        template: Template {
            metadata: TemplateMetadata {
                labels: placement::labels(machine, block, input.labels),
                annotations: placement::annotations(input),
            },
            spec: InstanceSpec {
                affinity: placement::affinity(machine, block),
                architecture: "amd64".into(),
                domain,
                eviction_strategy: block.on_eviction().as_str().to_owned(),
                liveness_probe: block.liveness_probe().cloned().map(Box::new),
                networks,
                node_selector: block.node_selector.clone(),
                priority_class_name: block.priority_class().unwrap_or_default().to_owned(),
                readiness_probe: block.readiness_probe().cloned().map(Box::new),
                termination_grace_period_seconds: block.termination_grace_period_seconds,
                tolerations: placement::tolerations(block),
                topology_spread_constraints: block.spread().to_vec(),
                volumes,
            },
        },
    };
    let mut metadata = metadata(machine, machine.name.to_owned());
    metadata.labels.extend(input.labels.clone());
    metadata.owner_references = vec![machine_owner(machine)];
    metadata.annotations.insert(
        names::ANNOTATION_RENDERED.to_owned(),
        rendered(&spec, block),
    );
    VirtualMachine {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachine".into(),
        metadata,
        spec,
    }
}

/// A digest of what the VirtualMachine is rendered from.
fn rendered(spec: &VirtualMachineSpec, block: &Normalized) -> String {
    match block.overrides() {
        None => digest(spec),
        Some(overrides) => digest(&(spec, overrides)),
    }
}

/// `spec.runStrategy` of a VirtualMachine that is off.
pub const HALTED: &str = "Halted";

/// `spec.runStrategy`. KubeVirt's older `spec.running` is deprecated and cannot be set beside it.
fn run_strategy(block: &Normalized) -> &'static str {
    match (block.power_state, block.guest_shutdown_stops) {
        (PowerState::Stopped, _) => HALTED,
        (PowerState::Running, true) => "RerunOnFailure",
        (PowerState::Running, false) => "Always",
    }
}

/// `maxSockets` is always set, even if it equals `sockets`: KubeVirt hot-plugs sockets only if no other
/// field changes, and removing the maximum when it is reached would be another change. Without a
/// maximum KubeVirt assumes four times the initial sockets.
fn cpu(block: &Normalized) -> Cpu {
    let cpu = block.cpu;
    Cpu {
        sockets: cpu.sockets,
        cores: cpu.cores,
        threads: cpu.threads,
        max_sockets: Some(cpu.max_sockets),
        dedicated_cpu_placement: block.has_dedicated_cpus(),
        model: block.cpu_model().unwrap_or_default().to_owned(),
    }
}

/// `maxGuest` is set for the same reason as `maxSockets`, but only if KubeVirt can hot-plug memory into
/// this guest: it refuses the field otherwise (`ValidateLiveUpdateMemory`, v1.9).
fn memory(block: &Normalized) -> Memory {
    let NormalizedMemory { size, max_size } = block.memory;
    let pluggable = size >= HOTPLUG_MEMORY_MIN
        && [size, max_size]
            .iter()
            .all(|amount| amount.is_multiple_of(HOTPLUG_MEMORY_UNIT));
    Memory {
        guest: size.to_string(),
        max_guest: pluggable.then(|| max_size.to_string()),
        hugepages: block.hugepages().map(|size| Hugepages {
            page_size: size.as_str().to_owned(),
        }),
    }
}
