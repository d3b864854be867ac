//! A Machine as the store has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::api::choice::{Backend, Phase, TemplateSource};
use common::api::libvirt_host::HostResources;
use common::api::normalized::{Normalized, NormalizedGroup};
use common::catalog::{KubevirtNeeds, MachineRow};
use common::quantity::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;

use super::Machine;
use super::wire::Wire;
use crate::cache::compressed::Compressed;
use crate::errors::Errors;
use crate::objects::{Meta as _, prune_except_finalizers};
use crate::resource;

/// A compressed Machine, and beside it what is read of all Machines at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Wire")]
pub struct CachedMachine {
    /// Name, namespace, uid, resourceVersion and creationTimestamp only.
    metadata: ObjectMeta,
    /// `status.phase`.
    pub phase: Option<Phase>,
    /// The errors that its conditions show.
    pub errors: Errors,
    /// The template that the block was made from: where it is defined, and its name.
    pub template: Option<(TemplateSource, Box<str>)>,
    /// NetworkConfigurations that the block names.
    networks: Names,
    /// StorageClasses that the block names.
    classes: Names,
    /// MachineImages that the block names.
    images: Names,
    /// Secrets that `spec.cloudInit` and the screen refer to.
    secrets: Names,
    /// What it needs of the settings of KubeVirt; `None` on libvirt, and without a usable block.
    pub kubevirt_needs: Option<KubevirtNeeds>,
    /// Set for Machines of the libvirt backend.
    pub binding: Option<Arc<HostBinding>>,
    /// Whether anything has been made of it: its phase is beyond Pending, or it is bound to a host.
    pub has_started: bool,
    /// What can be read of a Machine without a usable block.
    pub unreadable: Option<Box<MachineRow>>,
    machine: Compressed<Machine>,
}
resource!(
    CachedMachine,
    "Machine",
    "vitistack.io",
    "v1alpha1",
    "machines",
    NamespaceResourceScope
);

/// Zero vCPUs and zero memory.
pub const NO_RESOURCES: HostResources = HostResources {
    cpu: 0,
    memory: Bytes::new(0),
};

/// vCPUs and memory that a block takes on a libvirt host. The guest boots with its maximum memory, so that counts, and of
/// dedicated vCPUs the most that it can get, because the host keeps a CPU for each.
pub fn requested_resources(block: &Normalized) -> HostResources {
    HostResources {
        cpu: block.counted_vcpus(),
        memory: block.memory.max_size.max(block.memory.size),
    }
}

/// Names of the NetworkConfigurations of a block, in the order of its network cards.
pub fn named_networks(block: &Normalized) -> impl Iterator<Item = &str> {
    block
        .networks
        .iter()
        .filter_map(|nic| nic.network_name.as_deref())
}

/// Names of the MachineImages of a block, each once.
fn named_images(block: &Normalized) -> BTreeSet<&str> {
    let disks = block.disks.iter().filter_map(|disk| disk.image.as_ref());
    let cdroms = block.cdroms.iter();
    let images = disks.chain(cdroms.filter_map(|cdrom| cdrom.image.as_ref()));
    images.filter_map(|image| image.name.as_deref()).collect()
}

/// Numbers of devices by name.
pub type DeviceCounts = BTreeMap<Box<str>, usize>;

/// The LibvirtHost of a Machine, and what the Machine takes there.
#[derive(Clone, Debug)]
pub struct HostBinding {
    /// Name of the LibvirtHost in `status.host`; `None`: the Machine is not bound yet.
    pub host: Option<Box<str>>,
    /// vCPUs and memory of the block; zero without a block.
    pub requested: HostResources,
    /// The group of the block.
    pub group: Option<NormalizedGroup>,
    /// Number of CPUs of the host that the block asks for, for its vCPUs alone.
    pub dedicated_cpus: u32,
    /// Devices of the host that the block asks for.
    pub devices: DeviceCounts,
}

type Names = Box<[Box<str>]>;

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Names {
    names.map(Box::from).collect()
}

impl From<Wire> for CachedMachine {
    fn from(wire: Wire) -> Self {
        let (machine, spec) = wire.decode();
        let is_unreadable = machine.desired().is_none();
        Self {
            unreadable: is_unreadable.then(|| Box::new(MachineRow::of_unreadable(&spec))),
            ..Self::from(machine)
        }
    }
}

impl From<Machine> for CachedMachine {
    fn from(mut machine: Machine) -> Self {
        // Its finalizer is added to those that the object has, and removed from them.
        prune_except_finalizers(&mut machine.metadata);
        let metadata = ObjectMeta {
            name: machine.metadata.name.clone(),
            namespace: machine.metadata.namespace.clone(),
            uid: machine.metadata.uid.clone(),
            resource_version: machine.metadata.resource_version.clone(),
            creation_timestamp: machine.metadata.creation_timestamp.clone(),
            ..ObjectMeta::default()
        };
        let is_pending = matches!(machine.status.phase, None | Some(Phase::Pending));
        let desired = || machine.desired().into_iter();
        let pin = machine.desired().and_then(|block| block.template.as_ref());
        let disks = desired().flat_map(|block| &block.disks);
        let disks = disks.map(|disk| disk.storage_class.as_str());
        let cdroms = desired().flat_map(|block| &block.cdroms);
        let cdroms = cdroms.filter_map(|cdrom| cdrom.storage_class.as_deref());
        let secrets = machine.cloud_init.references();
        let secrets = secrets.map(|secret| secret.name.as_str());
        let display = desired().filter_map(Normalized::display_secret);
        let binding = machine.is_on_libvirt().then(|| {
            let host = machine.status.host.as_deref().map(Box::from);
            let requested = machine.desired().map_or(NO_RESOURCES, requested_resources);
            let group = machine.desired().and_then(Normalized::group).cloned();
            let dedicated = machine.desired().and_then(Normalized::dedicated_cpus);
            let devices = machine.desired().into_iter();
            let devices = devices.flat_map(Normalized::device_counts);
            let devices = devices.map(|(name, count)| (name.into(), count));
            Arc::new(HostBinding {
                host,
                requested,
                group,
                dedicated_cpus: dedicated.unwrap_or(0),
                devices: devices.collect(),
            })
        });
        let on_kubevirt = machine.desired().filter(|_| binding.is_none());
        Self {
            kubevirt_needs: on_kubevirt.map(KubevirtNeeds::from),
            binding,
            // Not by the finalizer: a user can write that.
            has_started: !is_pending || machine.status.host.is_some(),
            unreadable: None,
            metadata,
            phase: machine.status.phase,
            errors: Errors::of(&machine.status),
            template: pin.map(|pin| (pin.source, pin.name.as_str().into())),
            networks: names(desired().flat_map(named_networks)),
            classes: names(disks.chain(cdroms)),
            images: names(desired().flat_map(named_images)),
            secrets: names(secrets.chain(display)),
            machine: Compressed::new(&machine),
        }
    }
}

impl CachedMachine {
    /// The Machine without the uid of its namespace.
    pub fn decompress(&self) -> Machine {
        self.machine.decompress()
    }

    /// The same, and it panics when it is decompressed.
    #[cfg(test)]
    pub(crate) fn never_decompressed(self) -> Self {
        Self {
            machine: Compressed::unreadable(),
            ..self
        }
    }

    /// The backend that runs the Machine, or will.
    pub fn backend(&self) -> Backend {
        match self.binding {
            Some(_) => Backend::Libvirt,
            None => Backend::Kubevirt,
        }
    }

    /// `metadata.creationTimestamp`.
    pub fn created(&self) -> Option<&Time> {
        self.metadata.creation_timestamp.as_ref()
    }

    /// Names of the NetworkConfigurations of its block.
    pub fn networks(&self) -> impl Iterator<Item = &str> {
        self.networks.iter().map(|name| &**name)
    }

    /// Whether its block names a NetworkConfiguration of its namespace.
    pub fn uses_network(&self, name: &str) -> bool {
        self.networks().any(|known| known == name)
    }

    /// Whether its block names a StorageClass.
    pub fn uses_class(&self, name: &str) -> bool {
        self.classes.iter().any(|known| **known == *name)
    }

    /// Names of the MachineImages of its block, each once.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        self.images.iter().map(|name| &**name)
    }

    /// Whether its block names a MachineImage.
    pub fn uses_image(&self, name: &str) -> bool {
        self.images().any(|known| known == name)
    }

    /// Whether its block was made from a template of this name.
    pub fn uses_template(&self, name: &str) -> bool {
        let template = self.template.as_ref();
        template.is_some_and(|(_, known)| **known == *name)
    }

    /// Whether its `spec.cloudInit` or its screen refers to a Secret of this namespace and name.
    pub fn refers_to(&self, namespace: &str, name: &str) -> bool {
        self.namespace() == namespace && self.secrets.iter().any(|known| **known == *name)
    }

    /// Whether its `spec.cloudInit` or its screen refers to any Secret.
    pub fn refers_to_secrets(&self) -> bool {
        !self.secrets.is_empty()
    }
}
