//! Removes what interrupted fetches left in the image pool.
//!
//! The next fetch of an image removes its interrupted attempts. If nobody names the image any more there is none, and
//! the attempt would take its space for ever.

use std::time::Duration;

use common::render::libvirt::FETCHED_IMAGE;
use controller_core::preconditions::Effect;

use super::names::{attempt_time, marker};
use crate::access::{Connection, Result, Volume};
use crate::guard::Guard;
use crate::volume_effects::remove_unneeded;

/// Limit of a fetch over a slow line. A fetch has no effect after it.
pub(crate) const FETCH_LIMIT: Duration = Duration::from_hours(12);
/// Age from which nobody works on an attempt any more. The hour is for clocks: another replica may have named it.
const ABANDONED: Duration = Duration::from_hours(13);

/// Removes attempts to fetch an image that are not complete and that nobody works on any more, unless a volume or a
/// domain uses one: its marker may have been lost. Returns those that were removed. `now`: seconds since 1970.
pub(crate) fn remove_abandoned(
    host: &mut dyn Connection,
    guard: &Guard,
    pool: &str,
    now: i64,
) -> Result<Vec<String>> {
    let volumes = host.volumes(pool)?;
    let is_complete = |name: &str| volumes.iter().any(|other| other.name == marker(name));
    let is_over = |since: i64| {
        let passed = u64::try_from(now.saturating_sub(since)).unwrap_or_default();
        passed >= ABANDONED.as_secs()
    };
    let is_abandoned = |volume: &&Volume| {
        volume.name.starts_with(FETCHED_IMAGE)
            && attempt_time(&volume.name).is_some_and(is_over)
            && !is_complete(&volume.name)
    };
    let mut removed = Vec::new();
    for volume in volumes.iter().filter(is_abandoned) {
        let kept = remove_unneeded(host, guard, Effect::RemoveImage, pool, [volume])?;
        if kept.is_empty() {
            removed.push(volume.name.clone());
        }
        for why in kept {
            tracing::warn!(why, "an incomplete image is kept");
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::fake::{FakeLibvirt, FakePool, FakeVolume, HostState};
    use crate::access::{Connector as _, Target};
    use crate::environment;
    use crate::images::names::attempt;

    const POOL: &str = "vms";
    const NOW: i64 = 1_800_000_000;
    const BASE: &str = "vitistack-image-0123";

    fn seconds(duration: Duration) -> i64 {
        i64::try_from(duration.as_secs()).unwrap()
    }

    /// A host with these volumes in its image pool.
    fn host(names: &[&str]) -> FakeLibvirt {
        let host = FakeLibvirt::new();
        let mut state = host.state();
        let pool = state.pools.get_mut(POOL).unwrap();
        for name in names {
            pool.volumes
                .insert((*name).to_owned(), FakeVolume::default());
        }
        drop(state);
        host
    }

    fn remove(host: &FakeLibvirt, guard: &Guard) -> Result<Vec<String>> {
        let target = Target {
            uri: String::new(),
            credentials: None,
        };
        remove_abandoned(&mut *host.open(&target).unwrap(), guard, POOL, NOW)
    }

    fn volumes(host: &FakeLibvirt) -> Vec<String> {
        host.state().pools[POOL].volumes.keys().cloned().collect()
    }

    #[test]
    fn an_attempt_is_removed_when_no_fetch_can_work_on_it_and_nothing_else_is() {
        let abandoned = attempt(BASE, NOW - seconds(ABANDONED));
        let young = attempt(BASE, NOW - seconds(ABANDONED) + 1);
        let complete = attempt(BASE, 7);
        let of_a_machine = attempt("default-web-cd62a16e.root.qcow2", 7);
        let kept = [&young, &complete, &marker(&complete), BASE, &of_a_machine];
        let host = host(&[&kept[..], &[&*abandoned]].concat());
        assert_eq!(remove(&host, &environment::guard()).unwrap(), [abandoned]);
        let mut kept = kept.map(ToOwned::to_owned);
        kept.sort();
        assert_eq!(volumes(&host), kept);
    }

    #[test]
    fn an_attempt_that_lost_its_marker_is_kept_while_anything_may_stand_on_it() {
        let lost = attempt(BASE, 7);
        let host = host(&[&lost]);
        let overlay = FakeVolume {
            backing: Some(HostState::path(POOL, &lost)),
            ..FakeVolume::default()
        };
        let mut other = FakePool::of(1 << 30);
        other.volumes.insert("disk.qcow2".into(), overlay);
        host.state().pools.insert("other".into(), other);
        let removed = |active| {
            host.state().pools.get_mut("other").unwrap().active = active;
            remove(&host, &environment::guard()).unwrap()
        };
        assert_eq!(removed(true), [""; 0], "an overlay");
        assert_eq!(removed(false), [""; 0], "a pool that cannot be read");
        host.state().pools.remove("other");
        let named = environment::guard_with(&[POOL, "other"]);
        assert_eq!(remove(&host, &named).unwrap(), [""; 0], "no such pool");
        let without_lease = environment::guard_without_lease();
        assert_eq!(
            remove(&host, &without_lease).unwrap_err().kind(),
            "Cancelled"
        );
        assert_eq!(volumes(&host), [lost]);
    }
}
