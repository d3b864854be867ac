//! What a host reports of itself and of its objects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use common::address::Cidr;
use common::api::choice::{HugepageSize, VirtType};
use common::api::libvirt_host::HostFirmware;
use common::mac::Mac;
use common::pci::PciAddress;
use common::render::libvirt::Reference;
use uuid::Uuid;

use super::Result;
use super::xml::DomainSources;

/// Versions, capacity and capabilities of a host.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HostInfo {
    /// Version of libvirt that the daemon runs, such as `9.0.0`.
    pub libvirt_version: String,
    /// Version of QEMU with which the host starts guests, such as `7.2.0`.
    pub hypervisor_version: String,
    /// Its UUID, as [`Connection::host_uuid`](super::Connection::host_uuid).
    pub uuid: Option<Uuid>,
    /// Number of the logical CPUs that are online.
    pub cpus: u32,
    /// Memory of the host in bytes, with what its own programs use.
    pub memory: u64,
    /// Names that a definition may use, canonical ones and aliases.
    pub machine_types: Vec<String>,
    /// CPU models that guests can have, with `host-model` and the like, by how the guests are run. What is missing is not
    /// known.
    pub cpu_models: BTreeMap<VirtType, Vec<String>>,
    /// Sizes of the huge pages that it has; `None`: not known.
    pub hugepages: Option<Vec<HugepageSize>>,
    /// Whether it has a firmware for guests with UEFI.
    pub efi: bool,
    /// Whether it has one with Secure Boot.
    pub secure_boot: bool,
    /// Whether it emulates a TPM 2.0.
    pub tpm: bool,
    /// Whether it has the filter of MAC addresses that cards of guests get.
    pub mac_filter: bool,
    /// What confines QEMU, such as selinux or apparmor; empty: nothing.
    pub security_drivers: Vec<String>,
}

impl HostInfo {
    /// The firmware that it has beside BIOS.
    pub(crate) fn firmware(&self) -> HostFirmware {
        HostFirmware {
            efi: self.efi,
            secure_boot: self.secure_boot,
        }
    }
}

/// Pool and name of a volume.
pub(crate) type VolumeKey = (String, String);

/// A storage pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pool {
    pub name: String,
    pub active: bool,
    /// Its type, as libvirt names it: `dir`, `netfs`, `logical`.
    pub kind: String,
    /// Folder of its volumes; `None` if the pool is not a folder.
    pub path: Option<String>,
    /// Bytes; 0 of an inactive one.
    pub capacity: u64,
    /// Bytes; 0 of an inactive one.
    pub available: u64,
}

impl Pool {
    /// Whether it is a folder that no other host has, as far as its type says.
    pub(crate) fn is_local(&self) -> bool {
        matches!(&*self.kind, "dir" | "fs")
    }

    /// Whether its volumes are files: a new one reads as zeros where nothing was written.
    pub(crate) fn has_files(&self) -> bool {
        self.is_local() || self.kind == "netfs"
    }
}

/// A virtual network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Network {
    pub name: String,
    pub active: bool,
    pub bridge: Option<String>,
    /// Whether its bridge is one of Linux, whose ports libvirt can filter and isolate.
    pub linux_bridge: bool,
}

/// State of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// QEMU waits for a resource of the host.
    Blocked,
    Paused,
    /// The guest is shutting down.
    ShuttingDown,
    ShutOff,
    Crashed,
    /// The guest is suspended by its power management.
    Suspended,
    /// Not one of these.
    Unknown,
}

impl State {
    /// Whether there is a guest, in whichever state.
    pub(crate) fn active(self) -> bool {
        !matches!(self, Self::ShutOff | Self::Crashed)
    }
}

/// Reasons of [`State::ShutOff`], by libvirt's numbers (virDomainShutoffReason).
pub(crate) mod shutoff {
    /// It was reached before the daemon started.
    pub(crate) const UNKNOWN: i32 = 0;
    /// The guest shut down, on request or of its own accord.
    pub(crate) const SHUTDOWN: i32 = 1;
    /// It was switched off from outside, by this controller or by another client.
    pub(crate) const DESTROYED: i32 = 2;
    /// QEMU crashed.
    pub(crate) const CRASHED: i32 = 3;
    /// Another client migrated the guest to another host; the definition stays unless it was removed.
    pub(crate) const MIGRATED: i32 = 4;
    /// QEMU did not start.
    pub(crate) const FAILED: i32 = 6;
}

/// Storage that a domain refers to, in its definition or as it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DomainDisks {
    pub uuid: Uuid,
    /// Paths of its volumes, media and files, with what is behind them as far as libvirt reports it.
    pub paths: BTreeSet<String>,
    /// Those that its guest can write: its own disks, unless they are read-only.
    pub written: BTreeSet<String>,
    /// Pools of volumes that have no known path. One that libvirt does not have any more may be a folder of another pool.
    pub missing_pools: BTreeSet<String>,
}

impl DomainDisks {
    /// Adds what a description of the domain refers to. `path`: of a volume or file; `None`: its pool is not there.
    pub(super) fn add(
        &mut self,
        sources: &DomainSources,
        mut path: impl FnMut(&Reference) -> Result<Option<String>>,
    ) -> Result<()> {
        for source in &sources.all {
            match (path(source)?, source) {
                (Some(path), _) => {
                    if sources.written.contains(source) {
                        self.written.insert(path.clone());
                    }
                    self.paths.insert(path);
                }
                (None, Reference::Volume { pool, .. }) => {
                    self.missing_pools.insert(pool.clone());
                }
                (None, Reference::Path(_)) => {}
            }
        }
        Ok(())
    }
}

/// What a domain has of its host for itself, in its definition or as it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DomainHardware {
    /// PCI devices.
    pub devices: BTreeSet<PciAddress>,
    /// CPUs that its vCPUs are pinned to.
    pub cpus: BTreeSet<u32>,
}

impl DomainHardware {
    /// With what another description of the same domain has.
    pub(crate) fn joined(mut self, other: Self) -> Self {
        self.devices.extend(other.devices);
        self.cpus.extend(other.cpus);
        self
    }
}

/// What is read of every domain of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DomainState {
    pub uuid: Uuid,
    pub name: String,
    /// Our element of its metadata, as libvirt prints it: the definition's, which may be newer than the guest.
    pub metadata: Option<String>,
    pub state: State,
    /// Reason of the state, by libvirt's numbers.
    pub reason: i32,
    pub vcpus: u32,
    /// Bytes, at most.
    pub memory: u64,
    /// Whether it is defined; one that is not ends with its guest.
    pub persistent: bool,
}

/// A domain with its definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DomainDetail {
    pub state: DomainState,
    /// The definition that the next start uses.
    pub inactive: String,
    /// The definition of the running guest.
    pub live: Option<String>,
}

/// How a shutdown is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// By its agent.
    Agent,
    /// By the power button.
    Acpi,
}

/// What becomes of the firmware's variables and the content of the TPM when a domain is undefined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirmwareState {
    /// The files are removed.
    Remove,
    /// The files are removed. Refused while libvirt has anything else of the guest: a saved state, snapshots,
    /// checkpoints.
    RemoveAlone,
    /// The files stay on the host.
    Keep,
}

/// A volume of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Volume {
    pub name: String,
    /// Identity of the volume in libvirt: its path, or of an LVM volume its uuid.
    pub key: String,
    pub path: String,
    /// Bytes.
    pub capacity: u64,
    /// Bytes.
    pub allocation: u64,
    /// The path of the volume that it is an overlay of.
    pub backing: Option<String>,
    /// Format of its content, such as qcow2.
    pub format: String,
    /// Whether libvirt itself reports another format, because the guest wrote a header into its raw disk. Every other
    /// field says what the volume is.
    pub is_misread: bool,
}

/// The DHCP server of a virtual network, for IPv4.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DhcpServer {
    /// Subnets in which it gives addresses. None: there is no server.
    pub subnets: Vec<Cidr>,
    /// Addresses that it keeps for cards, now or after the next start of the network.
    pub hosts: Vec<DhcpHost>,
    /// Entries of administrators that name a card without an address, or an address for a name: libvirt refuses another
    /// entry for either.
    pub partial: Vec<(Option<Mac>, Option<Ipv4Addr>)>,
}

impl DhcpServer {
    /// The other entries for the card or the address of this one.
    pub(crate) fn others(&self, host: DhcpHost) -> impl Iterator<Item = DhcpHost> {
        let hosts = self.hosts.iter().copied();
        hosts.filter(move |it| *it != host && (it.mac == host.mac || it.address == host.address))
    }

    /// Whether an entry without an address, or without a card, conflicts with this one.
    pub(crate) fn refuses(&self, host: DhcpHost) -> bool {
        let mut partial = self.partial.iter();
        partial.any(|(mac, address)| *mac == Some(host.mac) || *address == Some(host.address))
    }

    /// With the entries of another description of the same network.
    pub(crate) fn joined(mut self, other: Self) -> Self {
        let more = other
            .hosts
            .into_iter()
            .filter(|it| !self.hosts.contains(it));
        let more: Vec<_> = more.collect();
        self.hosts.extend(more);
        self.partial.extend(other.partial);
        self
    }

    /// Whether the address is in one of its subnets.
    pub(crate) fn serves(&self, address: Ipv4Addr) -> bool {
        let mut subnets = self.subnets.iter();
        subnets.any(|subnet| subnet.contains(address.into()))
    }
}

/// An address that a DHCP server keeps for a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DhcpHost {
    pub mac: Mac,
    pub address: Ipv4Addr,
}

/// A DHCP lease of a virtual network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub mac: String,
    pub ip: IpAddr,
    /// Seconds since 1970; 0 is never.
    pub expiry: i64,
}
