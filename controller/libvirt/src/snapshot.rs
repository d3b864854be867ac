//! What the last poll of a host observed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use common::render::libvirt::{DomainMetadata, short_id};
use uuid::Uuid;

use crate::access::{DomainState, HostInfo, Network, Pool, VolumeKey};
use crate::hardware::Taken;

/// Names of volumes by pool, as they were seen beside a recorded one since the host was connected.
pub(crate) type Companions = BTreeMap<String, BTreeSet<String>>;

/// What the last poll of a host observed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    /// Versions, capacity and firmware of the host.
    pub(crate) info: HostInfo,
    /// Storage pools, inactive ones included.
    pub(crate) pools: Vec<Pool>,
    /// Space that is left for volumes in pools that the host offers, in bytes; pools that cannot be read have none.
    pub(crate) space_left: BTreeMap<String, u128>,
    /// The disks of Machines in these pools; pools that cannot be read have none.
    pub(crate) machine_disks: BTreeMap<String, DiskTotals>,
    /// Volumes in the pools with existing volumes; of a pool that cannot be listed none.
    pub(crate) existing_volumes: BTreeSet<VolumeKey>,
    /// The digits in the names of the Machines' volumes in these pools.
    pub(crate) owners: BTreeSet<String>,
    /// Whether one of these pools could not be listed: it may have volumes of any Machine.
    pub(crate) has_hidden_volumes: bool,
    /// Disks in these pools whose Machine does not exist; none until the Machines are known.
    pub(crate) unowned_volumes: BTreeSet<VolumeKey>,
    /// Volumes that the status of the host lists as kept, and that somebody has deleted.
    pub(crate) gone_volumes: BTreeSet<VolumeKey>,
    /// Volumes that were seen beside those: they show that a pool is the one that had them.
    pub(crate) companions: Companions,
    /// Virtual networks, inactive ones included.
    pub(crate) networks: Vec<Network>,
    /// Names of the host's network interfaces; empty where libvirt cannot list them.
    pub(crate) bridges: Vec<String>,
    /// What domains have of the host for themselves, if the host offers anything of it.
    pub(crate) hardware: Taken,
    /// Every domain, of any owner.
    pub(crate) domains: Domains,
}

/// The disks of Machines in a pool, existing Machines or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskTotals {
    /// Number of disks.
    pub(crate) count: u64,
    /// Bytes that their guests see, whatever they take in the pool.
    pub(crate) size: u128,
}

/// A domain on a host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DomainSummary {
    /// State and size, as libvirt lists them.
    pub(crate) domain: DomainState,
    /// Our metadata; `None`: the domain is not one of ours.
    pub(crate) metadata: Option<DomainMetadata>,
}

impl Snapshot {
    /// Whether the host has an active pool of this name.
    pub(crate) fn has_pool(&self, name: &str) -> bool {
        self.pools
            .iter()
            .any(|pool| pool.name == name && pool.active)
    }

    /// Whether a pool that the host offers has volumes of a Machine, as far as is known.
    pub(crate) fn may_have_volumes_of(&self, uid: &str) -> bool {
        self.has_hidden_volumes || self.owners.contains(&short_id(uid))
    }

    /// The domain of this uuid. Every pass over a Machine looks for it on all hosts.
    pub(crate) fn domain(&self, uuid: Uuid) -> Option<&DomainSummary> {
        let at = self.domains.binary_search_by_key(&uuid, uuid_of);
        at.ok().and_then(|at| self.domains.get(at))
    }
}

/// The domains of a host, in the order of their uuids.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Domains(Vec<DomainSummary>);

fn uuid_of(summary: &DomainSummary) -> Uuid {
    summary.domain.uuid
}

impl FromIterator<DomainSummary> for Domains {
    fn from_iter<I: IntoIterator<Item = DomainSummary>>(domains: I) -> Self {
        let mut domains: Vec<_> = domains.into_iter().collect();
        domains.sort_unstable_by_key(uuid_of);
        Self(domains)
    }
}

impl Deref for Domains {
    type Target = [DomainSummary];

    fn deref(&self) -> &[DomainSummary] {
        &self.0
    }
}
