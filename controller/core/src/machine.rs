//! A Machine as the controller uses it: decoded once, when it arrives from the API server.
//!
//! ```text
//! API server ──Wire──▶ Machine ──compressed──▶ CachedMachine, in the store ──decompressed──▶ Machine, for a pass
//! ```

use std::collections::{BTreeMap, BTreeSet};

use common::api::choice::{Backend, FirmwareType, Phase, TemplateSource};
use common::api::libvirt_host::HostResources;
use common::api::machine::CloudInit;
use common::api::normalized::{BLOCK_VERSION, Normalized, NormalizedGroup};
use common::api::status::MachineStatus;
use common::bounds::{LABELS_MAX, OBJECT_NAME_MAX, TEXT_MAX};
use common::catalog::{KubevirtNeeds, MachineRow};
use common::glob::Glob;
use common::names;
use common::normalize::intent_hash;
use common::quantity::Bytes;
use common::render::{CloudInitPlan, Identity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cache::compressed::Compressed;
use crate::errors::Errors;
use crate::held_addresses::Addresses;
use crate::objects::{Meta as _, lenient, prune};
use crate::resource;

/// A Machine for one pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Pruned: see [`prune`].
    pub metadata: ObjectMeta,
    /// Its labels that are carried to its guest, at most [`LABELS_MAX`](common::bounds::LABELS_MAX).
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its annotations that are carried to its guest: those whose keys the block names.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// `spec.normalized`, the desired state that the webhook wrote.
    pub block: Block,
    /// Whether a deletion is refused: `spec.deletionProtection`, else the value of the block. Read from both as they
    /// are, so that a block which does not match the spec protects, too.
    pub is_protected: bool,
    /// `spec.cloudInit`, empty if it does not decode, merged with that of the template in the block.
    pub cloud_init: CloudInitPlan,
    /// The status as it was last written; fields that do not decode have their default.
    pub status: MachineStatus,
    /// Of a Machine without a block, the template that the spec or the label names.
    #[serde(default)]
    pub named_template: Option<String>,
    /// Whether `named_template` does not exist. Set for a pass, never stored.
    #[serde(skip)]
    pub lacks_template: bool,
    /// Uid of its namespace; empty if the namespace has not been reported yet. Set for a pass, never stored.
    #[serde(skip)]
    pub namespace_uid: String,
    /// Its IP addresses. Set for a pass, never stored.
    #[serde(skip)]
    pub addresses: Addresses,
}
resource!(
    Machine,
    "Machine",
    "vitistack.io",
    "v1alpha1",
    "machines",
    NamespaceResourceScope
);

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
    pub binding: Option<Box<HostBinding>>,
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

/// vCPUs and memory that a block takes on a libvirt host. The guest boots with its maximum memory, so that counts.
pub fn requested_resources(block: &Normalized) -> HostResources {
    HostResources {
        cpu: block.cpu.vcpus(),
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

/// `spec.normalized`, and whether the controller may act on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Block {
    /// The block matches its intent: `intentHash` is the digest of the spec as it is now.
    Matching(Box<Normalized>),
    /// There is no block: the webhook was bypassed.
    Missing,
    /// The version of the block is unknown to this release, the block does not decode, or admission cannot have written
    /// one of its values; the text says which.
    Unreadable(String),
    /// The spec was changed without the webhook: the block was made from another intent.
    Stale,
}

/// The labels that are carried to the guest: the first ones in the order of their keys, so that the choice is stable.
fn carried(metadata: &ObjectMeta) -> BTreeMap<String, String> {
    let labels = metadata.labels.iter().flatten();
    let carried = labels.filter(|(key, _)| names::is_carried_label(key));
    let carried = carried.map(|(key, value)| (key.clone(), value.clone()));
    carried.take(LABELS_MAX).collect()
}

/// The annotations that are carried to the guest.
fn carried_annotations(metadata: &ObjectMeta, block: &Block) -> BTreeMap<String, String> {
    let keys = match block {
        Block::Matching(block) => block.annotation_keys.iter(),
        Block::Missing | Block::Unreadable(_) | Block::Stale => [].iter(),
    };
    let keys: Vec<_> = keys.map(|key| Glob::new(key)).collect();
    let annotations = metadata.annotations.iter().flatten();
    let carried = annotations.filter(|(key, _)| {
        names::may_carry_annotation(key) && keys.iter().any(|it| it.matches(key))
    });
    carried
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// A Machine as the API server sends it.
#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default, deserialize_with = "lenient")]
    status: MachineStatus,
}

impl Wire {
    /// The Machine, and the spec that it was decoded from.
    fn decode(self) -> (Machine, Value) {
        let Self {
            metadata,
            spec,
            status,
        } = self;
        let label = metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(names::LABEL_TEMPLATE));
        let block = Block::of(&spec, label.map(String::as_str));
        let own = spec
            .get("cloudInit")
            .and_then(|value| serde_json::from_value::<CloudInit>(value.clone()).ok());
        // The block holds the content of the template, as it was when admission merged it.
        let template = match &block {
            Block::Matching(block) => block.template.as_ref(),
            Block::Missing | Block::Unreadable(_) | Block::Stale => None,
        };
        let template = template.and_then(|pin| pin.content.cloud_init.as_ref());
        let cloud_init = CloudInit::merged(own.as_ref(), template)
            .map(|cloud_init| CloudInitPlan::from(&cloud_init))
            .unwrap_or_default();
        let protection = |spec: &Value| spec.get("deletionProtection").and_then(Value::as_bool);
        let of_block = || protection(spec.get("normalized")?);
        let name = spec.get("template").and_then(Value::as_str);
        let named_template = name.or(label.map(String::as_str)).map(str::to_owned);
        let machine = Machine {
            named_template: named_template.filter(|_| block == Block::Missing),
            lacks_template: false,
            is_protected: protection(&spec).or_else(of_block).unwrap_or(false),
            labels: carried(&metadata),
            annotations: carried_annotations(&metadata, &block),
            block,
            cloud_init,
            status,
            metadata,
            namespace_uid: String::new(),
            addresses: Addresses::default(),
        };
        (machine, spec)
    }
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
        prune(&mut machine.metadata);
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
            Box::new(HostBinding {
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
            // The finalizer is added before the first object of the Machine is created.
            has_started: !is_pending
                || machine.status.host.is_some()
                || machine.has_finalizer(names::FINALIZER),
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

impl Block {
    /// Compares digests only: the controller neither normalizes nor looks up templates.
    fn of(spec: &Value, template_label: Option<&str>) -> Self {
        let Some(raw) = spec.get("normalized").filter(|block| !block.is_null()) else {
            return Self::Missing;
        };
        match raw.get("version").and_then(Value::as_u64) {
            Some(version) if (1..=u64::from(BLOCK_VERSION)).contains(&version) => {}
            Some(version) => {
                return Self::Unreadable(format!(
                    "its version {version} is not known to this release"
                ));
            }
            None => return Self::Unreadable("it has no version".into()),
        }
        let block: Normalized = match serde_json::from_value(raw.clone()) {
            Ok(block) => block,
            Err(error) => return Self::Unreadable(error.to_string()),
        };
        if let Err(error) = block.check_bounds() {
            return Self::Unreadable(error.to_string());
        }
        if block.intent_hash == intent_hash(spec, template_label) {
            Self::Matching(Box::new(block))
        } else {
            Self::Stale
        }
    }
}

impl Machine {
    /// The identity that rendering writes into every object it creates for this Machine. `cluster`: uid of the cluster.
    pub fn identity<'a>(&'a self, cluster: &'a str) -> Identity<'a> {
        Identity {
            cluster,
            namespace: self.namespace(),
            name: self.name(),
            uid: self.uid(),
        }
    }

    /// `metadata.generation`.
    pub fn generation(&self) -> Option<i64> {
        self.metadata.generation
    }

    /// Whether the libvirt backend runs the Machine, or will. If its spec is unreadable, a bound Machine is recognized
    /// by `status.host`; no status moves a Machine from KubeVirt to a host.
    pub fn is_on_libvirt(&self) -> bool {
        let desired = self.desired();
        desired.map_or(self.status.host.is_some(), |block| {
            block.backend == Backend::Libvirt
        })
    }

    /// Whether the paused annotation is `true`: the Machine is observed and not changed.
    pub fn is_paused(&self) -> bool {
        self.annotation(names::ANNOTATION_PAUSED) == Some("true")
    }

    /// Text of the restart-requested annotation, cut to what the status can store, if the status does not have it
    /// yet. Each new text requests one restart; `None`: no new request. The backend carries out the restart so
    /// that it happens once, whatever is interrupted.
    pub fn new_restart_request(&self) -> Option<String> {
        let last = self.status.last_restart.as_ref();
        let last = last.map(|last| last.request.as_str());
        self.new_request(names::ANNOTATION_RESTART_REQUESTED, last)
    }

    /// Text of the reset-requested annotation, as [`new_restart_request`](Self::new_restart_request).
    pub fn new_reset_request(&self) -> Option<String> {
        let last = self.status.last_reset.as_ref();
        let last = last.map(|last| last.request.as_str());
        self.new_request(names::ANNOTATION_RESET_REQUESTED, last)
    }

    /// Text of the migrate-requested annotation, as [`new_restart_request`](Self::new_restart_request).
    pub fn new_migration_request(&self) -> Option<String> {
        let last = self.status.last_migration.as_ref();
        let last = last.map(|last| last.request.as_str());
        self.new_request(names::ANNOTATION_MIGRATE_REQUESTED, last)
    }

    /// Name of the object of a requested migration that has not ended.
    pub fn open_migration(&self) -> Option<&str> {
        self.status.last_migration.as_ref()?.migration.as_deref()
    }

    /// The LibvirtHost that the Machine leaves, while it is moved to another one.
    pub fn leaves_host(&self) -> Option<&str> {
        let last = self.status.last_migration.as_ref()?;
        last.from.as_deref().filter(|_| last.result.is_none())
    }

    /// The node of the migrate-to annotation.
    pub fn migration_target(&self) -> Option<&str> {
        let node = self.annotation(names::ANNOTATION_MIGRATE_TO);
        node.filter(|node| (1..=OBJECT_NAME_MAX).contains(&node.len()))
    }

    /// Text of an annotation that requests something, cut to what the status can store, unless it is the last request.
    fn new_request(&self, annotation: &str, last: Option<&str>) -> Option<String> {
        let text = self.annotation(annotation)?;
        let request: String = text.chars().take(TEXT_MAX).collect();
        (!request.is_empty() && last != Some(&*request)).then_some(request)
    }

    /// The desired state; `None` unless the block matches its intent.
    pub fn desired(&self) -> Option<&Normalized> {
        match &self.block {
            Block::Matching(block) => Some(block),
            Block::Missing | Block::Unreadable(_) | Block::Stale => None,
        }
    }

    /// Whether the annotation `discard-state` has no effect any more: nothing that it names is kept by the block.
    pub fn has_discarded_state(&self) -> bool {
        let named = self.annotation(names::ANNOTATION_DISCARD_STATE);
        let Some((named, block)) = named.zip(self.desired()) else {
            return false;
        };
        let is_kept = |name: &str| match name {
            // The variables of blocks of version 1 are left to the backend, and libvirt hosts keep them.
            "efi" => block.firmware.persistent.unwrap_or(
                block.backend == Backend::Libvirt && block.firmware.kind == FirmwareType::Efi,
            ),
            "tpm" => block.tpm.is_some_and(|tpm| tpm.persistent),
            _ => false,
        };
        !named.split(',').any(|name| is_kept(name.trim()))
    }
}

#[cfg(test)]
mod tests;
