//! Storage of a host: how much the volumes of a pool may come to take, and whether there is room for more.
//!
//! A volume counts with its full size, divided by the overcommitment, whatever it takes now: a guest may fill it at any
//! time. Volumes of everybody count, those that were kept of deleted Machines, too.

use common::api::libvirt_host::LibvirtHostSpec;
use common::quantity::{Bytes, Milli};

use crate::access::{AccessError, Connection, Pool, Result, Volume};

/// Overcommitment of overlays, in thousandths, where the host sets none: the image is there once for all of them.
const OF_OVERLAYS: u128 = 2000;
/// Overcommitment of all other volumes, in thousandths, where the host sets none.
const OF_OTHERS: u128 = 1000;

/// What to do about a pool that has no room for a disk.
pub(crate) const MAKE_ROOM: &str = "make the disk smaller, delete volumes of the pool, or raise overcommit.storage of the LibvirtHost; the Machine continues automatically then";

/// The overcommitment of storage of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StorageFactor {
    /// In thousandths; `None`: the defaults.
    declared: Option<u128>,
}

impl StorageFactor {
    /// The factor of a host of this spec.
    pub(crate) fn of(spec: &LibvirtHostSpec) -> Self {
        let overcommit = spec.overcommit.as_ref();
        let text = overcommit.and_then(|overcommit| overcommit.storage.as_deref());
        // Admission refuses what cannot be parsed; what was stored before counts as absent.
        let declared = text.and_then(|text| text.parse().ok().map(Milli::get));
        Self {
            declared: declared.filter(|factor| *factor > 0),
        }
    }

    fn thousandths(self, is_overlay: bool) -> u128 {
        let default = if is_overlay { OF_OVERLAYS } else { OF_OTHERS };
        self.declared.unwrap_or(default)
    }

    /// What a volume of this size counts, in bytes.
    pub(crate) fn charge(self, size: Bytes, is_overlay: bool) -> u128 {
        let size = size.get().saturating_mul(1000);
        size.div_ceil(self.thousandths(is_overlay))
    }

    /// The size of a volume that counts so much.
    pub(crate) fn size(self, charge: u128, is_overlay: bool) -> Bytes {
        Bytes::new(charge.saturating_mul(self.thousandths(is_overlay)) / 1000)
    }

    /// What these volumes count together.
    pub(crate) fn taken<'v>(self, volumes: impl IntoIterator<Item = &'v Volume>) -> u128 {
        let charge = |volume: &Volume| {
            let size = Bytes::new(u128::from(volume.capacity));
            self.charge(size, volume.backing.is_some())
        };
        let charges = volumes.into_iter().map(charge);
        charges.fold(0, u128::saturating_add)
    }
}

/// Space that is left for volumes in a pool that has these volumes, in bytes. `pools`: all pools of the host.
pub(crate) fn space_left<'v>(
    pools: &[Pool],
    pool: &str,
    volumes: impl IntoIterator<Item = &'v Volume>,
    factor: StorageFactor,
) -> u128 {
    let found = pools.iter().find(|found| found.name == pool);
    let capacity = found.map_or(0, |found| u128::from(found.capacity));
    capacity.saturating_sub(factor.taken(volumes))
}

/// Makes libvirt read a pool, in which others may have made volumes. libvirt refuses while it fills a volume of the pool
/// itself; of those it knows.
pub(crate) fn refresh(host: &mut dyn Connection, pool: &str) -> Result<()> {
    match host.refresh(pool) {
        Err(AccessError::Refused(why) | AccessError::Busy(why)) => {
            tracing::debug!(pool, why, "the pool is not refreshed");
            Ok(())
        }
        refreshed => refreshed,
    }
}

#[cfg(test)]
mod tests {
    use common::api::libvirt_host::Overcommit;

    use super::*;
    use crate::environment;

    fn volume(capacity: u64, backing: Option<&str>) -> Volume {
        Volume {
            name: String::new(),
            key: String::new(),
            path: String::new(),
            capacity,
            allocation: 0,
            backing: backing.map(Into::into),
            format: "qcow2".into(),
            is_misread: false,
        }
    }

    #[test]
    fn a_volume_counts_with_its_size_and_an_overlay_with_half_of_it_unless_the_host_says_otherwise()
    {
        let mut spec = environment::host_spec();
        let volumes = [volume(1000, None), volume(1001, Some("/base"))];
        let factor = StorageFactor::of(&spec);
        assert_eq!(factor.taken(&volumes), 1000 + 501);
        assert_eq!(factor.size(500, true), Bytes::new(1000));
        spec.overcommit = Some(Overcommit {
            storage: Some("4".into()),
            ..Overcommit::default()
        });
        let factor = StorageFactor::of(&spec);
        assert_eq!(factor.taken(&volumes), 250 + 251);
    }
}
