//! Room for volumes, checked in the job that is about to make or grow one.
//!
//! ```text
//! reserve ─ record ▶ pool refreshed and read ─┬─ fits beside what is there and reserved before ─▶ made ─▶ reservation dropped
//!                                             └─ does not ─▶ NoRoom, nothing was done
//! ```
//! A plan knows the room of the moment of its observation. Two Machines may have observed the same room, so the first of
//! their jobs counts for the second: by its reservation until the volume is made, by the volume afterwards
//! (`of_two_jobs_at_once_the_second_counts_the_first` here).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::quantity::Bytes;

use crate::access::{AccessError, Connection, Result, Volume};
use crate::parts::pool_type_fault;
use crate::pool_space::{MAKE_ROOM, StorageFactor, refresh, space_left};

/// How long a pool counts as read. libvirt knows what is made through it without a refresh, which reads the header of every
/// volume; what others make beside it is seen after this time.
const REFRESHED: Duration = Duration::from_mins(1);

/// What the jobs of one host are about to take of its pools. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Number of the next reservation.
    next: u64,
    reserved: BTreeMap<u64, Charge>,
    /// When each pool was refreshed last.
    refreshed: HashMap<String, Instant>,
}

/// What a volume counts for in its pool.
#[derive(Clone, Debug)]
struct Charge {
    pool: String,
    volume: String,
    bytes: u128,
}

/// A volume that is about to be made or grown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedVolume<'a> {
    pub(crate) pool: &'a str,
    /// Name of the volume.
    pub(crate) volume: &'a str,
    /// Size that it gets.
    pub(crate) size: Bytes,
    /// Whether it takes content from an image below it.
    pub(crate) is_overlay: bool,
}

/// Counts for other jobs until it is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    all: Reservations,
    number: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.all.lock().reserved.remove(&self.number);
    }
}

impl Reservations {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The map is whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for a volume; what it has already is not counted twice. Keep the result until it is made.
    pub(crate) fn reserve(
        &self,
        host: &mut dyn Connection,
        factor: StorageFactor,
        wanted: RequestedVolume<'_>,
    ) -> Result<Reserved> {
        let (reserved, earlier) = self.record(factor, wanted);
        self.refresh(host, wanted.pool, Instant::now())?;
        let pools = host.pools()?;
        if let Some(why) = pool_type_fault(&pools, wanted.pool) {
            return Err(AccessError::Refused(why));
        }
        let volumes = host.volumes(wanted.pool)?;
        let own = volumes.iter().find(|volume| volume.name == wanted.volume);
        let is_counted = |volume: &&Volume| {
            volume.name != wanted.volume && earlier.iter().all(|it| it.volume != volume.name)
        };
        let others = volumes.iter().filter(is_counted);
        let reserved_bytes = earlier.iter().map(|charge| charge.bytes);
        let reserved_bytes = reserved_bytes.fold(0, u128::saturating_add);
        let left = space_left(&pools, wanted.pool, others, factor).saturating_sub(reserved_bytes);
        let needed = factor.charge(wanted.size, wanted.is_overlay);
        let has = own.map_or(0, |own| factor.taken([own]));
        if needed <= left || needed <= has {
            return Ok(reserved);
        }
        Err(AccessError::NoRoom(format!(
            "pool '{}' has room for {}, and volume '{}' asks for {}: {MAKE_ROOM}",
            wanted.pool,
            factor.size(left, wanted.is_overlay),
            wanted.volume,
            wanted.size
        )))
    }

    /// Makes libvirt read a pool, unless it did a short while ago.
    fn refresh(&self, host: &mut dyn Connection, pool: &str, now: Instant) -> Result<()> {
        let last = self.lock().refreshed.get(pool).copied();
        if last.is_some_and(|last| now.saturating_duration_since(last) < REFRESHED) {
            return Ok(());
        }
        refresh(host, pool)?;
        self.lock().refreshed.insert(pool.to_owned(), now);
        Ok(())
    }

    /// Records a reservation, and returns the earlier ones in its pool. A job whose reservation is dropped by now has
    /// made its volume before the pool is read.
    fn record(
        &self,
        factor: StorageFactor,
        wanted: RequestedVolume<'_>,
    ) -> (Reserved, Vec<Charge>) {
        let mut inner = self.lock();
        let is_other = |it: &&Charge| it.pool == wanted.pool && it.volume != wanted.volume;
        let earlier = inner.reserved.values().filter(is_other).cloned().collect();
        let number = inner.next;
        inner.next += 1;
        let charge = Charge {
            pool: wanted.pool.to_owned(),
            volume: wanted.volume.to_owned(),
            bytes: factor.charge(wanted.size, wanted.is_overlay),
        };
        inner.reserved.insert(number, charge);
        let reserved = Reserved {
            all: self.clone(),
            number,
        };
        (reserved, earlier)
    }
}

#[cfg(test)]
mod tests {
    use common::render::libvirt::{VolumeFormat, VolumeSpec, volume_xml};

    use super::*;
    use crate::access::Connector as _;
    use crate::access::Target;
    use crate::access::fake::{FakeLibvirt, FakeVolume};
    use crate::environment::{self, POOL};

    const GIB: u64 = 1 << 30;

    fn wanted(volume: &str, gib: u64) -> RequestedVolume<'_> {
        RequestedVolume {
            pool: POOL,
            volume,
            size: size(gib),
            is_overlay: false,
        }
    }

    fn size(gib: u64) -> Bytes {
        Bytes::new(u128::from(gib * GIB))
    }

    /// A host whose pool holds 30 GiB.
    fn host() -> (FakeLibvirt, Box<dyn Connection>) {
        let host = FakeLibvirt::new();
        host.state().pools.get_mut(POOL).unwrap().capacity = 30 * GIB;
        let target = Target {
            uri: String::new(),
            credentials: None,
        };
        let connection = host.open(&target).unwrap();
        (host, connection)
    }

    fn make(host: &mut dyn Connection, volume: &str, gib: u64) {
        let xml = volume_xml(&VolumeSpec {
            name: volume,
            format: VolumeFormat::Qcow2,
            capacity: size(gib),
            backing: None,
        });
        host.create_volume(POOL, &xml).unwrap();
    }

    fn factor() -> StorageFactor {
        StorageFactor::of(&environment::host_spec())
    }

    #[test]
    fn nothing_is_reserved_in_a_pool_in_which_new_volumes_may_show_old_content() {
        let (fake, mut host) = host();
        fake.state().pool_types.insert(POOL.into(), "logical");
        let wanted = wanted("disk", 1);
        let error = Reservations::default().reserve(&mut *host, factor(), wanted);
        let why = error.unwrap_err().to_string();
        assert!(why.contains("is of type 'logical'"), "{why}");
    }

    #[test]
    fn of_two_jobs_at_once_the_second_counts_the_first() {
        let (_fake, mut host) = host();
        let reservations = Reservations::default();
        let reserve = |host: &mut dyn Connection, wanted| {
            let reserved = reservations.reserve(host, factor(), wanted);
            reserved.map_err(|error| (error.kind(), error.to_string()))
        };
        let first = reserve(&mut *host, wanted("first", 20)).unwrap();
        let (kind, why) = reserve(&mut *host, wanted("second", 20)).unwrap_err();
        assert_eq!(kind, "NoRoom");
        assert!(
            why.contains("pool 'vms' has room for 10Gi, and volume 'second' asks for 20Gi"),
            "{why}"
        );
        let small = reserve(&mut *host, wanted("small", 10)).unwrap();
        // Made: from now on the pool shows it, and it counts once.
        make(&mut *host, "first", 20);
        drop(small);
        reserve(&mut *host, wanted("small", 10)).unwrap();
        drop(first);
        reserve(&mut *host, wanted("small", 10)).unwrap();
        reserve(&mut *host, wanted("small", 11)).unwrap_err();
    }

    #[test]
    fn a_job_that_failed_takes_no_room() {
        let (_fake, mut host) = host();
        let reservations = Reservations::default();
        let mut reserve = |wanted| reservations.reserve(&mut *host, factor(), wanted);
        reserve(wanted("large", 31)).unwrap_err();
        drop(reserve(wanted("first", 20)).unwrap());
        reserve(wanted("second", 30)).unwrap();
    }

    #[test]
    fn a_volume_that_grows_counts_with_its_new_size_alone() {
        let (_fake, mut host) = host();
        make(&mut *host, "disk", 20);
        let reservations = Reservations::default();
        let mut reserve = |wanted| reservations.reserve(&mut *host, factor(), wanted);
        let grown = reserve(wanted("disk", 25)).unwrap();
        reserve(wanted("other", 6)).unwrap_err();
        reserve(wanted("other", 5)).unwrap();
        drop(grown);
        reserve(wanted("disk", 31)).unwrap_err();
        reserve(wanted("disk", 30)).unwrap();
    }

    #[test]
    fn a_full_pool_still_takes_a_volume_that_it_has() {
        let (fake, mut host) = host();
        make(&mut *host, "disk", 20);
        fake.state().pools.get_mut(POOL).unwrap().capacity = 10 * GIB;
        let reservations = Reservations::default();
        reservations
            .reserve(&mut *host, factor(), wanted("disk", 20))
            .unwrap();
    }

    #[test]
    fn a_pool_is_refreshed_once_a_minute_however_many_volumes_are_made() {
        let (fake, mut host) = host();
        let outside = |fake: &FakeLibvirt, volume: &str| {
            let made = (POOL.to_owned(), volume.to_owned(), FakeVolume::default());
            let mut state = fake.state();
            state.pools.get_mut(POOL).unwrap().made_meanwhile.push(made);
        };
        let is_read = |fake: &FakeLibvirt| fake.state().pools[POOL].made_meanwhile.is_empty();
        let reservations = Reservations::default();
        let begun = Instant::now();
        let mut refresh = |seconds| {
            let now = begun + Duration::from_secs(seconds);
            reservations.refresh(&mut *host, POOL, now)
        };
        outside(&fake, "first");
        fake.fail(
            "refresh",
            crate::access::fake::When::Before,
            AccessError::TimedOut("no answer".into()),
        );
        refresh(0).unwrap_err();
        refresh(1).unwrap();
        assert!(is_read(&fake), "one that failed does not count");
        outside(&fake, "second");
        refresh(60).unwrap();
        assert!(!is_read(&fake));
        refresh(61).unwrap();
        assert!(is_read(&fake));
    }

    /// libvirt refuses a refresh while it copies a volume into the pool, and knows that volume.
    #[test]
    fn a_pool_that_is_being_written_is_read_without_a_refresh() {
        let (fake, mut host) = host();
        make(&mut *host, "copy", 20);
        let busy = AccessError::Busy("pool 'vms' has asynchronous jobs running.".into());
        fake.fail("refresh", crate::access::fake::When::Before, busy);
        let reservations = Reservations::default();
        let error = reservations.reserve(&mut *host, factor(), wanted("disk", 20));
        assert_eq!(error.unwrap_err().kind(), "NoRoom");
    }
}
