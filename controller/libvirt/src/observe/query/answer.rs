//! What a host answers about one Machine, and how its pools are searched. A pool that cannot be read is recorded, and the
//! other parts of the answer are read all the same.

use std::collections::BTreeMap;

use crate::access::{
    AccessError, CardAddresses, Connection, DhcpServer, DomainHardware, Volume, VolumeKey,
};
use crate::existing_disks::Unusable;
use crate::images::names::{is_attempt_of, marker};
use crate::observed::Guest;
use crate::parts::unreadable_pool;

/// Answer of the host.
#[derive(Default)]
pub(crate) struct HostAnswer {
    pub(super) guest: Option<Guest>,
    pub(super) volumes: BTreeMap<VolumeKey, Volume>,
    pub(super) unreadable_pools: BTreeMap<String, String>,
    pub(super) unfit_pools: BTreeMap<String, String>,
    pub(super) space_left: BTreeMap<String, u128>,
    pub(super) addresses: CardAddresses,
    pub(super) dhcp: BTreeMap<String, DhcpServer>,
    pub(super) unusable: BTreeMap<VolumeKey, Unusable>,
    pub(super) network_faults: Vec<String>,
    pub(super) taken: DomainHardware,
}

impl HostAnswer {
    pub(super) fn look_up(
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

    pub(super) fn search(
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
    pub(super) fn has_complete(&self, pool: &str, base: &str) -> bool {
        let has = |name: String| self.volumes.contains_key(&(pool.to_owned(), name));
        let mut names = self.volumes.keys().filter(|(of, _)| of == pool);
        names.any(|(_, name)| is_attempt_of(name, base) && has(marker(name)))
    }

    /// Volumes of this base that the domain is defined with.
    pub(super) fn defined_attempts(&self, base: &str) -> Vec<String> {
        let defined = self.guest.as_ref().and_then(|guest| guest.defined.as_ref());
        let disks = defined.into_iter().flat_map(|domain| &domain.disks);
        disks
            .filter_map(|disk| Some(disk.volume.as_ref()?.volume.clone()))
            .filter(|name| is_attempt_of(name, base))
            .collect()
    }

    /// Records that a pool cannot be read, unless the error is one of the whole host.
    pub(super) fn pool_failed(
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
}
