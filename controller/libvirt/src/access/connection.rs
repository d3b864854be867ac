//! What a connection to a libvirt host can do. `native` does it with libvirt, `fake` in memory for tests.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Read;

use common::api::status::GuestOs;
use uuid::Uuid;

use super::addresses::CardAddresses;
use super::error::Result;
use super::target::Target;
use super::types::{
    DhcpHost, DhcpServer, DomainDetail, DomainDisks, DomainHardware, DomainState, FirmwareState,
    HostInfo, Lease, Network, Pool, Shutdown, Volume,
};

/// Opens connections.
pub(crate) trait Connector: Send + Sync + Debug {
    /// A new connection. Blocks until it is open.
    fn open(&self, target: &Target) -> Result<Box<dyn Connection>>;
}

/// The calls to a libvirt host over one connection. They block.
pub(crate) trait Connection: Send {
    /// Whether the connection can be used, as far as is known without a call to the host.
    fn alive(&mut self) -> bool;

    /// The UUID of the host, if its driver has one. Without one in its firmware or configuration, a daemon makes one up when it
    /// starts.
    fn host_uuid(&mut self) -> Result<Option<Uuid>>;
    /// Versions, capacity and capabilities of the host.
    fn info(&mut self) -> Result<HostInfo>;
    /// Storage pools, the inactive ones too.
    fn pools(&mut self) -> Result<Vec<Pool>>;
    /// Virtual networks, the inactive ones too.
    fn networks(&mut self) -> Result<Vec<Network>>;
    /// The host's network interfaces, bridges among them; none where libvirt does not report them.
    fn bridges(&mut self) -> Result<Vec<String>>;

    /// All domains, including those that are not ours.
    fn domains(&mut self) -> Result<Vec<DomainState>>;
    /// A domain with its definitions. No domain of that uuid is no error.
    fn domain(&mut self, uuid: Uuid) -> Result<Option<DomainDetail>>;
    /// The storage that each domain refers to, in its definition or as it runs, with what is behind it as far as
    /// libvirt reports it.
    fn disks_of_all(&mut self) -> Result<Vec<DomainDisks>>;
    /// What each domain has of the host for itself, in its definition or as it runs.
    fn hardware_of_all(&mut self) -> Result<BTreeMap<Uuid, DomainHardware>>;
    /// Defines a domain, or replaces its definition. The text is checked against libvirt's schema first.
    fn define(&mut self, xml: &str) -> Result<()>;
    /// Removes a domain's definition with its managed save and the metadata of snapshots and checkpoints, and with or
    /// without the files of its firmware's variables and its TPM. Refused unless it is shut off: on a running one
    /// libvirt would delete the NVRAM under the guest.
    fn undefine(&mut self, uuid: Uuid, state: FirmwareState) -> Result<()>;
    /// Writes or removes our element in the domain's metadata: the definition's, and the guest's if it runs.
    fn set_metadata(&mut self, uuid: Uuid, element: Option<&str>) -> Result<()>;
    /// Starts a domain. `reset_nvram` resets its firmware settings, which removes the boot entries.
    fn start(&mut self, uuid: Uuid, reset_nvram: bool) -> Result<()>;
    /// Requests a shutdown of the guest, and does not wait for it.
    fn shutdown(&mut self, uuid: Uuid, how: Shutdown) -> Result<()>;
    /// Ends the guest at once.
    fn destroy(&mut self, uuid: Uuid) -> Result<()>;
    /// Resets the hardware of the guest, as a reset button does.
    fn reset(&mut self, uuid: Uuid) -> Result<()>;

    /// Adds a device to the guest if it runs, else to the definition.
    fn attach(&mut self, uuid: Uuid, device: &str) -> Result<()>;
    /// Requests the unplug of a device if the guest runs: whether it was released is to be observed. Else removes it
    /// from the definition.
    fn detach(&mut self, uuid: Uuid, device: &str) -> Result<()>;
    /// Changes what can be changed of a device of the guest if it runs, else of the definition: the medium of
    /// a drive, the network of a card.
    fn update(&mut self, uuid: Uuid, device: &str) -> Result<()>;
    /// Changes the password of the running guest's screen, and then records in the guest which one it has. The record
    /// ends with the guest, as the password does.
    fn set_display_password(
        &mut self,
        uuid: Uuid,
        device: &str,
        applied: Option<&str>,
    ) -> Result<()>;
    /// Sets the number of vCPUs of the guest if it runs, else of the definition, up to the definition's
    /// maximum.
    fn set_vcpus(&mut self, uuid: Uuid, count: u32) -> Result<()>;
    /// Sets the memory of the guest if it runs, else of the definition, up to the definition's maximum.
    fn set_memory(&mut self, uuid: Uuid, kib: u64) -> Result<()>;
    /// Grows a running guest's disk, by its target device.
    fn resize_disk(&mut self, uuid: Uuid, target: &str, bytes: u64) -> Result<()>;

    /// The volumes of a pool, as of the last [`refresh`](Self::refresh).
    fn volumes(&mut self, pool: &str) -> Result<Vec<Volume>>;
    /// Makes libvirt read the content of the pool.
    fn refresh(&mut self, pool: &str) -> Result<()>;
    /// A volume. None of that name in the pool is no error; no such pool is.
    fn volume(&mut self, pool: &str, name: &str) -> Result<Option<Volume>>;
    /// Creates a volume.
    fn create_volume(&mut self, pool: &str, xml: &str) -> Result<Volume>;
    /// Creates a volume with the content of another: its pool and its name.
    fn copy_volume(&mut self, pool: &str, xml: &str, from: (&str, &str)) -> Result<Volume>;
    /// Grows a volume that no running guest uses.
    fn resize_volume(&mut self, pool: &str, name: &str, bytes: u64) -> Result<()>;
    /// Deletes a volume; one that is gone already is fine. libvirt does not check whether it is in use.
    fn delete_volume(&mut self, pool: &str, name: &str) -> Result<()>;
    /// Fills a volume with `length` bytes of `source`. After an interrupted upload the volume looks complete.
    fn upload(&mut self, pool: &str, name: &str, source: &mut dyn Read, length: u64) -> Result<()>;
    /// The first bytes of a volume: `limit`, or all if it has fewer.
    fn head(&mut self, pool: &str, name: &str, limit: u64) -> Result<Vec<u8>>;

    /// The DHCP leases of a virtual network.
    fn leases(&mut self, network: &str) -> Result<Vec<Lease>>;
    /// The DHCP server of a virtual network.
    fn dhcp_server(&mut self, network: &str) -> Result<DhcpServer>;
    /// Makes a DHCP server keep an address for a card, now and after each start of the network. Refused if it keeps the
    /// address for another card, or another address for the card.
    fn add_dhcp_host(&mut self, network: &str, host: DhcpHost) -> Result<()>;
    /// Takes that back.
    fn remove_dhcp_host(&mut self, network: &str, host: DhcpHost) -> Result<()>;
    /// Adds the addresses that the guest's agent reports; waits a few seconds for it at most.
    fn agent_addresses(&mut self, uuid: Uuid, known: &mut CardAddresses) -> Result<()>;
    /// Whether the guest's agent answers within so many seconds, with whatever it says.
    fn ask_agent(&mut self, uuid: Uuid, seconds: i32) -> Result<()>;
    /// The operating system that the guest's agent reports, as far as it does. Waits as long.
    fn guest_os(&mut self, uuid: Uuid) -> Result<GuestOs>;
}
