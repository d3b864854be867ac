//! What rules can look up about the cluster. The webhook implements it with watches, tests with maps.
//!
//! ```text
//! templates, images, classes, networks   by name
//! machines   values that must be unique, and the Machines that have them
//! segments   which network cards receive each other's frames
//! claims     PersistentVolumeClaims and the Machines that they were created for
//! hosts      what each libvirt host offers
//! kubevirt   the release of KubeVirt, its feature gates and the devices that it permits
//! nodes      what the nodes of the cluster offer to guests
//! policies   MachinePolicies, and the labels of namespaces by which they are selected
//! ```

mod claims;
mod excess;
mod host_hardware;
mod hosts;
mod ipam;
mod kept;
mod kubevirt;
mod kubevirt_needs;
mod machine_row;
mod machines;
mod nodes;
mod policies;
mod segments;
mod unreadable;
mod usage;
mod vm_schema;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

pub use self::claims::{ClaimOwner, Claims};
pub use self::excess::{Excess, Resource};
pub use self::host_hardware::{HardwareNeed, HostHardware};
pub use self::hosts::{HostRow, Need, NetworkRow};
pub use self::ipam::{Exhausted, Ipam, Reserved, Subnet};
pub use self::kept::{
    Counted, KeptByNamespace, QuotaRequest, kept_by_namespace, kept_disks, usage_beside,
    usage_of_namespace,
};
pub use self::kubevirt::{
    DECLARATIVE_HOTPLUG, EXPAND_DISKS, Feature, HOST_DEVICES, KubevirtRow, LIVE_UPDATE_NETWORK,
    Lacking, OLDEST_KUBEVIRT, Release, VIDEO_CONFIG,
};
pub use self::kubevirt_needs::{KubevirtNeeds, KubevirtSetting};
pub(crate) use self::machine_row::volume_key;
pub use self::machine_row::{Card, ClaimUser, MachineName, MachineRow, OtherCard, says_what_runs};
pub use self::machines::Machines;
pub use self::nodes::{NodeNeed, NodeRow};
pub use self::policies::{Bridge, Labels, Limits, Policy, Quota, policies_of, vlan_range};
pub use self::segments::{Segment, on_segment};
pub use self::usage::{Usage, amount};
pub use self::vm_schema::{SchemaMismatch, VmSchema};

use crate::api::choice::TemplateSource;
use crate::api::machine::{Cpu, Disk, Memory, Resources};
use crate::api::machine_image::{MachineImageSpec, PinnedImage};
use crate::api::template::TemplateContent;
use crate::mac::Mac;
use crate::names;

/// The parts of a template that rules read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateRow {
    /// Whether it is built in or a `MachineTemplate`.
    pub source: TemplateSource,
    /// Values for the fields that a Machine does not set.
    pub content: Arc<TemplateContent>,
    /// Why not to use it any more, from `spec.deprecated`.
    pub deprecated: Option<String>,
}

/// The parts of a storage class that rules read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageClassRow {
    /// Whether its claims can grow, from `allowVolumeExpansion`.
    pub allows_expansion: bool,
}

/// The parts of a `MachineImage` that rules read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRow {
    /// What the block of a Machine that names the image gets.
    pub pinned: PinnedImage,
    /// Why not to use it any more, from `spec.deprecated`.
    pub deprecated: Option<String>,
}

impl ImageRow {
    /// The row of a `MachineImage`. `None` if it was written without admission and has no source or no size.
    pub fn new(name: &str, spec: &MachineImageSpec) -> Option<Self> {
        Some(Self {
            pinned: spec.pinned(name)?,
            deprecated: spec.deprecated.clone(),
        })
    }
}

/// What rules can look up. Implementations answer from memory: no method sends a request.
pub trait Catalog {
    /// The `MachineTemplate` of this name. Not called for built-in templates.
    fn template(&self, name: &str) -> Option<Arc<TemplateRow>>;
    /// Names of all `MachineTemplate`s, in any order. Called only if a name is not found.
    fn template_names(&self) -> Vec<String>;
    /// The `MachineImage` of this name.
    fn image(&self, name: &str) -> Option<Arc<ImageRow>>;
    /// Names of all `MachineImage`s, in any order. Called only if a name is not found.
    fn image_names(&self) -> Vec<String>;
    /// The storage class of this name.
    fn storage_class(&self, name: &str) -> Option<StorageClassRow>;
    /// Names of all storage classes, in any order. Called only if a name is not found.
    fn storage_class_names(&self) -> Vec<String>;
    /// The cluster's default storage class; the newest if several are marked, as Kubernetes does.
    fn default_storage_class(&self) -> Option<String>;
    /// The `NetworkConfiguration` of this name in the namespace.
    fn network(&self, namespace: &str, name: &str) -> Option<NetworkRow>;
    /// Names of the namespace's `NetworkConfiguration`s, in any order. Called only if a name
    /// is not found.
    fn network_names(&self, namespace: &str) -> Vec<String>;
    /// All `LibvirtHost`s, sorted by name. Called only for Machines on libvirt, if a template names an unknown
    /// storage class, and if two Machines have one MAC address.
    fn hosts(&self) -> Vec<Arc<HostRow>>;
    /// How KubeVirt is configured; `None`: it is not installed, or that is not known.
    fn kubevirt(&self) -> Option<Arc<KubevirtRow>>;
    /// The schema of VirtualMachines; `None`: it is not known.
    fn vm_schema(&self) -> Option<Arc<VmSchema>>;
    /// Names of all PriorityClasses, in any order; `None`: they are not known. Called only if a Machine names one.
    fn priority_classes(&self) -> Option<Vec<String>>;
    /// Whether a node offers what a guest needs; `None`: the nodes are not known, or there is none.
    fn is_offered_by_nodes(&self, need: NodeNeed<'_>) -> Option<bool>;
    /// The derived MAC address of a network card whose spec has none.
    fn derived_mac(&self, machine: MachineName<'_>, nic: &str) -> Mac;
    /// The cards of other Machines of all namespaces that have this address, on whichever segment.
    fn others_with_mac(&self, machine: MachineName<'_>, mac: Mac) -> Vec<OtherCard>;
    /// The cards of other Machines of all namespaces that have this IP address, given or allocated, on whichever segment.
    fn others_with_address(&self, machine: MachineName<'_>, address: IpAddr) -> Vec<OtherCard>;
    /// The holder of the claim that this disk of the Machine would get; `None` if it is free or the
    /// Machine's own.
    fn claim_holder(&self, machine: MachineName<'_>, disk: &str) -> Option<ClaimHolder>;
    /// Whether the namespace has a claim of this name, or a Machine for which the controller will create
    /// it.
    fn has_claim(&self, namespace: &str, claim: &str) -> bool;
    /// The other Machines of the namespace that have a claim, or are to have it.
    fn claim_users(&self, machine: MachineName<'_>, claim: &str) -> Vec<ClaimUser>;
    /// Whether several nodes can write to a claim; `None` if the claim is not known.
    fn is_shared_claim(&self, namespace: &str, claim: &str) -> Option<bool>;
    /// The policies that hold for a namespace, sorted by name. `None` if there are policies and the
    /// namespace is not known, so that it cannot be said which of them hold.
    fn policies(&self, namespace: &str) -> Option<Vec<Arc<Policy>>>;
    /// What the namespace of a Machine uses of its quota without the Machine, with the disks that are kept. Called only
    /// if a policy has a quota.
    fn usage_beside(&self, request: &QuotaRequest<'_>) -> Counted;
}

/// The holder of a claim that another Machine's disk would get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimHolder {
    /// A disk of another Machine, whether or not the claim has been created.
    Disk {
        /// Name of the Machine.
        machine: String,
        /// Name of the disk.
        disk: String,
    },
    /// A Machine that no longer has such a disk; the claim was retained.
    Former {
        /// Name of the Machine.
        machine: String,
    },
    /// A Machine that has a disk on the claim, as it is.
    Existing {
        /// Name of the Machine.
        machine: String,
    },
    /// No Machine: the claim was created for something else.
    Foreign,
}

/// [`Catalog::claim_holder`] for implementations with these rows.
pub fn claim_holder(
    machines: &Machines,
    claims: &Claims,
    machine: MachineName<'_>,
    disk: &str,
) -> Option<ClaimHolder> {
    let claim = names::claim(machine.name, disk);
    let mut disks = machines.disks_with_claim(machine.namespace, &claim);
    if let Some((other, disk)) = disks.find(|(other, _)| *other != machine.name) {
        return Some(ClaimHolder::Disk {
            machine: other.to_owned(),
            disk: disk.to_owned(),
        });
    }
    let mut existing = machines.with_existing_claim(machine.namespace, &claim);
    if let Some(other) = existing.next() {
        return Some(ClaimHolder::Existing {
            machine: other.to_owned(),
        });
    }
    match claims.owner(machine.namespace, &claim)? {
        ClaimOwner::Machine(owner) if owner == machine.name => None,
        ClaimOwner::Machine(owner) => Some(ClaimHolder::Former {
            machine: owner.to_owned(),
        }),
        ClaimOwner::Foreign => Some(ClaimHolder::Foreign),
    }
}

/// [`Catalog::has_claim`] for implementations with these rows.
pub fn has_claim(machines: &Machines, claims: &Claims, namespace: &str, claim: &str) -> bool {
    let mut disks = machines.disks_with_claim(namespace, claim);
    claims.owner(namespace, claim).is_some() || disks.next().is_some()
}

/// A catalog in memory.
#[derive(Clone, Debug, Default)]
pub struct StaticCatalog {
    /// `MachineTemplate`s by name.
    pub templates: BTreeMap<String, Arc<TemplateRow>>,
    /// `MachineImage`s by name.
    pub images: BTreeMap<String, Arc<ImageRow>>,
    /// Storage classes by name.
    pub storage_classes: BTreeMap<String, StorageClassRow>,
    /// Name of the default storage class.
    pub default_storage_class: Option<String>,
    /// `NetworkConfiguration`s by namespace and name.
    pub networks: BTreeMap<String, BTreeMap<String, NetworkRow>>,
    /// `LibvirtHost`s, by name.
    pub hosts: Vec<Arc<HostRow>>,
    /// How KubeVirt is configured.
    pub kubevirt: Option<Arc<KubevirtRow>>,
    /// The schema of VirtualMachines.
    pub vm_schema: Option<Arc<VmSchema>>,
    /// Names of PriorityClasses; `None`: they are not known.
    pub priority_classes: Option<Vec<String>>,
    /// Nodes; `None`: they are not known.
    pub nodes: Option<Vec<NodeRow>>,
    /// Uid of the cluster, from which MAC addresses are derived.
    pub cluster: String,
    /// Machines of all namespaces.
    pub machines: Machines,
    /// PersistentVolumeClaims of all namespaces.
    pub claims: Claims,
    /// `MachinePolicy`s, sorted by name.
    pub policies: Vec<Arc<Policy>>,
    /// Labels of namespaces by name.
    pub namespaces: BTreeMap<String, Labels>,
}

impl Catalog for StaticCatalog {
    fn template(&self, name: &str) -> Option<Arc<TemplateRow>> {
        self.templates.get(name).cloned()
    }

    fn template_names(&self) -> Vec<String> {
        self.templates.keys().cloned().collect()
    }

    fn image(&self, name: &str) -> Option<Arc<ImageRow>> {
        self.images.get(name).cloned()
    }

    fn image_names(&self) -> Vec<String> {
        self.images.keys().cloned().collect()
    }

    fn storage_class(&self, name: &str) -> Option<StorageClassRow> {
        self.storage_classes.get(name).copied()
    }

    fn storage_class_names(&self) -> Vec<String> {
        self.storage_classes.keys().cloned().collect()
    }

    fn default_storage_class(&self) -> Option<String> {
        self.default_storage_class.clone()
    }

    fn network(&self, namespace: &str, name: &str) -> Option<NetworkRow> {
        self.networks.get(namespace)?.get(name).cloned()
    }

    fn network_names(&self, namespace: &str) -> Vec<String> {
        let networks = self.networks.get(namespace);
        networks
            .into_iter()
            .flat_map(|rows| rows.keys().cloned())
            .collect()
    }

    fn hosts(&self) -> Vec<Arc<HostRow>> {
        self.hosts.clone()
    }

    fn kubevirt(&self) -> Option<Arc<KubevirtRow>> {
        self.kubevirt.clone()
    }

    fn vm_schema(&self) -> Option<Arc<VmSchema>> {
        self.vm_schema.clone()
    }

    fn priority_classes(&self) -> Option<Vec<String>> {
        self.priority_classes.clone()
    }

    fn is_offered_by_nodes(&self, need: NodeNeed<'_>) -> Option<bool> {
        let nodes = self.nodes.as_ref().filter(|nodes| !nodes.is_empty())?;
        Some(nodes.iter().any(|node| node.offers(need)))
    }

    fn derived_mac(&self, machine: MachineName<'_>, nic: &str) -> Mac {
        Mac::derived(&self.cluster, machine.namespace, machine.name, nic)
    }

    fn others_with_mac(&self, machine: MachineName<'_>, mac: Mac) -> Vec<OtherCard> {
        self.machines.owned_others_with_mac(machine, mac)
    }

    fn others_with_address(&self, machine: MachineName<'_>, address: IpAddr) -> Vec<OtherCard> {
        self.machines.owned_others_with_address(machine, address)
    }

    fn claim_holder(&self, machine: MachineName<'_>, disk: &str) -> Option<ClaimHolder> {
        claim_holder(&self.machines, &self.claims, machine, disk)
    }

    fn has_claim(&self, namespace: &str, claim: &str) -> bool {
        has_claim(&self.machines, &self.claims, namespace, claim)
    }

    fn claim_users(&self, machine: MachineName<'_>, claim: &str) -> Vec<ClaimUser> {
        self.machines.claim_users(machine, claim)
    }

    fn is_shared_claim(&self, namespace: &str, claim: &str) -> Option<bool> {
        self.claims.is_shared(namespace, claim)
    }

    fn policies(&self, namespace: &str) -> Option<Vec<Arc<Policy>>> {
        policies_of(self.policies.iter(), self.namespaces.get(namespace))
    }

    fn usage_beside(&self, request: &QuotaRequest<'_>) -> Counted {
        let hosts = self.hosts.iter().map(|host| &host.kept);
        usage_beside(&self.machines, &self.claims, hosts, request)
    }
}

/// The built-in templates: name, cores, memory, size of the root disk. The product's documentation
/// states these numbers.
const BUILT_IN: [(&str, i64, &str, &str); 3] = [
    ("small", 1, "2Gi", "20Gi"),
    ("medium", 2, "4Gi", "40Gi"),
    ("large", 4, "8Gi", "80Gi"),
];

static BUILT_IN_ROWS: LazyLock<BTreeMap<&'static str, Arc<TemplateRow>>> = LazyLock::new(|| {
    BUILT_IN
        .into_iter()
        .map(|(name, cores, memory, root)| (name, Arc::new(built_in_row(cores, memory, root))))
        .collect()
});

fn built_in_row(cores: i64, memory: &str, root: &str) -> TemplateRow {
    TemplateRow {
        source: TemplateSource::BuiltIn,
        deprecated: None,
        content: Arc::new(TemplateContent {
            resources: Some(Resources {
                cpu: Some(Cpu {
                    cores: Some(cores),
                    threads: Some(1),
                    sockets: Some(1),
                    ..Cpu::default()
                }),
                memory: Some(Memory {
                    size: Some(memory.to_owned()),
                    ..Memory::default()
                }),
            }),
            disks: Some(vec![Disk {
                name: Some("root".to_owned()),
                size: Some(root.to_owned()),
                storage_class: Some(names::DEFAULT_STORAGE_CLASS.to_owned()),
                ..Disk::default()
            }]),
            ..TemplateContent::default()
        }),
    }
}

/// The built-in template of this name.
pub fn built_in(name: &str) -> Option<Arc<TemplateRow>> {
    BUILT_IN_ROWS.get(name).cloned()
}

/// Names of the built-in templates.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.into_iter().map(|(name, ..)| name)
}
