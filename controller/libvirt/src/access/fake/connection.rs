//! A connection to the fake: each call returns what a real host was observed to return.
//!
//! The file is long because it is one implementation of one trait.

use std::collections::BTreeMap;
use std::io::Read;

use common::api::status::GuestOs;
use roxmltree::Document;
use uuid::Uuid;

use super::described::{desired, disk, domain_state, memory, resolved, vcpus};
use super::found::{active, agent, domain, found, network_of, put, refused, running, volume};
use super::start::startable;
use super::{Agent, FakeDomain, FakeLibvirt, HostState, MACHINES, When, dhcp, edit};
use crate::access::types::shutoff;
use crate::access::{
    AccessError, CardAddresses, Connection, DhcpHost, DhcpServer, DomainDetail, DomainDisks,
    DomainHardware, DomainState, FirmwareState, HostInfo, Lease, Network, Pool, Result, Shutdown,
    State, Volume, xml,
};

/// Why a running guest runs: it was booted (virDomainRunningReason).
const BOOTED: i32 = 1;

pub(super) struct FakeConnection {
    pub(super) host: FakeLibvirt,
    /// Number of the connection, counted from 1 for each host.
    pub(super) number: usize,
}

impl FakeConnection {
    /// A call that reads.
    fn read<T>(
        &mut self,
        call: &'static str,
        work: impl FnOnce(&mut HostState) -> Result<T>,
    ) -> Result<T> {
        self.call(call, None, |state, _| work(state))
    }

    /// A call that changes a domain.
    fn change<T>(
        &mut self,
        call: &'static str,
        uuid: Uuid,
        work: impl FnOnce(&mut FakeDomain) -> Result<T>,
    ) -> Result<T> {
        let about = self
            .host
            .state()
            .domains
            .get(&uuid)
            .map(|it| it.name.clone());
        let about = about.unwrap_or_else(|| uuid.to_string());
        self.call(call, Some(about), |state, _| work(domain(state, uuid)?))
    }

    fn call<T>(
        &mut self,
        call: &'static str,
        change: Option<String>,
        work: impl FnOnce(&mut HostState, Option<When>) -> Result<T>,
    ) -> Result<T> {
        let host = self.host.clone();
        let mut state = host.state();
        let changes = change.is_some();
        match change {
            Some(about) => state.calls.push(format!("{call} {about}")),
            None => state.reads += 1,
        }
        state.under_way += 1;
        state.most_under_way = state.most_under_way.max(state.under_way);
        while state.hung.contains(call) && state.closed < self.number {
            state = host.0.released.wait(state).unwrap();
        }
        state.under_way -= 1;
        if state.closed >= self.number {
            let message = "internal error: client socket is closed";
            return Err(AccessError::Disconnected(message.into()));
        }
        let fault = state.fault(call, changes);
        if let Some((_, AccessError::Disconnected(_))) = fault {
            state.closed = state.opened;
        }
        match fault {
            Some((When::Before, error)) => Err(error),
            Some((when, error)) => work(&mut state, Some(when)).and(Err(error)),
            None => work(&mut state, None),
        }
    }
}

impl Connection for FakeConnection {
    fn alive(&mut self) -> bool {
        self.host.state().closed < self.number
    }

    fn host_uuid(&mut self) -> Result<Option<Uuid>> {
        self.read("host_uuid", |state| Ok(state.info.uuid))
    }

    fn info(&mut self) -> Result<HostInfo> {
        self.read("info", |state| Ok(state.info.clone()))
    }

    fn pools(&mut self) -> Result<Vec<Pool>> {
        self.read("pools", |state| {
            let pools = state.pools.iter().map(|(name, pool)| Pool {
                name: name.clone(),
                active: pool.active,
                kind: state
                    .pool_types
                    .get(name)
                    .copied()
                    .unwrap_or("dir")
                    .to_owned(),
                path: Some(format!("/pools/{name}")),
                capacity: if pool.active { pool.capacity } else { 0 },
                available: if pool.active { pool.available() } else { 0 },
            });
            Ok(pools.collect())
        })
    }

    fn networks(&mut self) -> Result<Vec<Network>> {
        self.read("networks", |state| {
            let networks = state.networks.iter().map(|(name, network)| Network {
                name: name.clone(),
                active: network.active,
                bridge: network.bridge.clone(),
                linux_bridge: network.linux_bridge,
            });
            Ok(networks.collect())
        })
    }

    fn bridges(&mut self) -> Result<Vec<String>> {
        self.read("bridges", |state| Ok(state.bridges.clone()))
    }

    fn domains(&mut self) -> Result<Vec<DomainState>> {
        self.read("domains", |state| {
            Ok(state
                .domains
                .iter()
                .map(|(uuid, it)| domain_state(*uuid, it))
                .collect())
        })
    }

    fn domain(&mut self, uuid: Uuid) -> Result<Option<DomainDetail>> {
        self.read("domain", |state| {
            Ok(state.domains.get(&uuid).map(|it| DomainDetail {
                state: domain_state(uuid, it),
                inactive: it.inactive.clone(),
                live: it.live.clone(),
            }))
        })
    }

    fn disks_of_all(&mut self) -> Result<Vec<DomainDisks>> {
        self.read("disks_of_all", |state| {
            let disks = state.domains.iter().map(|(uuid, domain)| {
                let mut disks = DomainDisks {
                    uuid: *uuid,
                    ..DomainDisks::default()
                };
                let texts = [Some(&domain.inactive), domain.live.as_ref()];
                for text in texts.into_iter().flatten() {
                    disks.add(&xml::sources(text)?, |it| Ok(resolved(state, it.clone())))?;
                }
                Ok(disks)
            });
            disks.collect()
        })
    }

    fn hardware_of_all(&mut self) -> Result<BTreeMap<Uuid, DomainHardware>> {
        self.read("hardware_of_all", |state| {
            let all = state.domains.iter().map(|(uuid, domain)| {
                let live = domain.live.as_deref().map(xml::hardware).transpose()?;
                let defined = xml::hardware(&domain.inactive)?;
                Ok((*uuid, defined.joined(live.unwrap_or_default())))
            });
            all.collect()
        })
    }

    fn define(&mut self, xml: &str) -> Result<()> {
        let document = Document::parse(xml)
            .map_err(|error| refused(&format!("(domain_definition): {error}")))?;
        let name = xml::text(&document, &["name"]).ok_or_else(|| refused("missing domain name"))?;
        let uuid = xml::text(&document, &["uuid"]).and_then(|it| it.parse().ok());
        let uuid = uuid.ok_or_else(|| refused("malformed uuid element"))?;
        let machine = document
            .descendants()
            .find_map(|it| it.attribute("machine"));
        let frozen = MACHINES.iter().find(|(alias, _)| Some(*alias) == machine);
        let inactive = match frozen {
            Some((_, canonical)) => edit::with_machine(xml, canonical),
            None => xml.to_owned(),
        };
        self.call("define", Some(name.to_owned()), |state, _| {
            if let Some((other, _)) = state
                .domains
                .iter()
                .find(|(other, it)| it.name == name && **other != uuid)
            {
                return Err(refused(&format!(
                    "operation failed: domain '{name}' already exists with uuid {other}"
                )));
            }
            let guest = state.guest.clone();
            let domain = state.domains.entry(uuid).or_insert_with(|| FakeDomain {
                name: name.to_owned(),
                inactive: String::new(),
                live: None,
                state: State::ShutOff,
                reason: 0,
                persistent: true,
                guest,
            });
            if domain.name != name {
                return Err(refused(&format!(
                    "operation failed: domain '{}' is already defined with uuid {uuid}",
                    domain.name
                )));
            }
            domain.inactive = inactive;
            domain.persistent = true;
            Ok(())
        })
    }

    fn undefine(&mut self, uuid: Uuid, kept: FirmwareState) -> Result<()> {
        let name = self
            .host
            .state()
            .domains
            .get(&uuid)
            .map(|it| it.name.clone());
        let name = name.unwrap_or_else(|| uuid.to_string());
        self.call("undefine", Some(name.clone()), |state, _| {
            if domain(state, uuid)?.state.active() {
                return Err(refused(&format!("domain '{name}' is not shut off")));
            }
            state.domains.remove(&uuid);
            if kept != FirmwareState::Keep {
                state.varstores.remove(&name);
            }
            Ok(())
        })
    }

    fn set_metadata(&mut self, uuid: Uuid, element: Option<&str>) -> Result<()> {
        self.change("set_metadata", uuid, |domain| {
            domain.inactive = edit::with_metadata(&domain.inactive, element);
            domain.live = domain
                .live
                .as_ref()
                .map(|it| edit::with_metadata(it, element));
            Ok(())
        })
    }

    fn start(&mut self, uuid: Uuid, reset_nvram: bool) -> Result<()> {
        let about = self
            .host
            .state()
            .domains
            .get(&uuid)
            .map(|it| it.name.clone());
        let about = about.unwrap_or_else(|| uuid.to_string());
        let call = Some(about + if reset_nvram { " with new NVRAM" } else { "" });
        self.call("start", call, |state, _| {
            let found = domain(state, uuid)?.clone();
            if found.state.active() {
                return Err(refused(
                    "Requested operation is not valid: domain is already running",
                ));
            }
            startable(state, &found.inactive)?;
            if found.inactive.contains("firmware='efi'")
                || found.inactive.contains("firmware=\"efi\"")
            {
                state.varstores.insert(found.name);
            }
            let domain = domain(state, uuid)?;
            domain.live = Some(edit::with_socket(&domain.inactive));
            (domain.state, domain.reason) = (State::Running, BOOTED);
            Ok(())
        })
    }

    fn shutdown(&mut self, uuid: Uuid, how: Shutdown) -> Result<()> {
        let call = match how {
            Shutdown::Agent => "shutdown_agent",
            Shutdown::Acpi => "shutdown_acpi",
        };
        self.change(call, uuid, |domain| {
            running(domain)?;
            match (how, domain.guest.agent) {
                (Shutdown::Agent, Agent::Absent) => {
                    return Err(agent("QEMU guest agent is not connected"));
                }
                (Shutdown::Agent, Agent::Silent) => {
                    return Err(agent("guest agent command timed out"));
                }
                (Shutdown::Acpi, _) if !domain.guest.acpi => return Ok(()),
                _ => {}
            }
            domain.live = None;
            (domain.state, domain.reason) = (State::ShutOff, shutoff::SHUTDOWN);
            Ok(())
        })
    }

    fn destroy(&mut self, uuid: Uuid) -> Result<()> {
        self.change("destroy", uuid, |domain| {
            running(domain)?;
            domain.live = None;
            (domain.state, domain.reason) = (State::ShutOff, shutoff::DESTROYED);
            Ok(())
        })
    }

    fn reset(&mut self, uuid: Uuid) -> Result<()> {
        self.change("reset", uuid, |domain| running(domain))
    }

    fn attach(&mut self, uuid: Uuid, device: &str) -> Result<()> {
        self.change("attach", uuid, |domain| {
            let current = domain.current();
            if edit::exchanged(current, device, "").is_some() {
                return Err(refused("operation failed: target already exists"));
            }
            *current = edit::with_device(current, device);
            Ok(())
        })
    }

    fn detach(&mut self, uuid: Uuid, device: &str) -> Result<()> {
        self.change("detach", uuid, |domain| {
            let is_kept = domain.live.is_some() && !domain.guest.unplugs;
            let current = domain.current();
            let without = edit::exchanged(current, device, "");
            let without = without.ok_or_else(|| refused("device not found"))?;
            if !is_kept {
                *current = without;
            }
            Ok(())
        })
    }

    fn update(&mut self, uuid: Uuid, device: &str) -> Result<()> {
        self.change("update", uuid, |domain| {
            let current = domain.current();
            let changed = edit::exchanged(current, device, device);
            *current = changed.ok_or_else(|| refused("device not found"))?;
            Ok(())
        })
    }

    fn set_display_password(
        &mut self,
        uuid: Uuid,
        device: &str,
        applied: Option<&str>,
    ) -> Result<()> {
        self.change("set_display_password", uuid, |domain| {
            running(domain)?;
            let live = domain.live.take().unwrap_or_default();
            let changed = edit::exchanged(&live, device, device);
            let changed = changed.ok_or_else(|| refused("device not found"))?;
            domain.live = Some(edit::with_applied_password(&changed, applied));
            Ok(())
        })
    }

    fn set_vcpus(&mut self, uuid: Uuid, count: u32) -> Result<()> {
        self.change("set_vcpus", uuid, |domain| {
            let current = domain.current();
            if count > vcpus(current, None) {
                return Err(refused(
                    "invalid argument: requested vcpus is greater than max allowable vcpus",
                ));
            }
            *current = edit::with_vcpus(current, count);
            Ok(())
        })
    }

    fn set_memory(&mut self, uuid: Uuid, kib: u64) -> Result<()> {
        self.change("set_memory", uuid, |domain| {
            let current = domain.current();
            if kib > memory(current) / 1024 {
                return Err(refused(
                    "invalid argument: cannot set memory higher than max memory",
                ));
            }
            *current = edit::with_text(current, "currentMemory", &kib.to_string());
            Ok(())
        })
    }

    fn resize_disk(&mut self, uuid: Uuid, target: &str, bytes: u64) -> Result<()> {
        let name = self
            .host
            .state()
            .domains
            .get(&uuid)
            .map(|it| it.name.clone());
        let about = format!("{}/{target}", name.unwrap_or_else(|| uuid.to_string()));
        self.call("resize_disk", Some(about), |state, _| {
            running(domain(state, uuid)?)?;
            let live = domain(state, uuid)?.live.clone().unwrap_or_default();
            let path = disk(&live, target).and_then(|it| resolved(state, it));
            let path = path.ok_or_else(|| {
                refused(&format!("invalid argument: disk '{target}' was not found"))
            })?;
            let volumes = state.pools.iter_mut().flat_map(|(pool, it)| {
                it.volumes
                    .iter_mut()
                    .map(move |(name, volume)| (HostState::path(pool, name), volume))
            });
            for (_, volume) in volumes.filter(|(it, _)| *it == path) {
                volume.capacity = bytes;
            }
            Ok(())
        })
    }

    fn volumes(&mut self, pool: &str) -> Result<Vec<Volume>> {
        self.read("volumes", |state| {
            let found = active(state, pool)?;
            Ok(found
                .volumes
                .iter()
                .map(|(name, it)| volume(pool, name, it))
                .collect())
        })
    }

    fn refresh(&mut self, pool: &str) -> Result<()> {
        self.read("refresh", |state| {
            let made = std::mem::take(&mut active(state, pool)?.made_meanwhile);
            for (pool, name, volume) in made {
                put(state, &pool, &name, volume)?;
            }
            Ok(())
        })
    }

    fn volume(&mut self, pool: &str, name: &str) -> Result<Option<Volume>> {
        self.read("volume", |state| {
            let found = active(state, pool)?;
            Ok(found.volumes.get(name).map(|it| volume(pool, name, it)))
        })
    }

    fn create_volume(&mut self, pool: &str, xml: &str) -> Result<Volume> {
        let (name, desired_volume) = desired(xml)?;
        self.call(
            "create_volume",
            Some(format!("{pool}/{name}")),
            |state, _| put(state, pool, &name, desired_volume),
        )
    }

    fn copy_volume(&mut self, pool: &str, xml: &str, from: (&str, &str)) -> Result<Volume> {
        let (name, mut desired_volume) = desired(xml)?;
        self.call("copy_volume", Some(format!("{pool}/{name}")), |state, _| {
            let source = found(state, from.0, from.1)?;
            desired_volume.content = source.content.clone();
            desired_volume.capacity = desired_volume.capacity.max(source.capacity);
            put(state, pool, &name, desired_volume)
        })
    }

    fn resize_volume(&mut self, pool: &str, name: &str, bytes: u64) -> Result<()> {
        self.call("resize_volume", Some(format!("{pool}/{name}")), |state, _| {
            let volume = found(state, pool, name)?;
            if bytes < volume.capacity {
                return Err(refused("invalid argument: Can't shrink capacity below current capacity unless shrink flag explicitly specified"));
            }
            volume.capacity = bytes;
            Ok(())
        })
    }

    fn delete_volume(&mut self, pool: &str, name: &str) -> Result<()> {
        self.call(
            "delete_volume",
            Some(format!("{pool}/{name}")),
            |state, _| {
                active(state, pool)?.volumes.remove(name);
                Ok(())
            },
        )
    }

    fn upload(&mut self, pool: &str, name: &str, source: &mut dyn Read, length: u64) -> Result<()> {
        self.call("upload", Some(format!("{pool}/{name}")), |state, when| {
            let volume = found(state, pool, name)?;
            let wanted = if when == Some(When::During) {
                length / 2
            } else {
                length
            };
            let mut sent = vec![];
            let got = source.take(wanted).read_to_end(&mut sent);
            // As with a real host, content that was not overwritten remains, and the size is the full one.
            let size = volume.content.len().max(usize::try_from(length).unwrap());
            volume.content.resize(size, 0);
            volume.content[..sent.len()].copy_from_slice(&sent);
            volume.capacity = volume.capacity.max(length);
            match got {
                Ok(got) if got as u64 == wanted => Ok(()),
                Ok(got) => Err(refused(&format!(
                    "the source ended after {got} of {length} bytes"
                ))),
                Err(error) => Err(refused(&format!("the source: {error}"))),
            }
        })
    }

    fn head(&mut self, pool: &str, name: &str, limit: u64) -> Result<Vec<u8>> {
        self.read("head", |state| {
            let volume = found(state, pool, name)?;
            let mut content = volume.content.clone();
            content.resize(usize::try_from(volume.file().min(limit)).unwrap(), 0);
            Ok(content)
        })
    }

    fn leases(&mut self, network: &str) -> Result<Vec<Lease>> {
        self.read("leases", |state| {
            Ok(network_of(state, network)?.leases.clone())
        })
    }

    fn dhcp_server(&mut self, network: &str) -> Result<DhcpServer> {
        self.read("dhcp_server", |state| {
            Ok(network_of(state, network)?.dhcp.clone())
        })
    }

    fn add_dhcp_host(&mut self, network: &str, host: DhcpHost) -> Result<()> {
        let about = format!("{network} {} {}", host.mac, host.address);
        self.call("add_dhcp_host", Some(about), |state, _| {
            dhcp::add(&mut network_of(state, network)?.dhcp, host)
        })
    }

    fn remove_dhcp_host(&mut self, network: &str, host: DhcpHost) -> Result<()> {
        let about = format!("{network} {} {}", host.mac, host.address);
        self.call("remove_dhcp_host", Some(about), |state, _| {
            dhcp::remove(&mut network_of(state, network)?.dhcp, host)
        })
    }

    fn agent_addresses(&mut self, uuid: Uuid, known: &mut CardAddresses) -> Result<()> {
        self.read("agent_addresses", |state| {
            let domain = domain(state, uuid)?;
            running(domain)?;
            match domain.guest.agent {
                Agent::Absent => Err(agent("QEMU guest agent is not connected")),
                Agent::Silent => Err(agent("guest agent command timed out")),
                Agent::Answers => {
                    for (mac, addresses) in &domain.guest.addresses {
                        known.add(mac, addresses);
                    }
                    Ok(())
                }
            }
        })
    }

    fn ask_agent(&mut self, uuid: Uuid, _: i32) -> Result<()> {
        self.read("ask_agent", |state| {
            let domain = domain(state, uuid)?;
            running(domain)?;
            match domain.guest.agent {
                Agent::Absent => Err(agent("QEMU guest agent is not connected")),
                Agent::Silent => Err(agent("guest agent command timed out")),
                Agent::Answers => Ok(()),
            }
        })
    }

    fn guest_os(&mut self, uuid: Uuid) -> Result<GuestOs> {
        self.read("guest_os", |state| {
            let domain = domain(state, uuid)?;
            running(domain)?;
            match (domain.guest.agent, &domain.guest.os) {
                (Agent::Absent, _) => Err(agent("QEMU guest agent is not connected")),
                (Agent::Silent, _) => Err(agent("guest agent command timed out")),
                (Agent::Answers, Some(os)) => Ok(os.clone()),
                (Agent::Answers, None) => Err(refused(
                    "unable to execute QEMU agent command 'guest-get-osinfo'",
                )),
            }
        })
    }
}
