//! `LibvirtHost`: a host whose libvirt runs Machines.
//!
//! ```text
//! spec ── from the administrator: URI, storage classes ──▶ pools, networks ──▶ bridges
//! status ── from the controller: what it observed on the host
//! ```
//! The administrator creates pools and networks. The controller looks them up and reports their state;
//! it never creates one.

mod status;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cel;
use super::choice::{CpuMode, HostNetworkType, Provisioning, VirtType, VolumeFormat};
use super::host_limits::HostLimits;
use super::schema;
use crate::bounds;
use crate::cpu_list::CpuList;
use crate::pci::PciAddress;

pub use status::{HostDomains, HostFirmware, HostResources, LibvirtHostStatus};

/// A host whose libvirt runs Machines. Written by the administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "vitistack.io",
        version = "v1alpha1",
        kind = "LibvirtHost",
        plural = "libvirthosts",
        shortname = "lvh",
        shortname = "lh",
        category = "vitistack",
        status = "LibvirtHostStatus",
        doc = "A host whose libvirt runs Machines.",
        printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
        printcolumn = r#"{"name":"Reachable","type":"string","jsonPath":".status.conditions[?(@.type==\"Reachable\")].status"}"#,
        printcolumn = r#"{"name":"Schedulable","type":"boolean","jsonPath":".spec.schedulable","description":"Empty: true"}"#,
        printcolumn = r#"{"name":"CPU","type":"integer","jsonPath":".status.allocatable.cpu","description":"vCPUs that Machines may have"}"#,
        printcolumn = r#"{"name":"Memory","type":"string","jsonPath":".status.allocatable.memory","description":"Memory that Machines may have"}"#,
        printcolumn = r#"{"name":"Machines","type":"integer","jsonPath":".status.domains.ours"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
        printcolumn = r#"{"name":"URI","type":"string","jsonPath":".spec.uri","priority":1}"#,
        printcolumn = r#"{"name":"Libvirt","type":"string","jsonPath":".status.libvirtVersion","priority":1}"#,
        printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [cel::credentials()]))]
pub struct LibvirtHostSpec {
    /// URI of the host's libvirt, at most 512 characters and without parameters: qemu:///system for the
    /// controller's own host, qemu+tls://host/system or qemu+ssh://user@host/system for others,
    /// test:///default for libvirt's test driver.
    #[schemars(with = "schema::HostUriText")]
    pub uri: String,
    /// Secret with the credentials for the host: tls.crt, tls.key and ca.crt for tls, ssh-privatekey and
    /// known_hosts for ssh. Required for both. Not used for qemu:/// and test:///.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<CredentialsSecretRef>,
    /// How the host runs its guests: kvm (hardware virtualization) or qemu (emulation). The controller
    /// does not detect it, because a host can have /dev/kvm and still be unable to use it.
    pub virt_type: VirtType,
    /// CPU model of the guests: host-passthrough, host-model or maximum. Default: host-passthrough with
    /// kvm, maximum with qemu.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_mode: Option<CpuMode>,
    /// Whether the controller may bind new Machines to the host. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable: Option<bool>,
    /// Whether the controller only observes the host and changes nothing on it. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<bool>,
    /// Factors between the host's CPUs, memory and storage and those of all its Machines together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overcommit: Option<Overcommit>,
    /// CPUs and memory for the host's own processes, which Machines cannot get. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Reserved>,
    /// Storage classes that the host offers to disks, at most 64, each with its pool. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::HOST_CLASSES_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["storageClass"]))]
    pub storage: Option<Vec<HostStorage>>,
    /// Storage pool for images: the controller downloads images into it, and image.volume names a volume
    /// in it. No pool of storage, because no guest may write to it. Default: none, and the host runs no
    /// Machines with images.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LibvirtName>")]
    pub image_pool: Option<String>,
    /// Storage pool, of type dir, for logs of consoles: a file for each Machine with console.log. No pool of storage,
    /// because a console may write without end. Default: none, and no console is logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LibvirtName>")]
    pub console_log_pool: Option<String>,
    /// Pools with volumes that exist already and that Machines use as disks as they are (disks[].volumeName), at most 64,
    /// each for the namespaces that it names. The controller creates, changes and deletes nothing in them, so no pool of
    /// storage, images or logs can be one. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::HOST_CLASSES_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pool"]))]
    pub existing_volumes: Option<Vec<ExistingVolumes>>,
    /// Prefixes of the URLs that images may be fetched from, redirects included, at most 64: scheme, host
    /// and port exactly, the path by whole segments, such as https://images.example.com/os/. Servers
    /// listed here may have private addresses. Default: any URL whose server has public addresses only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::SourcePrefix>>", length(max = bounds::HOST_SOURCES_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub image_sources: Option<Vec<String>>,
    /// Networks that the host offers to network cards, at most 256. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::HOST_NETWORKS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub networks: Option<Vec<HostNetwork>>,
    /// CPUs of the host for guests with dedicated CPUs: numbers and ranges such as 2-7,10. Each is given to one vCPU at a
    /// time. All other threads of guests that are started from then on run on the other CPUs. The administrator keeps
    /// other processes of the host off these CPUs (isolcpus, cpusets of systemd). Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CpuListText>")]
    pub dedicated_cpus: Option<String>,
    /// PCI devices that the host offers to single guests, at most 16 kinds. A guest has its devices for itself, and the
    /// host must not need them. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::HOST_DEVICES_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"], "x-kubernetes-validations" = [cel::addresses_once()]))]
    pub devices: Option<Vec<HostDevices>>,
    /// Limits of each guest: rates of disks and network cards, time of vCPUs. Default: none. A guest gets
    /// changed ones at its next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<HostLimits>,
}

impl LibvirtHostSpec {
    /// Every pool that the spec names. One that libvirt does not have, or that is not active, may hold volumes all the
    /// same: those of Machines, and overlays of volumes in the other pools.
    pub fn pools(&self) -> BTreeSet<String> {
        let offers = self.storage.iter().flatten();
        let pools = offers.map(|offer| offer.pool.clone());
        pools.chain(self.image_pool.clone()).collect()
    }

    /// The storage classes whose pools other hosts have as well.
    pub fn shared_storage(&self) -> BTreeMap<String, SharedStorage> {
        let offers = self.storage.iter().flatten();
        let shared =
            offers.filter_map(|offer| Some((offer.storage_class.clone(), offer.shared()?)));
        shared.collect()
    }

    /// The CPUs for guests with dedicated CPUs on a host with so many CPUs: those of the list that it has. `None`: it was never
    /// reached, and may have all of them. A list that cannot be read names none.
    pub fn dedicated(&self, cpus: Option<u32>) -> BTreeSet<u32> {
        let list = self.dedicated_cpus.as_deref().map(str::parse::<CpuList>);
        let mut listed = list.and_then(Result::ok).unwrap_or_default().0;
        listed.retain(|cpu| cpus.is_none_or(|count| *cpu < count));
        listed
    }

    /// The devices that the host offers by this name; none that cannot be read.
    pub fn devices_named(&self, name: &str) -> impl Iterator<Item = PciAddress> {
        let mut offers = self.devices.iter().flatten();
        let offer = offers.find(|offer| offer.name == name);
        offer.into_iter().flat_map(HostDevices::addresses)
    }

    /// The pool with existing volumes for the Machines of a namespace.
    pub fn existing_volumes_of(&self, namespace: &str) -> Option<&ExistingVolumes> {
        let mut offers = self.existing_volumes.iter().flatten();
        offers.find(|offer| offer.namespaces.iter().any(|it| it == namespace))
    }
}

/// A Secret by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsSecretRef {
    /// Namespace of the Secret.
    #[schemars(with = "schema::Label")]
    pub namespace: String,
    /// Name of the Secret.
    #[schemars(with = "schema::ObjectName")]
    pub name: String,
}

/// Factors between a host's CPUs, memory and storage and those of all its Machines together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Overcommit {
    /// vCPUs per CPU of the host: a decimal number such as "4" or "1.5", up to 999.999. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Factor>")]
    pub cpu: Option<String>,
    /// Memory of guests per memory of the host: a decimal number such as "1.2", up to 999.999. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Factor>")]
    pub memory: Option<String>,
    /// Size of all volumes per capacity of their pool: a decimal number such as "1.5", up to 999.999.
    /// Default: 2 for overlays of an image, 1 for all other volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Factor>")]
    pub storage: Option<String>,
}

/// CPUs and memory for the host's own processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    /// CPUs: a quantity such as 1 or 500m. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub cpu: Option<String>,
    /// Memory: a quantity in bytes such as 2Gi. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::QuantityText>")]
    pub memory: Option<String>,
}

/// A storage class that a host offers, and the pool of its volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.format) || self.format != 'raw' || (has(self.provisioning) && self.provisioning == 'copy')",
        "message": "format raw needs provisioning: copy, because a raw volume cannot have a backing file"
    }
]))]
pub struct HostStorage {
    /// Name that disks give in storageClass. A StorageClass of this name need not exist in Kubernetes.
    #[schemars(with = "schema::HostClassName")]
    pub storage_class: String,
    /// Name of the libvirt storage pool that the volumes are created in.
    #[schemars(with = "schema::LibvirtName")]
    pub pool: String,
    /// Format of the volumes: qcow2 (default) or raw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<VolumeFormat>,
    /// How a volume gets the content of an image: overlay (default) creates it at once with the image
    /// as its backing file, copy copies the image. Format raw needs copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// Name of the storage behind the pool, if other hosts have it as well, such as an NFS export that each of them
    /// mounts: every LibvirtHost that has it gives the same name, of at most 63 lower-case letters, digits and '-'. A
    /// stopped Machine moves between hosts that share the storage of all its disks. Default: the pool is of this host
    /// alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>")]
    pub shared_as: Option<String>,
}

/// Storage that several hosts have as a pool, and how each of them makes volumes of it. Two hosts that agree on it find each
/// other's volumes under the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedStorage {
    /// Name of the storage.
    pub name: String,
    /// Format of the volumes.
    pub format: VolumeFormat,
    /// Whether the disk of an image is a copy of it, and no overlay of an image in another pool.
    pub copies: bool,
}

impl HostStorage {
    /// Whether the disk of an image is a copy of it, and no overlay. A raw volume cannot have a backing file.
    pub fn copies(&self) -> bool {
        self.provisioning == Some(Provisioning::Copy) || self.format == Some(VolumeFormat::Raw)
    }

    /// The storage behind the pool, if other hosts have it as well.
    pub fn shared(&self) -> Option<SharedStorage> {
        Some(SharedStorage {
            name: self.shared_as.clone()?,
            format: self.format.unwrap_or(VolumeFormat::Qcow2),
            copies: self.copies(),
        })
    }
}

/// A pool with volumes that exist already, for the Machines of some namespaces. It must be a folder of this host alone
/// (type dir or fs) that no other pool has and that contains no links, because the use of a volume is looked up by its path
/// on this host. The volumes must be qcow2: a guest cannot write the header that QEMU reads of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExistingVolumes {
    /// Namespaces whose Machines may use the volumes, 1 to 256. A host has one such pool for a namespace.
    #[schemars(with = "Vec<schema::Label>", length(min = 1, max = bounds::HOST_NETWORKS_MAX), extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// Name of the libvirt storage pool.
    #[schemars(with = "schema::LibvirtName")]
    pub pool: String,
}

/// PCI devices of one kind that a host offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostDevices {
    /// Addresses of the devices on the host, 1 to 64, as lspci -D prints them: 0000:3b:00.0.
    #[schemars(with = "Vec<schema::PciAddressText>", length(min = 1, max = bounds::HOST_DEVICE_ADDRESSES_MAX), extend("x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<String>,
    /// Name that Machines give in devices[].deviceName: a domain of the vendor, '/' and a name, such as
    /// nvidia.com/A100.
    #[schemars(with = "schema::ResourceName")]
    pub name: String,
}

impl HostDevices {
    /// The addresses; those that cannot be read are left out.
    pub fn addresses(&self) -> impl Iterator<Item = PciAddress> {
        self.addresses.iter().filter_map(|text| text.parse().ok())
    }
}

/// A network that a host offers, and the network or bridge behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "self.type != 'bridge' || !has(self.vlans) || self.vlans.size() <= 1",
        "message": "a plain bridge is in one VLAN at most; use a bridge for each, or type ovs"
    },
    {
        "rule": "self.type == 'network' || self.source.matches('^[^\\\\s/:]{1,15}$')",
        "message": "source must be the name of a Linux interface: at most 15 characters without blanks, '/' and ':'"
    },
    {
        "rule": "self.type != 'ovs' || !has(self.portIsolation) || !self.portIsolation",
        "message": "libvirt cannot isolate ports of Open vSwitch; leave portIsolation out, and install flows on the host"
    }
]))]
pub struct HostNetwork {
    /// Bridge of the NetworkConfigurations that this network serves, at most 15 characters; default for
    /// network cards without a NetworkConfiguration.
    #[schemars(with = "schema::BridgeName")]
    pub name: String,
    /// Type of source: network (a libvirt network), bridge (a Linux bridge) or ovs (an Open vSwitch
    /// bridge).
    #[serde(rename = "type")]
    pub kind: HostNetworkType,
    /// Name of the libvirt network or of the bridge on the host.
    #[schemars(with = "schema::LibvirtName")]
    pub source: String,
    /// VLAN tags that are offered, 1 to 4094, at most 512; at most one with type bridge. Default: all
    /// with type ovs, untagged frames only with the other types.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::HOST_VLANS_MAX), inner(range(min = bounds::VLAN_MIN, max = bounds::VLAN_MAX)), extend("x-kubernetes-list-type" = "set"))]
    pub vlans: Option<Vec<u16>>,
    /// Whether guests on this network reach no other guest on the same host, only what is beyond the
    /// bridge. Not with type ovs. Default false. A guest gets a changed value at its next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_isolation: Option<bool>,
    /// Whether guests may send frames from other MAC addresses than those of their cards, which bridges
    /// and virtual routers inside guests need. Default false: libvirt's filter no-mac-spoofing drops them,
    /// except with type ovs, which libvirt cannot filter. A guest gets a changed value at its next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_mac_spoofing: Option<bool>,
}

impl HostNetwork {
    /// Whether the network carries the VLAN; `None`: untagged frames.
    pub fn carries(&self, vlan: Option<i64>) -> bool {
        match (&self.vlans, vlan) {
            (None, None) => true,
            (None, Some(_)) => self.kind == HostNetworkType::Ovs,
            (Some(vlans), None) => vlans.is_empty(),
            (Some(vlans), Some(vlan)) => vlans.iter().any(|known| i64::from(*known) == vlan),
        }
    }
}
