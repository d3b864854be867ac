//! Space that is left for the disks of a Machine.

use std::collections::BTreeSet;

use super::answer::HostAnswer;
use crate::access::{AccessError, Connection};
use crate::images::names::{base_of, is_attempt, is_attempt_of, marker};
use crate::parts::pool_type_fault;
use crate::pool_space::{StorageFactor, space_left};

impl HostAnswer {
    /// Reads how much space is left in pools in which a volume has to be made or grown.
    pub(super) fn look_for_space(
        &mut self,
        host: &mut dyn Connection,
        sizes: &[(String, String, u128)],
        factor: StorageFactor,
    ) -> Result<(), AccessError> {
        let has = |pool: &String, base: &str, size: u128| {
            let mut volumes = self.volumes.iter().filter(|((of, _), _)| of == pool);
            volumes.any(|((_, name), volume)| {
                let marker = (pool.clone(), marker(name));
                is_attempt_of(name, base)
                    && u128::from(volume.capacity) >= size
                    && !self.is_left_over(pool, name, self.volumes.contains_key(&marker))
            })
        };
        let short = sizes
            .iter()
            .filter(|(pool, base, size)| !has(pool, base, *size));
        let short: BTreeSet<String> = short.map(|(pool, ..)| pool.clone()).collect();
        if short.is_empty() {
            return Ok(());
        }
        let pools = host.pools()?;
        for pool in short {
            if self.unreadable_pools.contains_key(&pool) {
                continue;
            }
            if let Some(why) = pool_type_fault(&pools, &pool) {
                self.unfit_pools.insert(pool, why);
                continue;
            }
            match host.volumes(&pool) {
                Ok(mut volumes) => {
                    // What is left of an interrupted copy takes no room from its own disk.
                    let names: BTreeSet<_> = volumes.iter().map(|it| it.name.clone()).collect();
                    volumes.retain(|volume| {
                        let name = &volume.name;
                        let mut own = sizes.iter().filter(|(of, ..)| *of == pool);
                        let is_own = own.any(|(_, base, _)| is_attempt_of(name, base));
                        !is_own || !self.is_left_over(&pool, name, names.contains(&marker(name)))
                    });
                    let left = space_left(&pools, &pool, &volumes, factor);
                    self.space_left.insert(pool, left);
                }
                Err(error) => self.pool_failed(host, &pool, error)?,
            }
        }
        Ok(())
    }

    /// Whether a volume is a copy that is not complete: the next copy of the disk removes it first. One that lost its marker
    /// and that the domain has is the disk's.
    fn is_left_over(&self, pool: &str, name: &str, has_marker: bool) -> bool {
        let metadata = self.guest.as_ref().and_then(|it| it.metadata.as_ref());
        let mut records = metadata.iter().flat_map(|it| &it.volumes);
        let mut is_recorded = || records.any(|it| it.pool == pool && it.volume == name);
        let is_defined = || {
            self.defined_attempts(base_of(name))
                .iter()
                .any(|it| it == name)
        };
        is_attempt(name) && !has_marker && !is_recorded() && !is_defined()
    }
}
