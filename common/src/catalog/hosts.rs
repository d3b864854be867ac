//! Libvirt hosts: what each offers, and what a Machine needs of its host.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::host_hardware::{HardwareNeed, HostHardware};
use super::ipam::Ipam;
use super::kept::KeptByNamespace;
use crate::api::choice::VirtType;
use crate::api::libvirt_host::{HostNetwork, HostResources, LibvirtHostSpec, SharedStorage};
use crate::api::machine::Image;
use crate::api::network::NetworkConfigurationSpec;
use crate::image_source::SourceUrl;
use crate::names;

/// The parts of a `NetworkConfiguration` that rules read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkRow {
    /// `spec.bridge`, written by the administrator: the Linux bridge of the segment.
    pub bridge: Option<String>,
    /// `spec.vlan`, 1 to 4094; `None` if the segment is untagged.
    pub vlan: Option<i64>,
    /// `spec.networkAttachmentDefinition`: name of a definition that an administrator wrote, in the same namespace.
    pub definition: Option<String>,
    /// `spec.ipam`: the subnets that addresses of cards are allocated from; `None`: cards get none.
    pub ipam: Option<Arc<Ipam>>,
}

impl From<NetworkConfigurationSpec> for NetworkRow {
    fn from(spec: NetworkConfigurationSpec) -> Self {
        Self {
            bridge: spec.bridge,
            vlan: spec.vlan,
            definition: spec.network_attachment_definition,
            ipam: spec.ipam.as_ref().map(|ipam| Arc::new(ipam.into())),
        }
    }
}

/// The parts of a `LibvirtHost` that rules read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRow {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// How it runs its guests.
    pub virt_type: VirtType,
    /// Names of the storage classes that it offers.
    pub classes: BTreeSet<String>,
    /// Networks that it offers.
    pub networks: Vec<HostNetwork>,
    /// Whether it has a pool for images.
    pub image_pool: bool,
    /// Whether it has a pool for logs of consoles.
    pub console_log_pool: bool,
    /// Namespaces whose Machines may use existing volumes of it.
    pub existing_volumes: BTreeSet<String>,
    /// How many CPUs it has for guests with dedicated CPUs; before it was reached for the first time those of its spec.
    pub dedicated_cpus: usize,
    /// How many devices it offers, by name.
    pub devices: BTreeMap<String, usize>,
    /// What its hypervisor has, as last reported.
    pub hardware: HostHardware<'static>,
    /// Prefixes of URLs that it fetches images from; `None`: any that leads to a public address.
    pub image_sources: Option<Vec<String>>,
    /// Storage classes whose pools other hosts have as well.
    pub shared_storage: BTreeMap<String, SharedStorage>,
    /// Whether it gets Machines: it is schedulable and not in maintenance.
    pub takes_machines: bool,
    /// vCPUs and memory of all domains on the host, as last reported; `None` before it was reached for the first time.
    pub allocated: Option<HostResources>,
    /// vCPUs and memory for all Machines together; `None` before the host was reached for the first time.
    pub allocatable: Option<HostResources>,
    /// Bytes of the volumes that are kept of deleted Machines, by namespace.
    pub kept: KeptByNamespace,
}

impl HostRow {
    /// The row of a `LibvirtHost`. `capacity`, `allocatable`: of its status.
    pub fn new(
        name: String,
        labels: BTreeMap<String, String>,
        spec: LibvirtHostSpec,
        capacity: Option<HostResources>,
        allocatable: Option<HostResources>,
    ) -> Self {
        let shared_storage = spec.shared_storage();
        let takes_machines = spec.schedulable != Some(false) && spec.maintenance != Some(true);
        let dedicated_cpus = spec.dedicated(capacity.map(|all| all.cpu)).len();
        let classes = spec.storage.unwrap_or_default().into_iter();
        let offers = spec.existing_volumes.unwrap_or_default().into_iter();
        let namespaces = offers.flat_map(|offer| offer.namespaces);
        let devices = spec.devices.unwrap_or_default().into_iter();
        let devices = devices.map(|kind| (kind.addresses().count(), kind.name));
        Self {
            name,
            labels,
            virt_type: spec.virt_type,
            classes: classes.map(|storage| storage.storage_class).collect(),
            networks: spec.networks.unwrap_or_default(),
            image_pool: spec.image_pool.is_some(),
            console_log_pool: spec.console_log_pool.is_some(),
            existing_volumes: namespaces.collect(),
            dedicated_cpus,
            devices: devices.map(|(count, name)| (name, count)).collect(),
            hardware: HostHardware::default(),
            image_sources: spec.image_sources,
            shared_storage,
            takes_machines,
            allocated: None,
            allocatable,
            kept: KeptByNamespace::new(),
        }
    }

    /// Whether the host has all labels of the selector.
    pub fn matches(&self, selector: &BTreeMap<String, String>) -> bool {
        let mut required = selector.iter();
        required.all(|(key, value)| self.labels.get(key) == Some(value))
    }

    /// vCPUs and memory that a Machine may have beside what is `allocated`; `None` before the host was reached for the first
    /// time. It may have less: how many of the dedicated CPUs are left is known only as far as `allocated` is less than all of
    /// them.
    pub fn left(&self, allocated: HostResources, has_dedicated: bool) -> Option<HostResources> {
        let dedicated = u32::try_from(self.dedicated_cpus).unwrap_or(u32::MAX);
        let cpus_left = dedicated.saturating_sub(allocated.cpu);
        let taken = allocated.beside_dedicated(cpus_left, has_dedicated);
        Some(self.allocatable?.less(taken))
    }

    /// Whether the host offers what a Machine needs.
    pub fn offers(&self, need: &Need<'_>) -> bool {
        match need {
            Need::Class(class) => self.classes.contains(&**class),
            Need::Network { bridge, vlan } => {
                let mut networks = self.networks.iter();
                networks.any(|network| network.name == **bridge && network.carries(*vlan))
            }
            Need::Images => self.image_pool,
            Need::Hardware(need) => self.hardware.offers(need),
            Need::ExistingVolumes(namespace) => self.existing_volumes.contains(&**namespace),
            Need::DedicatedCpus(count) => self.dedicated_cpus >= *count,
            Need::Devices { name, count } => self.devices.get(&**name) >= Some(count),
            Need::Source(url) => {
                self.image_pool && url.check(self.image_sources.as_deref()).is_ok()
            }
        }
    }
}

/// Something that a Machine needs of its host. `Display` gives its name in messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need<'a> {
    /// A storage class.
    Class(Cow<'a, str>),
    /// A network.
    Network {
        /// Bridge of a `NetworkConfiguration`, or `default`.
        bridge: Cow<'a, str>,
        /// VLAN tag; `None` if it is untagged.
        vlan: Option<i64>,
    },
    /// A pool for images.
    Images,
    /// Something of its hypervisor.
    Hardware(HardwareNeed<'a>),
    /// A pool with existing volumes for the Machines of a namespace.
    ExistingVolumes(Cow<'a, str>),
    /// CPUs for its vCPUs alone.
    DedicatedCpus(usize),
    /// Devices of one kind.
    Devices {
        /// Name of the devices.
        name: Cow<'a, str>,
        /// How many.
        count: usize,
    },
    /// A source of images.
    Source(SourceUrl),
}

impl<'a> Need<'a> {
    /// The network of cards without a `NetworkConfiguration`.
    pub const DEFAULT_NETWORK: Need<'static> = Need::Network {
        bridge: Cow::Borrowed(names::DEFAULT_NETWORK),
        vlan: None,
    };

    /// A storage class.
    pub fn class(name: &'a str) -> Self {
        Self::Class(name.into())
    }

    /// Existing volumes for a namespace.
    pub fn existing_volumes(namespace: &str) -> Self {
        Self::ExistingVolumes(namespace.to_owned().into())
    }

    /// Devices of one kind.
    pub fn devices(name: &'a str, count: usize) -> Self {
        let name = name.into();
        Self::Devices { name, count }
    }

    /// Whether a host that meets this need meets the other one as well.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Devices { name, count },
                Self::Devices {
                    name: other,
                    count: fewer,
                },
            ) => name == other && count >= fewer,
            (Self::DedicatedCpus(count), Self::DedicatedCpus(fewer)) => count >= fewer,
            _ => self == other,
        }
    }

    /// The source of an image; `None` if nothing is fetched, or not by the controller.
    pub fn source(image: &Image) -> Option<Self> {
        image.url.as_deref()?.parse().ok().map(Self::Source)
    }

    /// The network of a `NetworkConfiguration`; `None` if it has no bridge.
    pub fn network(row: NetworkRow) -> Option<Self> {
        Some(Self::Network {
            bridge: row.bridge?.into(),
            vlan: row.vlan,
        })
    }
}

impl fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(class) => write!(f, "storage class '{class}'"),
            Self::Network { bridge, vlan: None } => write!(f, "network '{bridge}'"),
            Self::Network {
                bridge,
                vlan: Some(vlan),
            } => write!(f, "VLAN {vlan} on network '{bridge}'"),
            Self::Images => f.write_str("an imagePool"),
            Self::Hardware(need) => need.fmt(f),
            Self::ExistingVolumes(namespace) => {
                write!(f, "existing volumes for namespace '{namespace}'")
            }
            Self::DedicatedCpus(1) => f.write_str("a dedicated CPU"),
            Self::DedicatedCpus(count) => write!(f, "{count} dedicated CPUs"),
            Self::Devices { name, count: 1 } => write!(f, "device '{name}'"),
            Self::Devices { name, count } => write!(f, "{count} devices '{name}'"),
            Self::Source(url) => write!(f, "image source '{url}'"),
        }
    }
}
