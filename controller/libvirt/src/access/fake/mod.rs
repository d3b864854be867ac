//! A libvirt host in memory, with faults.
//!
//! ```text
//! test ──▶ FakeLibvirt ─┬─ state(): domains, pools, networks … as the host has them
//!                       ├─ fail, fail_nth, hang, disconnect, set_reachable: what goes wrong
//!                       └─ calls(): the changes, in order
//! ```
//! It behaves as a real host was observed to, the dangerous behaviour included: it deletes a volume that a
//! running guest uses, accepts any definition with a name, and starts no guest whose bridge is absent. The
//! contract tests compare it with a real libvirtd.

#![allow(
    dead_code,
    reason = "what a host has and what goes wrong there is for the tests of the backend to choose"
)]

mod connection;
mod described;
mod dhcp;
mod edit;
mod found;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use common::address::Cidr;
use common::api::choice::{HugepageSize, VirtType};
use common::api::status::GuestOs;
use uuid::Uuid;

use super::types::shutoff;
use super::{
    AccessError, Connection, Connector, DhcpServer, HostInfo, Lease, Result, State, Target,
};
use connection::FakeConnection;

/// A host. Clones share it.
#[derive(Clone)]
pub(crate) struct FakeLibvirt(Arc<Shared>);

struct Shared {
    state: Mutex<HostState>,
    /// Notified when a call need not hang any longer.
    released: Condvar,
}

/// State of the host, and the faults that are injected.
pub(crate) struct HostState {
    pub info: HostInfo,
    pub pools: BTreeMap<String, FakePool>,
    /// Types of pools that are not of type `dir`.
    pub pool_types: BTreeMap<String, &'static str>,
    pub networks: BTreeMap<String, FakeNetwork>,
    pub bridges: Vec<String>,
    pub domains: BTreeMap<Uuid, FakeDomain>,
    /// By the domain's name, as libvirt names the files: a new domain of an old name finds the old one's.
    pub varstores: BTreeSet<String>,
    /// How the guests of domains defined from now on behave.
    pub guest: Guest,
    reachable: bool,
    /// Connections opened so far. Those numbered up to `closed` have ended.
    opened: usize,
    closed: usize,
    calls: Vec<String>,
    reads: usize,
    under_way: usize,
    most_under_way: usize,
    faults: Vec<Fault>,
    hung: BTreeSet<&'static str>,
}

/// A domain.
#[derive(Debug, Clone)]
pub(crate) struct FakeDomain {
    pub name: String,
    pub inactive: String,
    pub live: Option<String>,
    pub state: State,
    pub reason: i32,
    pub persistent: bool,
    pub guest: Guest,
}

impl FakeDomain {
    /// The text that a change applies to: the live one of a running guest, else the definition.
    fn current(&mut self) -> &mut String {
        self.live.as_mut().unwrap_or(&mut self.inactive)
    }
}

/// How a guest behaves.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    /// Whether it shuts down when the power button is pressed.
    pub acpi: bool,
    pub agent: Agent,
    /// Whether it releases a device that is unplugged.
    pub unplugs: bool,
    /// What its agent reports: MAC address and IP addresses of each interface.
    pub addresses: Vec<(String, Vec<String>)>,
    /// The operating system that its agent reports; `None`: the agent is too old to know.
    pub os: Option<GuestOs>,
}

/// A guest's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agent {
    Absent,
    /// The agent runs and does not answer.
    Silent,
    Answers,
}

/// A directory pool.
#[derive(Debug, Clone)]
pub(crate) struct FakePool {
    pub active: bool,
    pub capacity: u64,
    pub volumes: BTreeMap<String, FakeVolume>,
    /// Volumes that others make in any pool while this one is refreshed: pool, name, volume.
    pub made_meanwhile: Vec<(String, String, FakeVolume)>,
}

/// A volume with its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FakeVolume {
    pub capacity: u64,
    /// Its length is its capacity; the length of others is that of their content.
    pub raw: bool,
    pub backing: Option<String>,
    pub content: Vec<u8>,
    /// Instead of its path.
    pub key: Option<String>,
}

/// A virtual network.
#[derive(Debug, Clone)]
pub(crate) struct FakeNetwork {
    pub active: bool,
    pub bridge: Option<String>,
    /// Whether it is a bridge of Linux.
    pub linux_bridge: bool,
    pub leases: Vec<Lease>,
    pub dhcp: DhcpServer,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// The call has no effect.
    Before,
    /// Half of an upload is written. Other calls have no effect.
    During,
    /// The call takes full effect, and its answer is lost.
    After,
}

struct Fault {
    /// Name of the call; `None`: any change.
    call: Option<&'static str>,
    /// Number of calls that succeed before.
    skip: usize,
    when: When,
    error: AccessError,
}

/// Keeps calls hanging until it is dropped.
pub(crate) struct Hang {
    host: FakeLibvirt,
    call: &'static str,
}

impl Drop for Hang {
    fn drop(&mut self) {
        self.host.state().hung.remove(self.call);
        self.host.0.released.notify_all();
    }
}

impl Default for FakeLibvirt {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeLibvirt {
    /// A host of 8 processors and 16 GiB, with the pool `vms`, the network `default` and the bridge `br0`.
    pub(crate) fn new() -> Self {
        let state = HostState {
            info: HostInfo {
                libvirt_version: "9.0.0".into(),
                hypervisor_version: "7.2.0".into(),
                uuid: Some(Uuid::from_u128(0xa)),
                cpus: 8,
                memory: 16 << 30,
                machine_types: MACHINES
                    .iter()
                    .flat_map(|(alias, canonical)| [*alias, *canonical])
                    .map(str::to_owned)
                    .collect(),
                cpu_models: [VirtType::Kvm, VirtType::Qemu]
                    .map(|it| (it, CPU_MODELS.map(str::to_owned).to_vec()))
                    .into(),
                hugepages: Some(vec![HugepageSize::Mebi2, HugepageSize::Gibi1]),
                efi: true,
                secure_boot: true,
                tpm: true,
                mac_filter: true,
                security_drivers: vec!["apparmor".into()],
            },
            pool_types: BTreeMap::new(),
            pools: BTreeMap::from([("vms".into(), FakePool::of(100 << 30))]),
            networks: BTreeMap::from([(
                "default".into(),
                FakeNetwork {
                    active: true,
                    bridge: Some("virbr0".into()),
                    linux_bridge: true,
                    leases: vec![],
                    dhcp: DhcpServer {
                        subnets: vec![Cidr::containing([192, 168, 122, 1].into(), 24)],
                        hosts: vec![],
                        partial: vec![],
                    },
                },
            )]),
            bridges: vec!["br0".into(), "eth0".into(), "virbr0".into()],
            domains: BTreeMap::new(),
            varstores: BTreeSet::new(),
            guest: Guest {
                acpi: true,
                agent: Agent::Absent,
                unplugs: true,
                addresses: vec![],
                os: None,
            },
            reachable: true,
            opened: 0,
            closed: 0,
            calls: vec![],
            reads: 0,
            under_way: 0,
            most_under_way: 0,
            faults: vec![],
            hung: BTreeSet::new(),
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            released: Condvar::new(),
        }))
    }

    /// State of the host, to read or to change.
    pub(crate) fn state(&self) -> MutexGuard<'_, HostState> {
        self.0.state.lock().unwrap()
    }

    /// Every requested change, in order, those that failed too: `define <name>`,
    /// `delete_volume <pool>/<volume>`.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Number of reads.
    pub(crate) fn reads(&self) -> usize {
        self.state().reads
    }

    /// Number of calls that are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.state().under_way
    }

    /// The most calls that were under way at a time.
    pub(crate) fn most_under_way(&self) -> usize {
        self.state().most_under_way
    }

    /// How many connections were opened.
    pub(crate) fn opened(&self) -> usize {
        self.state().opened
    }

    /// The next call of that name fails.
    pub(crate) fn fail(&self, call: &'static str, when: When, error: AccessError) {
        self.state().faults.push(Fault {
            call: Some(call),
            skip: 0,
            when,
            error,
        });
    }

    /// The change after `skip` others fails.
    pub(crate) fn fail_nth(&self, skip: usize, when: When, error: AccessError) {
        self.state().faults.push(Fault {
            call: None,
            skip,
            when,
            error,
        });
    }

    /// Whether a fault is still to come.
    pub(crate) fn has_fault(&self) -> bool {
        !self.state().faults.is_empty()
    }

    /// Calls of that name do not return until the guard is dropped or the connection ends; `open` is one, too.
    pub(crate) fn hang(&self, call: &'static str) -> Hang {
        self.state().hung.insert(call);
        Hang {
            host: self.clone(),
            call,
        }
    }

    /// Ends every open connection.
    pub(crate) fn disconnect(&self) {
        let mut state = self.state();
        state.closed = state.opened;
        self.0.released.notify_all();
    }

    /// Whether new connections can be opened; if not, the open ones end.
    pub(crate) fn set_reachable(&self, reachable: bool) {
        self.state().reachable = reachable;
        if !reachable {
            self.disconnect();
        }
    }

    /// The guest shuts itself down.
    pub(crate) fn guest_shuts_down(&self, uuid: Uuid) {
        self.state().ends(uuid, State::ShutOff, shutoff::SHUTDOWN);
    }

    /// Another client switches the guest off, as `virsh destroy` does.
    pub(crate) fn is_switched_off(&self, uuid: Uuid) {
        self.state().ends(uuid, State::ShutOff, shutoff::DESTROYED);
    }

    /// Another client migrates the guest to another host, as `virsh migrate` does, and leaves the definition.
    pub(crate) fn is_migrated_away(&self, uuid: Uuid) {
        self.state().ends(uuid, State::ShutOff, shutoff::MIGRATED);
    }

    /// QEMU crashes.
    pub(crate) fn qemu_crashes(&self, uuid: Uuid) {
        self.state().ends(uuid, State::ShutOff, shutoff::CRASHED);
    }
}

impl fmt::Debug for FakeLibvirt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeLibvirt")
    }
}

impl Connector for FakeLibvirt {
    fn open(&self, _target: &Target) -> Result<Box<dyn Connection>> {
        let mut state = self.state();
        while state.hung.contains("open") {
            state = self.0.released.wait(state).unwrap();
        }
        state.opened += 1;
        if !state.reachable {
            let message =
                "Failed to connect socket to '/run/libvirt/libvirt-sock': Connection refused";
            return Err(AccessError::Disconnected(message.into()));
        }
        Ok(Box::new(FakeConnection {
            host: self.clone(),
            number: state.opened,
        }))
    }
}

impl FakePool {
    /// An empty one that runs.
    pub(crate) fn of(capacity: u64) -> Self {
        Self {
            active: true,
            capacity,
            volumes: BTreeMap::new(),
            made_meanwhile: vec![],
        }
    }
}

impl FakePool {
    /// Capacity that is not allocated.
    fn available(&self) -> u64 {
        let used: u64 = self
            .volumes
            .values()
            .map(|it| it.content.len() as u64)
            .sum();
        self.capacity.saturating_sub(used)
    }
}

impl FakeVolume {
    /// The qcow2 header that a guest wrote into its raw volume. libvirt reports what the header says after a refresh of the pool.
    fn header(&self) -> Option<&[u8]> {
        (self.raw && self.content.starts_with(b"QFI\xfb")).then_some(&self.content[..])
    }

    /// The length of its file.
    fn file(&self) -> u64 {
        let written = self.content.len() as u64;
        if self.raw {
            written.max(self.capacity)
        } else {
            written
        }
    }
}

/// CPU models that guests of the host can have.
const CPU_MODELS: [&str; 4] = ["Skylake-Server", "host-model", "host-passthrough", "qemu64"];

/// Aliases of machine types, and what libvirt writes for them.
const MACHINES: [(&str, &str); 2] = [("q35", "pc-q35-7.2"), ("pc", "pc-i440fx-7.2")];

impl HostState {
    /// A volume's path.
    pub(crate) fn path(pool: &str, volume: &str) -> String {
        format!("/var/lib/libvirt/{pool}/{volume}")
    }

    /// Ends a domain's guest.
    fn ends(&mut self, uuid: Uuid, state: State, reason: i32) {
        let Some(domain) = self.domains.get_mut(&uuid) else {
            return;
        };
        domain.live = None;
        (domain.state, domain.reason) = (state, reason);
        if !domain.persistent {
            self.domains.remove(&uuid);
        }
    }

    /// The fault that is injected into this call.
    fn fault(&mut self, call: &'static str, change: bool) -> Option<(When, AccessError)> {
        let mut due = None;
        for (index, fault) in self.faults.iter_mut().enumerate() {
            if fault.call.map_or(change, |it| it == call) {
                if fault.skip == 0 {
                    due = due.or(Some(index));
                } else {
                    fault.skip -= 1;
                }
            }
        }
        let fault = self.faults.remove(due?);
        Some((fault.when, fault.error))
    }
}
