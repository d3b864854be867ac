//! Queries of a host about one Machine: in one call, and pool by pool.

mod answer;
mod existing;
mod guest;
mod images;
mod network;
mod space;

use std::collections::{BTreeMap, BTreeSet};

use common::api::libvirt_host::LibvirtHostSpec;
use common::api::status::GuestOs;
use common::names;
use common::render::libvirt::is_volume_of;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use uuid::Uuid;

pub(crate) use answer::HostAnswer;
use guest::guest;
use images::images_of;

use crate::access::{AccessError, Connection, DomainHardware, VolumeKey};
use crate::capacity::UNLIMITED;
use crate::hardware::Cpus;
use crate::images::fetches::Fetches;
use crate::images::names::marker;
use crate::libvirt_host::LibvirtHost;
use crate::names::domain_of;
use crate::observed::HostView;
use crate::offers::existing_volumes;
use crate::parts::pool_fault;
use crate::plan::disks::{NeededImage, copies, fetched_images, sizes, volumes_to_look_up};
use crate::pool_space::StorageFactor;
use crate::switches::Switches;

/// A query about one Machine.
pub(crate) struct HostQuery {
    /// Uuid of the Machine's domain.
    uuid: Uuid,
    /// Name of the Machine's domain.
    domain: String,
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

impl HostQuery {
    /// The query about a Machine on a host of this spec.
    pub(crate) fn new(machine: &Machine, spec: &LibvirtHostSpec, uuid: Uuid) -> Self {
        let block = machine.desired().into_iter();
        Self {
            uuid,
            domain: domain_of(machine),
            needed: block
                .flat_map(|block| volumes_to_look_up(machine, block, spec))
                .collect(),
            sizes: sizes(machine, spec),
            factor: StorageFactor::of(spec),
            copies: copies(machine, spec),
            images: fetched_images(machine, spec),
            searched: if machine.is_deleting() || is_releasing(machine) {
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
            answer.search(host, &pool, |name| is_volume_of(name, &self.domain))?;
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

/// Whether volumes of the Machine are to be deleted that may be in no record.
fn is_releasing(machine: &Machine) -> bool {
    let annotation = names::ANNOTATION_RELEASE_VOLUME;
    machine.annotation(annotation).is_some()
}

impl HostAnswer {
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
            unfit_pools: self.unfit_pools,
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
