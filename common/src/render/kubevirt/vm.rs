//! The VirtualMachine.

use std::collections::BTreeMap;

use super::devices;
use super::features;
use super::identity::{machine_owner, metadata};
use super::types::{
    Cpu, Domain, InstanceSpec, MachineKind, Memory, Template, TemplateMetadata, VirtualMachine,
    VirtualMachineSpec,
};
use crate::api::choice::{Choice as _, PowerState};
use crate::api::normalized::{Normalized, NormalizedMemory};
use crate::names;
use crate::quantity::Bytes;
use crate::render::cloud_init::CloudInitPlan;
use crate::render::identity::{Identity, digest};

/// KubeVirt plugs memory only into guests that start with at least this much.
const HOTPLUG_MEMORY_MIN: Bytes = Bytes::mib(1024);
/// KubeVirt plugs memory in units of a huge page.
const HOTPLUG_MEMORY_UNIT: Bytes = Bytes::mib(2);

/// What a VirtualMachine is rendered from.
#[derive(Clone, Copy, Debug)]
pub struct Guest<'a> {
    /// Whose it is.
    pub machine: Identity<'a>,
    /// What it is.
    pub block: &'a Normalized,
    /// What cloud-init is given.
    pub cloud_init: &'a CloudInitPlan,
    /// NetworkAttachmentDefinition by NetworkConfiguration, where the names differ.
    pub attachments: &'a BTreeMap<String, String>,
    /// What the user's Secrets hold: see [`CloudInitPlan::marks`].
    pub marks: &'a BTreeMap<String, String>,
}

/// The VirtualMachine of a Machine.
pub fn virtual_machine(guest: &Guest<'_>) -> VirtualMachine {
    let Guest { machine, block, .. } = guest;
    let (mut disks, mut volumes) = devices::disks(machine, block);
    if let Some(volume) = guest.cloud_init.volume(machine) {
        disks.push(devices::cloud_init_disk(block));
        volumes.push(volume);
    }
    let (interfaces, networks) = devices::networks(machine, block, |network| {
        guest
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
        memory: memory(block.memory),
    };
    let spec = VirtualMachineSpec {
        run_strategy: run_strategy(block).to_owned(),
        template: Template {
            metadata: TemplateMetadata {
                labels: machine.labels(),
                annotations: guest.marks.clone(),
            },
            spec: InstanceSpec {
                architecture: "amd64".into(),
                domain,
                eviction_strategy: "LiveMigrateIfPossible".into(),
                networks,
                node_selector: block.node_selector.clone(),
                volumes,
            },
        },
    };
    let mut metadata = metadata(machine, machine.name.to_owned());
    metadata.owner_references = vec![machine_owner(machine)];
    metadata
        .annotations
        .insert(names::ANNOTATION_RENDERED.to_owned(), digest(&spec));
    VirtualMachine {
        api_version: "kubevirt.io/v1".into(),
        kind: "VirtualMachine".into(),
        metadata,
        spec,
    }
}

/// `spec.running` is deprecated in KubeVirt and excludes this.
fn run_strategy(block: &Normalized) -> &'static str {
    match (block.power_state, block.guest_shutdown_stops) {
        (PowerState::Stopped, _) => "Halted",
        (PowerState::Running, true) => "RerunOnFailure",
        (PowerState::Running, false) => "Always",
    }
}

/// The maximum is always there: KubeVirt plugs sockets into a running guest as long as nothing else
/// changes, a maximum that goes away when it is reached included. Without one it takes four times what
/// the guest starts with.
fn cpu(block: &Normalized) -> Cpu {
    let cpu = block.cpu;
    Cpu {
        sockets: cpu.sockets,
        cores: cpu.cores,
        threads: cpu.threads,
        max_sockets: Some(cpu.max_sockets),
    }
}

/// As of sockets, where KubeVirt can plug memory at all (`ValidateLiveUpdateMemory`, v1.9).
fn memory(memory: NormalizedMemory) -> Memory {
    let NormalizedMemory { size, max_size } = memory;
    let pluggable = size >= HOTPLUG_MEMORY_MIN
        && [size, max_size]
            .iter()
            .all(|amount| amount.is_multiple_of(HOTPLUG_MEMORY_UNIT));
    Memory {
        guest: size.to_string(),
        max_guest: pluggable.then(|| max_size.to_string()),
    }
}
