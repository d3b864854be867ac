//! Queries of a host about one Machine: in one call, and pool by pool.

mod space;

use std::collections::{BTreeMap, BTreeSet};

use common::api::libvirt_host::LibvirtHostSpec;
use common::api::machine::Image;
use common::api::status::GuestOs;
use common::render::libvirt::{Domain, DomainMetadata, Nic, NicSource, VolumeFormat, is_volume_of};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use uuid::Uuid;

use crate::access::{
    AccessError, CardAddresses, Connection, DhcpServer, DomainDetail, DomainHardware, Volume,
    VolumeKey,
};
use crate::capacity::UNLIMITED;
use crate::existing_disks::{Others, Unusable};
use crate::hardware::Cpus;
use crate::images::fetches::{FetchKey, Fetches, ImageState};
use crate::images::names::{image_volume, is_attempt_of, marker};
use crate::libvirt_host::LibvirtHost;
use crate::observed::{Guest, HostView};
use crate::offers::{existing_volumes, images};
use crate::parts::{network_fault, pool_fault, unreadable_pool};
use crate::plan::disks::{
    NeededImage, copies, fetched_images, is_defined, sizes, volumes_to_look_up,
};
use crate::pool_space::StorageFactor;
use crate::switches::Switches;

/// A query about one Machine.
pub(crate) struct HostQuery {
    /// Uuid of the Machine's domain.
    uuid: Uuid,
    /// Uid of the Machine.
    uid: String,
    /// Volumes that the block needs.
    needed: BTreeSet<VolumeKey>,
    /// Pools that are searched for every volume of the Machine; empty unless the Machine is under deletion.
    searched: BTreeSet<String>,
    /// Disks that are copied from an image, by name: pool and volume without the attempt.
    copies: BTreeMap<String, VolumeKey>,
    /// Fetched images that disks and drives need.
    images: Vec<NeededImage>,
    /// Disks that the block has: pool, volume without the attempt, size in bytes.
    sizes: Vec<(String, String, u128)>,
    /// Overcommitment of the host's storage.
    factor: StorageFactor,
    /// Existing volumes that disks are on.
    existing: Vec<VolumeKey>,
    /// Namespace of the Machine.
    namespace: String,
    /// Whether a card holds an address.
    has_addresses: bool,
    /// Whether the Machine is to have devices or CPUs of the host for itself.
    has_hardware: bool,
    /// Whether the Machine is under deletion.
    deleting: bool,
}

/// Answer of the host.
#[derive(Default)]
pub(crate) struct HostAnswer {
    guest: Option<Guest>,
    volumes: BTreeMap<VolumeKey, Volume>,
    unreadable_pools: BTreeMap<String, String>,
    space_left: BTreeMap<String, u128>,
    addresses: CardAddresses,
    dhcp: BTreeMap<String, DhcpServer>,
    unusable: BTreeMap<VolumeKey, Unusable>,
    network_faults: Vec<String>,
    taken: DomainHardware,
}

impl HostQuery {
    /// The query about a Machine on a host of this spec.
    pub(crate) fn new(machine: &Machine, spec: &LibvirtHostSpec, uuid: Uuid) -> Self {
        let block = machine.desired().into_iter();
        Self {
            uuid,
            uid: machine.uid().to_owned(),
            needed: block
                .flat_map(|block| volumes_to_look_up(machine, block, spec))
                .collect(),
            sizes: sizes(machine, spec),
            factor: StorageFactor::of(spec),
            copies: copies(machine, spec),
            images: fetched_images(machine, spec),
            searched: if machine.is_deleting() {
                spec.pools()
            } else {
                BTreeSet::new()
            },
            existing: existing_volumes(machine, spec)
                .map(|(_, key)| key)
                .collect(),
            namespace: machine.namespace().to_owned(),
            has_addresses: !machine.addresses.configs.is_empty(),
            has_hardware: machine
                .desired()
                .is_some_and(|block| block.has_dedicated_cpus() || !block.devices().is_empty()),
            deleting: machine.is_deleting(),
        }
    }

    /// Queries the host. An error concerns the whole host: the state is unknown then.
    pub(crate) fn run(self, host: &mut dyn Connection) -> Result<HostAnswer, AccessError> {
        let mut answer = HostAnswer {
            guest: host.domain(self.uuid)?.as_ref().map(guest),
            ..HostAnswer::default()
        };
        let metadata = answer
            .guest
            .as_ref()
            .and_then(|guest| guest.metadata.as_ref());
        let recorded: BTreeSet<VolumeKey> = metadata
            .into_iter()
            .flat_map(|metadata| &metadata.volumes)
            .map(|kept| (kept.pool.clone(), kept.volume.clone()))
            .collect();
        let seed = metadata.and_then(|metadata| metadata.seed.as_ref());
        let seed = seed.map(|seed| (seed.pool.clone(), seed.volume.clone()));
        if self.deleting {
            // A volume in any pool may be an overlay of one that is deleted.
            let pools = host.pools()?;
            let faults = pools.iter().filter_map(|pool| {
                let fault = pool_fault(&pools, &pool.name)?;
                Some((pool.name.clone(), fault))
            });
            answer.unreadable_pools.extend(faults);
            for domain in host.disks_of_all()? {
                let faults = domain.missing_pools.into_iter().filter_map(|pool| {
                    let fault = pool_fault(&pools, &pool)?;
                    Some((pool, fault))
                });
                answer.unreadable_pools.extend(faults);
            }
        }
        let disks: BTreeMap<String, VolumeKey> = metadata
            .into_iter()
            .flat_map(|metadata| &metadata.volumes)
            .map(|kept| (kept.disk.clone(), (kept.pool.clone(), kept.volume.clone())))
            .collect();
        for (pool, name) in self.needed.into_iter().chain(recorded).chain(seed) {
            answer.look_up(host, pool, name)?;
        }
        for pool in self.searched {
            answer.search(host, &pool, |name| is_volume_of(name, &self.uid))?;
        }
        // Attempts have to be searched for only until the domain's metadata names the one that succeeded.
        let copied: BTreeSet<String> = self.copies.keys().cloned().collect();
        for (disk, (pool, base)) in self.copies {
            let is_recorded = disks
                .get(&disk)
                .is_some_and(|key| answer.volumes.contains_key(key));
            if !is_recorded && !answer.has_complete(&pool, &base) {
                answer.search(host, &pool, |name| name.starts_with(&base))?;
            }
        }
        for NeededImage {
            key: (pool, base),
            disk,
        } in self.images
        {
            if let Some((disk, plain)) = disk {
                // A disk that exists no longer needs its image.
                let recorded = disks.get(&disk).filter(|(pool, _)| *pool == plain.0);
                let is_copied = copied.contains(&disk);
                let is_made = |key: &VolumeKey| answer.volumes.contains_key(key);
                if recorded.is_some_and(is_made) || (!is_copied && is_made(&plain)) {
                    continue;
                }
            }
            for name in answer.defined_attempts(&base) {
                answer.look_up(host, pool.clone(), marker(&name))?;
                answer.look_up(host, pool.clone(), name)?;
            }
            if !answer.has_complete(&pool, &base) {
                answer.search(host, &pool, |name| name.starts_with(&base))?;
            }
        }
        if !self.deleting {
            answer.look_for_space(host, &self.sizes, self.factor)?;
            answer.read_unusable(host, self.uuid, &self.existing, &self.namespace)?;
        }
        if self.has_hardware && !self.deleting {
            let mut all = host.hardware_of_all()?;
            all.remove(&self.uuid);
            let others = all.into_values();
            answer.taken = others.fold(DomainHardware::default(), DomainHardware::joined);
        }
        answer.read_dhcp(host, self.has_addresses)?;
        answer.read_leases(host)?;
        Ok(answer)
    }
}

impl HostAnswer {
    fn look_up(
        &mut self,
        host: &mut dyn Connection,
        pool: String,
        name: String,
    ) -> Result<(), AccessError> {
        if self.unreadable_pools.contains_key(&pool) {
            return Ok(());
        }
        match host.volume(&pool, &name) {
            Ok(found) => {
                self.volumes
                    .extend(found.map(|volume| ((pool, name), volume)));
                Ok(())
            }
            Err(error) => self.pool_failed(host, &pool, error),
        }
    }

    fn search(
        &mut self,
        host: &mut dyn Connection,
        pool: &str,
        is_searched: impl Fn(&str) -> bool,
    ) -> Result<(), AccessError> {
        if self.unreadable_pools.contains_key(pool) {
            return Ok(());
        }
        match host.volumes(pool) {
            Ok(volumes) => {
                let found = volumes
                    .into_iter()
                    .filter(|volume| is_searched(&volume.name));
                self.volumes
                    .extend(found.map(|volume| ((pool.to_owned(), volume.name.clone()), volume)));
                Ok(())
            }
            Err(error) => self.pool_failed(host, pool, error),
        }
    }

    /// Whether a volume of this base, or an attempt, was found with its marker.
    fn has_complete(&self, pool: &str, base: &str) -> bool {
        let has = |name: String| self.volumes.contains_key(&(pool.to_owned(), name));
        let mut names = self.volumes.keys().filter(|(of, _)| of == pool);
        names.any(|(_, name)| is_attempt_of(name, base) && has(marker(name)))
    }

    /// Volumes of this base that the domain is defined with.
    fn defined_attempts(&self, base: &str) -> Vec<String> {
        let defined = self.guest.as_ref().and_then(|guest| guest.defined.as_ref());
        let disks = defined.into_iter().flat_map(|domain| &domain.disks);
        disks
            .filter_map(|disk| Some(disk.volume.as_ref()?.volume.clone()))
            .filter(|name| is_attempt_of(name, base))
            .collect()
    }

    /// Records that a pool cannot be read, unless the error is one of the whole host.
    fn pool_failed(
        &mut self,
        host: &mut dyn Connection,
        pool: &str,
        error: AccessError,
    ) -> Result<(), AccessError> {
        if error.is_of_host() {
            return Err(error);
        }
        let why = unreadable_pool(&host.pools()?, pool, &error);
        self.volumes.retain(|(of, _), _| of != pool);
        self.unreadable_pools.insert(pool.to_owned(), why);
        Ok(())
    }

    /// Why the guest does not get existing volumes that it does not have while it runs.
    fn read_unusable(
        &mut self,
        host: &mut dyn Connection,
        uuid: Uuid,
        existing: &[VolumeKey],
        namespace: &str,
    ) -> Result<(), AccessError> {
        let guest = self.guest.as_ref();
        let running = guest.and_then(|guest| guest.running.as_ref());
        let has = |(pool, name): &VolumeKey| {
            let mut disks = running.into_iter().flat_map(|domain| &domain.disks);
            disks.any(|disk| {
                let volume = disk.volume.as_ref();
                volume.is_some_and(|it| it.pool == *pool && it.volume == *name)
            })
        };
        let volumes: Vec<_> = existing
            .iter()
            .filter(|key| !has(key))
            .filter_map(|key| Some((key, self.volumes.get(key)?)))
            .collect();
        if volumes.is_empty() {
            return Ok(());
        }
        let others = Others::last_read(host, uuid)?;
        for (key, volume) in volumes {
            // Looked for again right before the guest gets the volume, and an error is reported there.
            match others.fault(host, (&key.0, volume), namespace) {
                Err(error) if error.is_of_host() => return Err(error),
                fault => self
                    .unusable
                    .extend(fault.ok().flatten().map(|fault| (key.clone(), fault))),
            }
        }
        Ok(())
    }

    /// The DHCP servers of the networks that the domain is defined with, if a card holds an address, and of those that
    /// its metadata names.
    fn read_dhcp(
        &mut self,
        host: &mut dyn Connection,
        has_addresses: bool,
    ) -> Result<(), AccessError> {
        let guest = self.guest.as_ref();
        let defined = guest.and_then(|guest| guest.defined.as_ref());
        let cards = defined.into_iter().flat_map(|domain| &domain.nics);
        let networks = cards.filter_map(|card| network_of(card).filter(|_| has_addresses));
        let metadata = guest.and_then(|guest| guest.metadata.as_ref());
        let recorded = metadata.into_iter().flat_map(|metadata| &metadata.dhcp);
        let networks = networks.chain(recorded.map(|record| record.network.as_str()));
        let networks: BTreeSet<_> = networks.map(str::to_owned).collect();
        for network in networks {
            match host.dhcp_server(&network) {
                Ok(server) => {
                    self.dhcp.insert(network, server);
                }
                Err(error) if error.is_of_host() => return Err(error),
                // Another step says what is wrong with the network.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The DHCP leases of the cards of the running guest.
    fn read_leases(&mut self, host: &mut dyn Connection) -> Result<(), AccessError> {
        let running = self.guest.as_ref().and_then(|guest| guest.running.as_ref());
        let Some(running) = running else {
            return Ok(());
        };
        let networks = running.nics.iter().filter_map(network_of);
        let networks: BTreeSet<_> = networks.collect();
        self.addresses = CardAddresses::of(running.nics.iter().map(|nic| nic.mac));
        for network in networks {
            let leases = match host.leases(network) {
                Ok(leases) => leases,
                // Some drivers have no leases.
                Err(AccessError::Unsupported(_)) => continue,
                Err(error) if error.is_of_host() => return Err(error),
                Err(error) => {
                    let fault = network_fault(&host.networks()?, network).unwrap_or_else(|| {
                        format!("the leases of network '{network}' cannot be read ({error})")
                    });
                    self.network_faults.push(fault);
                    continue;
                }
            };
            for lease in leases {
                self.addresses.add(&lease.mac, [lease.ip.to_string()]);
            }
        }
        Ok(())
    }

    /// What was observed on the host, with the fetches of its images.
    pub(crate) fn view(
        self,
        machine: &Machine,
        host: &LibvirtHost,
        switches: Switches,
        fetches: &Fetches,
    ) -> HostView {
        let mut view = HostView {
            host: host.name().to_owned(),
            spec: host.spec.clone(),
            guest: self.guest,
            images: BTreeMap::new(),
            copies: BTreeMap::new(),
            is_copying: false,
            room: UNLIMITED,
            console_logs: None,
            seed_is_behind: false,
            volumes: self.volumes,
            unreadable_pools: self.unreadable_pools,
            space_left: self.space_left,
            unusable: self.unusable,
            taken: self.taken,
            cpus: Cpus::default(),
            dhcp: self.dhcp,
            network_faults: self.network_faults,
            switches,
            addresses: self.addresses,
            guest_os: GuestOs::default(),
            readiness: None,
        };
        view.images = images_of(machine, &view, fetches);
        view
    }
}

/// The virtual network that a card is on.
fn network_of(card: &Nic) -> Option<&str> {
    match &card.attachment.source {
        NicSource::Network(name) => Some(name),
        NicSource::Bridge(_) | NicSource::Ovs(_) => None,
    }
}

/// How far the images are that a Machine needs.
fn images_of(
    machine: &Machine,
    view: &HostView,
    fetches: &Fetches,
) -> BTreeMap<String, ImageState> {
    let pool = view.spec.image_pool.clone().unwrap_or_default();
    let find = |name: &str| view.volumes.get(&(pool.clone(), name.to_owned()));
    let state = |image: &Image| {
        let base = image_volume(image, &machine.namespace_uid);
        let complete = |name: &str| Some(found_image(name, find(name)?));
        let state = if image.volume.is_some() {
            complete(&base)
        } else {
            let in_pool = view.volumes.keys().filter(|(of, _)| *of == pool);
            let attempts = in_pool
                .map(|(_, name)| name)
                .filter(|name| is_attempt_of(name, &base) && find(&marker(name)).is_some());
            // The attempt that the domain has is kept, whichever other attempts are complete.
            let used = attempts.clone().find(|name| is_defined(view, name));
            used.or_else(|| attempts.clone().next())
                .and_then(|name| complete(name))
        };
        let state = state.or_else(|| {
            let fetch = FetchKey {
                image: base.clone(),
                secret: image.secret_ref.as_ref().and_then(|it| it.name.clone()),
            };
            fetches.state(&fetch, machine.namespace(), machine.name())
        });
        (base, state.unwrap_or(ImageState::Absent))
    };
    let block = machine.desired().into_iter();
    block.flat_map(images).map(state).collect()
}

fn found_image(name: &str, volume: &Volume) -> ImageState {
    ImageState::Complete {
        volume: name.to_owned(),
        format: format_of(volume),
    }
}

fn guest(found: &DomainDetail) -> Guest {
    let read = |xml: &str| match Domain::parse(xml) {
        Ok(domain) => Some(domain),
        Err(error) => {
            tracing::warn!(%error, "the definition of a domain cannot be parsed");
            None
        }
    };
    let live = found.live.as_deref();
    Guest {
        state: found.state.state,
        reason: found.state.reason,
        metadata: found
            .state
            .metadata
            .as_deref()
            .and_then(DomainMetadata::parse),
        defined: read(&found.inactive),
        running: live.and_then(read),
        has_agent: live.is_some_and(agent_is_connected),
    }
}

/// Whether the agent's channel is open from inside the guest.
fn agent_is_connected(xml: &str) -> bool {
    let targets = xml
        .split("<target ")
        .filter(|target| target.contains("org.qemu.guest_agent.0"));
    let mut heads = targets.filter_map(|target| target.split_once('>').map(|(head, _)| head));
    heads.any(|head| head.contains("state='connected'") || head.contains("state=\"connected\""))
}

fn format_of(volume: &Volume) -> VolumeFormat {
    if volume.format == "qcow2" {
        VolumeFormat::Qcow2
    } else {
        VolumeFormat::Raw
    }
}
