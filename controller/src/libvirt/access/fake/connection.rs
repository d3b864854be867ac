//! A connection to the fake: each call as a real host was seen to answer it.

use std::io::Read;

use common::render::libvirt::Reference;
use roxmltree::Document;
use uuid::Uuid;

use super::{Agent, FakeDomain, FakeLibvirt, FakePool, FakeVolume, MACHINES, When, World, edit};
use crate::libvirt::access::types::shutoff;
use crate::libvirt::access::{
    AccessError, AgentInterface, Connection, DomainDetail, DomainState, Facts, Lease, Network,
    Pool, Result, Shutdown, State, Volume, xml,
};

/// Why a running guest runs: it was booted (virDomainRunningReason).
const BOOTED: i32 = 1;

pub(super) struct FakeConnection {
    pub(super) host: FakeLibvirt,
    /// The how manyth it is.
    pub(super) number: usize,
}

impl FakeConnection {
    /// A look at something.
    fn read<T>(
        &mut self,
        call: &'static str,
        work: impl FnOnce(&mut World) -> Result<T>,
    ) -> Result<T> {
        self.call(call, None, |world, _| work(world))
    }

    /// A change of a domain.
    fn change<T>(
        &mut self,
        call: &'static str,
        uuid: Uuid,
        work: impl FnOnce(&mut FakeDomain) -> Result<T>,
    ) -> Result<T> {
        let about = self
            .host
            .world()
            .domains
            .get(&uuid)
            .map(|it| it.name.clone());
        let about = about.unwrap_or_else(|| uuid.to_string());
        self.call(call, Some(about), |world, _| work(domain(world, uuid)?))
    }

    fn call<T>(
        &mut self,
        call: &'static str,
        change: Option<String>,
        work: impl FnOnce(&mut World, Option<When>) -> Result<T>,
    ) -> Result<T> {
        let host = self.host.clone();
        let mut world = host.world();
        let changes = change.is_some();
        match change {
            Some(about) => world.calls.push(format!("{call} {about}")),
            None => world.reads += 1,
        }
        world.under_way += 1;
        world.most_under_way = world.most_under_way.max(world.under_way);
        while world.hung.contains(call) && world.dead < self.number {
            world = host.0.released.wait(world).unwrap();
        }
        world.under_way -= 1;
        if world.dead >= self.number {
            let message = "internal error: client socket is closed";
            return Err(AccessError::Disconnected(message.into()));
        }
        let fault = world.fault(call, changes);
        if let Some((_, AccessError::Disconnected(_))) = fault {
            world.dead = world.opened;
        }
        match fault {
            Some((When::Before, error)) => Err(error),
            Some((when, error)) => work(&mut world, Some(when)).and(Err(error)),
            None => work(&mut world, None),
        }
    }
}

impl Connection for FakeConnection {
    fn alive(&mut self) -> bool {
        self.host.world().dead < self.number
    }

    fn facts(&mut self) -> Result<Facts> {
        self.read("facts", |world| Ok(world.facts.clone()))
    }

    fn pools(&mut self) -> Result<Vec<Pool>> {
        self.read("pools", |world| {
            let pools = world.pools.iter().map(|(name, pool)| Pool {
                name: name.clone(),
                active: pool.active,
                capacity: if pool.active { pool.capacity } else { 0 },
                available: if pool.active { pool.available() } else { 0 },
            });
            Ok(pools.collect())
        })
    }

    fn networks(&mut self) -> Result<Vec<Network>> {
        self.read("networks", |world| {
            let networks = world.networks.iter().map(|(name, network)| Network {
                name: name.clone(),
                active: network.active,
                bridge: network.bridge.clone(),
            });
            Ok(networks.collect())
        })
    }

    fn bridges(&mut self) -> Result<Vec<String>> {
        self.read("bridges", |world| Ok(world.bridges.clone()))
    }

    fn domains(&mut self) -> Result<Vec<DomainState>> {
        self.read("domains", |world| {
            Ok(world
                .domains
                .iter()
                .map(|(uuid, it)| state(*uuid, it))
                .collect())
        })
    }

    fn domain(&mut self, uuid: Uuid) -> Result<Option<DomainDetail>> {
        self.read("domain", |world| {
            Ok(world.domains.get(&uuid).map(|it| DomainDetail {
                state: state(uuid, it),
                inactive: it.inactive.clone(),
                live: it.live.clone(),
            }))
        })
    }

    fn disks_of_all(&mut self) -> Result<Vec<(Uuid, Vec<String>)>> {
        self.read("disks_of_all", |world| {
            let disks = world.domains.iter().map(|(uuid, domain)| {
                let texts = [Some(&domain.inactive), domain.live.as_ref()];
                let sources = texts
                    .into_iter()
                    .flatten()
                    .flat_map(|it| xml::sources(it).unwrap());
                let mut paths: Vec<String> = sources.filter_map(|it| resolved(world, it)).collect();
                paths.sort();
                paths.dedup();
                (*uuid, paths)
            });
            Ok(disks.collect())
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
        self.call("define", Some(name.to_owned()), |world, _| {
            if let Some((other, _)) = world
                .domains
                .iter()
                .find(|(other, it)| it.name == name && **other != uuid)
            {
                return Err(refused(&format!(
                    "operation failed: domain '{name}' already exists with uuid {other}"
                )));
            }
            let guest = world.guest.clone();
            let domain = world.domains.entry(uuid).or_insert_with(|| FakeDomain {
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

    fn undefine(&mut self, uuid: Uuid) -> Result<()> {
        let name = self
            .host
            .world()
            .domains
            .get(&uuid)
            .map(|it| it.name.clone());
        let name = name.unwrap_or_else(|| uuid.to_string());
        self.call("undefine", Some(name.clone()), |world, _| {
            if domain(world, uuid)?.state.active() {
                return Err(refused(&format!("domain '{name}' is not shut off")));
            }
            world.domains.remove(&uuid);
            world.varstores.remove(&name);
            Ok(())
        })
    }

    fn set_mark(&mut self, uuid: Uuid, element: Option<&str>) -> Result<()> {
        self.change("set_mark", uuid, |domain| {
            domain.inactive = edit::with_mark(&domain.inactive, element);
            domain.live = domain.live.as_ref().map(|it| edit::with_mark(it, element));
            Ok(())
        })
    }

    fn start(&mut self, uuid: Uuid, reset_nvram: bool) -> Result<()> {
        let about = self
            .host
            .world()
            .domains
            .get(&uuid)
            .map(|it| it.name.clone());
        let about = about.unwrap_or_else(|| uuid.to_string());
        let call = Some(about + if reset_nvram { " with new NVRAM" } else { "" });
        self.call("start", call, |world, _| {
            let found = domain(world, uuid)?.clone();
            if found.state.active() {
                return Err(refused(
                    "Requested operation is not valid: domain is already running",
                ));
            }
            startable(world, &found.inactive)?;
            if found.inactive.contains("firmware='efi'")
                || found.inactive.contains("firmware=\"efi\"")
            {
                world.varstores.insert(found.name);
            }
            let domain = domain(world, uuid)?;
            domain.live = Some(domain.inactive.clone());
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
            let keeps = domain.live.is_some() && !domain.guest.unplugs;
            let current = domain.current();
            let without = edit::exchanged(current, device, "");
            let without = without.ok_or_else(|| refused("device not found"))?;
            if !keeps {
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
            .world()
            .domains
            .get(&uuid)
            .map(|it| it.name.clone());
        let about = format!("{}/{target}", name.unwrap_or_else(|| uuid.to_string()));
        self.call("resize_disk", Some(about), |world, _| {
            running(domain(world, uuid)?)?;
            let live = domain(world, uuid)?.live.clone().unwrap_or_default();
            let path = disk(&live, target).and_then(|it| resolved(world, it));
            let path = path.ok_or_else(|| {
                refused(&format!("invalid argument: disk '{target}' was not found"))
            })?;
            let volumes = world.pools.iter_mut().flat_map(|(pool, it)| {
                it.volumes
                    .iter_mut()
                    .map(move |(name, volume)| (World::path(pool, name), volume))
            });
            for (_, volume) in volumes.filter(|(it, _)| *it == path) {
                volume.capacity = bytes;
            }
            Ok(())
        })
    }

    fn volumes(&mut self, pool: &str) -> Result<Vec<Volume>> {
        self.read("volumes", |world| {
            let found = active(world, pool)?;
            Ok(found
                .volumes
                .iter()
                .map(|(name, it)| volume(pool, name, it))
                .collect())
        })
    }

    fn refresh(&mut self, pool: &str) -> Result<()> {
        self.read("refresh", |world| active(world, pool).map(drop))
    }

    fn volume(&mut self, pool: &str, name: &str) -> Result<Option<Volume>> {
        self.read("volume", |world| {
            let found = active(world, pool)?;
            Ok(found.volumes.get(name).map(|it| volume(pool, name, it)))
        })
    }

    fn create_volume(&mut self, pool: &str, xml: &str) -> Result<Volume> {
        let (name, wish) = wish(xml)?;
        self.call(
            "create_volume",
            Some(format!("{pool}/{name}")),
            |world, _| put(world, pool, &name, wish),
        )
    }

    fn copy_volume(&mut self, pool: &str, xml: &str, from: (&str, &str)) -> Result<Volume> {
        let (name, mut wish) = wish(xml)?;
        self.call("copy_volume", Some(format!("{pool}/{name}")), |world, _| {
            let source = found(world, from.0, from.1)?;
            wish.content = source.content.clone();
            wish.capacity = wish.capacity.max(source.capacity);
            put(world, pool, &name, wish)
        })
    }

    fn resize_volume(&mut self, pool: &str, name: &str, bytes: u64) -> Result<()> {
        self.call("resize_volume", Some(format!("{pool}/{name}")), |world, _| {
            let volume = found(world, pool, name)?;
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
            |world, _| {
                active(world, pool)?.volumes.remove(name);
                Ok(())
            },
        )
    }

    fn upload(&mut self, pool: &str, name: &str, source: &mut dyn Read, length: u64) -> Result<()> {
        self.call("upload", Some(format!("{pool}/{name}")), |world, when| {
            let volume = found(world, pool, name)?;
            let wanted = if when == Some(When::During) {
                length / 2
            } else {
                length
            };
            let mut sent = vec![];
            let got = source.take(wanted).read_to_end(&mut sent);
            // What was there stays, and what is missing is a hole: it has the right size.
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

    fn download(&mut self, pool: &str, name: &str, limit: u64) -> Result<Vec<u8>> {
        self.read("download", |world| {
            let volume = found(world, pool, name)?;
            if volume.file() > limit {
                return Err(refused(&format!("the volume has more than {limit} bytes")));
            }
            let mut content = volume.content.clone();
            content.resize(usize::try_from(volume.file()).unwrap(), 0);
            Ok(content)
        })
    }

    fn leases(&mut self, network: &str) -> Result<Vec<Lease>> {
        self.read("leases", |world| {
            let found = world.networks.get(network).ok_or_else(|| {
                AccessError::Absent(format!(
                    "Network not found: no network with matching name '{network}'"
                ))
            })?;
            Ok(found.leases.clone())
        })
    }

    fn agent_interfaces(&mut self, uuid: Uuid) -> Result<Vec<AgentInterface>> {
        self.read("agent_interfaces", |world| {
            let domain = domain(world, uuid)?;
            running(domain)?;
            match domain.guest.agent {
                Agent::Absent => Err(agent("QEMU guest agent is not connected")),
                Agent::Silent => Err(agent("guest agent command timed out")),
                Agent::Answers => Ok(domain.guest.interfaces.clone()),
            }
        })
    }
}

impl FakePool {
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

fn refused(message: &str) -> AccessError {
    AccessError::Refused(message.into())
}

fn agent(message: &str) -> AccessError {
    AccessError::Agent(format!("Guest agent is not responding: {message}"))
}

fn domain(world: &mut World, uuid: Uuid) -> Result<&mut FakeDomain> {
    world.domains.get_mut(&uuid).ok_or_else(|| {
        AccessError::Absent(format!(
            "Domain not found: no domain with matching uuid '{uuid}'"
        ))
    })
}

fn running(domain: &FakeDomain) -> Result<()> {
    if domain.state.active() {
        return Ok(());
    }
    Err(refused(
        "Requested operation is not valid: domain is not running",
    ))
}

fn active<'a>(world: &'a mut World, pool: &str) -> Result<&'a mut FakePool> {
    let found = world.pools.get_mut(pool).ok_or_else(|| {
        AccessError::Absent(format!(
            "Storage pool not found: no storage pool with matching name '{pool}'"
        ))
    })?;
    if found.active {
        return Ok(found);
    }
    Err(refused(&format!(
        "Requested operation is not valid: storage pool '{pool}' is not active"
    )))
}

fn found<'a>(world: &'a mut World, pool: &str, name: &str) -> Result<&'a mut FakeVolume> {
    active(world, pool)?.volumes.get_mut(name).ok_or_else(|| {
        AccessError::Absent(format!(
            "Storage volume not found: no storage vol with matching name '{name}'"
        ))
    })
}

fn put(world: &mut World, pool: &str, name: &str, wish: FakeVolume) -> Result<Volume> {
    let volumes = &mut active(world, pool)?.volumes;
    if volumes.contains_key(name) {
        return Err(refused(&format!("storage volume '{name}' exists already")));
    }
    let made = volume(pool, name, &wish);
    volumes.insert(name.to_owned(), wish);
    Ok(made)
}

fn volume(pool: &str, name: &str, volume: &FakeVolume) -> Volume {
    Volume {
        name: name.to_owned(),
        path: World::path(pool, name),
        capacity: volume.capacity,
        allocation: volume.content.len() as u64,
        backing: volume.backing.clone(),
        format: if volume.content.starts_with(b"QFI") || name.contains(".qcow2") {
            "qcow2".into()
        } else {
            "raw".into()
        },
    }
}

/// A volume's name and what it shall be.
fn wish(xml: &str) -> Result<(String, FakeVolume)> {
    let document = xml::parse(xml)?;
    let name =
        xml::text(&document, &["name"]).ok_or_else(|| refused("missing volume name element"))?;
    let capacity = xml::child(document.root_element(), "capacity")
        .and_then(bytes)
        .ok_or_else(|| refused("missing capacity element"))?;
    let wish = FakeVolume {
        capacity,
        raw: document
            .descendants()
            .filter(|it| it.parent().is_some_and(|it| it.has_tag_name("target")))
            .all(|it| it.attribute("type") != Some("qcow2")),
        backing: xml::backing(&document),
        content: vec![],
    };
    Ok((name.to_owned(), wish))
}

/// A number of bytes with its unit, which is bytes where there is none.
fn bytes(node: roxmltree::Node<'_, '_>) -> Option<u64> {
    let number: u64 = node.text()?.trim().parse().ok()?;
    let factor = match node.attribute("unit") {
        None | Some("bytes" | "B") => 1,
        Some("KiB" | "k" | "K") => 1 << 10,
        Some("MiB" | "M") => 1 << 20,
        Some("GiB" | "G") => 1 << 30,
        Some(_) => return None,
    };
    Some(number * factor)
}

fn state(uuid: Uuid, domain: &FakeDomain) -> DomainState {
    DomainState {
        uuid,
        name: domain.name.clone(),
        mark: edit::mark(&domain.inactive),
        state: domain.state,
        reason: domain.reason,
        vcpus: vcpus(
            domain.live.as_ref().unwrap_or(&domain.inactive),
            Some("current"),
        ),
        memory: memory(&domain.inactive),
        persistent: domain.persistent,
    }
}

fn vcpus(domain: &str, attribute: Option<&str>) -> u32 {
    let document = Document::parse(domain).unwrap();
    let vcpu = xml::child(document.root_element(), "vcpu");
    let current = vcpu.and_then(|it| it.attribute(attribute?));
    current
        .or_else(|| vcpu.and_then(|it| it.text()))
        .and_then(|it| it.trim().parse().ok())
        .unwrap_or(1)
}

/// Bytes, at most. Memory without a unit is KiB.
fn memory(domain: &str) -> u64 {
    let document = Document::parse(domain).unwrap();
    let memory = xml::child(document.root_element(), "memory");
    let number = memory.and_then(bytes).unwrap_or(0);
    match memory.and_then(|it| it.attribute("unit")) {
        None => number * 1024,
        Some(_) => number,
    }
}

/// The path of what a domain refers to.
fn resolved(world: &World, source: Reference) -> Option<String> {
    match source {
        Reference::Path(path) => Some(path),
        Reference::Volume { pool, volume: name } => world
            .pools
            .contains_key(&pool)
            .then(|| World::path(&pool, &name)),
    }
}

/// What the disk with that target refers to.
fn disk(domain: &str, target: &str) -> Option<Reference> {
    let document = Document::parse(domain).unwrap();
    let disk = document.descendants().find(|it| {
        it.has_tag_name("disk")
            && xml::child(*it, "target").and_then(|it| it.attribute("dev")) == Some(target)
    })?;
    let text = format!(
        "<domain><devices>{}</devices></domain>",
        &domain[disk.range()]
    );
    xml::sources(&text).unwrap().into_iter().next()
}

/// Whether QEMU would run: what a definition names is looked for at the start only.
fn startable(world: &World, domain: &str) -> Result<()> {
    let document = Document::parse(domain).unwrap();
    let machine = document
        .descendants()
        .find_map(|it| it.attribute("machine"));
    if let Some(machine) =
        machine.filter(|it| !world.facts.machine_types.iter().any(|known| known == it))
    {
        return Err(refused(&format!(
            "unsupported configuration: Emulator does not support machine type '{machine}'"
        )));
    }
    let devices = xml::child(document.root_element(), "devices");
    for device in devices.into_iter().flat_map(|it| it.children()) {
        let source = xml::child(device, "source");
        let named = |name| source.and_then(|it| it.attribute(name));
        if let Some(bridge) =
            named("bridge").filter(|it| !world.bridges.iter().any(|known| known == it))
        {
            return Err(refused(&format!(
                "Cannot get interface MTU on '{bridge}': No such device"
            )));
        }
        if let Some(network) = named("network")
            && !world.networks.get(network).is_some_and(|it| it.active)
        {
            return Err(refused(&format!(
                "Requested operation is not valid: network '{network}' is not active"
            )));
        }
        let model = xml::child(device, "model").and_then(|it| it.attribute("type"));
        if let Some(model) =
            model.filter(|it| device.has_tag_name("interface") && !MODELS.contains(it))
        {
            return Err(refused(&format!(
                "internal error: QEMU unexpectedly closed the monitor: '{model}' is not a valid device model name"
            )));
        }
    }
    for source in xml::sources(domain)? {
        let text = format!("{source:?}");
        let path = resolved(world, source).ok_or_else(|| {
            refused(&format!(
                "Storage volume not found: no storage vol for {text}"
            ))
        })?;
        let ours = world
            .pools
            .iter()
            .find(|(pool, _)| path.starts_with(&World::path(pool, "")));
        let there = ours.is_none_or(|(pool, it)| {
            it.volumes
                .keys()
                .any(|name| World::path(pool, name) == path)
        });
        if !there {
            return Err(refused(&format!(
                "Cannot access storage file '{path}': No such file or directory"
            )));
        }
    }
    Ok(())
}

/// Network cards that QEMU has.
const MODELS: [&str; 4] = ["virtio", "e1000", "e1000e", "rtl8139"];
