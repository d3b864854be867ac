//! Removes fetched images that nothing has used for a while.
//!
//! ```text
//! unused ─▶ marker volume <image>.unused-<hex of the time> ─ used again ──────────▶ marker volume deleted
//!                                 └────────────────────────── retention has passed ▶ removed, under its preconditions
//! ```
//! The marker volume is in the image pool, so the time persists across restarts and a change of the leader
//! (`an_image_that_nothing_uses_for_the_retention_is_removed_and_nothing_else_is`: each sweep has a connection of its
//! own).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::quantity::Bytes;
use common::render::libvirt::{FETCHED_IMAGE, VolumeFormat, VolumeSpec, volume_xml};
use controller_core::preconditions::Effect;

use super::names::{base_of, marked, marker};
use crate::access::{AccessError, Connection, Result, Volume};
use crate::guard::Guard;
use crate::volume_effects::{Removal, read_all_pools, remove_volume};

/// What is between the name of an image and the time since when nothing uses it.
const UNUSED: &str = ".unused-";

/// One sweep over the fetched images of a pool.
pub(crate) struct Sweep<N> {
    /// Image pool of the host.
    pub(crate) pool: String,
    /// The images that Machines name now, without the attempt.
    pub(crate) needed: N,
    /// How long an image that nothing uses is kept.
    pub(crate) retention: Duration,
    /// Seconds since 1970.
    pub(crate) now: i64,
}

impl<N: Fn() -> BTreeSet<String>> Sweep<N> {
    /// Looks at every complete image that was fetched into the pool; returns those that were removed.
    pub(crate) fn run(&self, host: &mut dyn Connection, guard: &Guard) -> Result<Vec<String>> {
        guard.check()?;
        let pool = self.pool.as_str();
        let all = read_all_pools(host, guard)?;
        let (used, needed) = (used_paths(host, &all)?, (self.needed)());
        let own: BTreeMap<&str, &Volume> = all
            .iter()
            .filter(|(of, volume)| of == pool && volume.name.starts_with(FETCHED_IMAGE))
            .map(|(_, volume)| (volume.name.as_str(), volume))
            .collect();
        let mut removed = Vec::new();
        for (&name, volume) in &own {
            let described = unused_marker(name)
                .map(|(image, _)| image)
                .or_else(|| marked(name));
            if let Some(image) = described {
                // What was interrupted between an image and what is beside it.
                if !own.contains_key(image) {
                    delete(host, guard, pool, name)?;
                }
                continue;
            }
            if !own.contains_key(&*marker(name)) {
                // It is being fetched, or was interrupted.
                continue;
            }
            let mut markers = own.keys().filter_map(|it| Some((*it, unused_marker(it)?)));
            let found = markers.find(|(_, (image, _))| *image == name);
            let is_used = used.contains(&volume.path) || needed.contains(base_of(name));
            match found {
                Some((beside, _)) if is_used => delete(host, guard, pool, beside)?,
                None if !is_used => {
                    guard.check()?;
                    host.create_volume(pool, &unused_marker_xml(name, self.now))?;
                }
                Some((beside, (_, since)))
                    if self.is_over(since) && self.remove(host, guard, volume)? =>
                {
                    delete(host, guard, pool, beside)?;
                    removed.push(name.to_owned());
                }
                _ => {}
            }
        }
        Ok(removed)
    }

    fn is_over(&self, since: i64) -> bool {
        let passed = u64::try_from(self.now.saturating_sub(since)).unwrap_or_default();
        passed >= self.retention.as_secs()
    }

    /// Removes an image and its marker; returns whether it is gone. Earlier removals of this look may have taken
    /// minutes: a Machine that names it since then keeps it.
    fn remove(&self, host: &mut dyn Connection, guard: &Guard, volume: &Volume) -> Result<bool> {
        if (self.needed)().contains(base_of(&volume.name)) {
            return Ok(false);
        }
        let removal = Removal {
            pool: self.pool.clone(),
            name: volume.name.clone(),
            key: Some(volume.key.clone()),
            is_owned: true,
            is_deletable: true,
        };
        match remove_volume(host, guard, Effect::RemoveUnusedImage, &removal) {
            Ok(()) => Ok(true),
            // Something uses it since the pools were read.
            Err(AccessError::Refused(why)) => {
                tracing::debug!(why, "an image stays");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Paths that domains refer to, and the backing files of the volumes of any pool.
fn used_paths(host: &mut dyn Connection, all: &[(String, Volume)]) -> Result<BTreeSet<String>> {
    let domains = host
        .disks_of_all()?
        .into_iter()
        .flat_map(|domain| domain.paths);
    let backing = all.iter().filter_map(|(_, volume)| volume.backing.clone());
    Ok(domains.chain(backing).collect())
}

/// Deletes a marker volume of either kind, which holds no data.
fn delete(host: &mut dyn Connection, guard: &Guard, pool: &str, name: &str) -> Result<()> {
    guard.check()?;
    host.delete_volume(pool, name)
}

/// The image of a marker volume, and the time since when nothing uses it, in seconds since 1970; `None`: another volume.
fn unused_marker(name: &str) -> Option<(&str, i64)> {
    let (image, since) = name.rsplit_once(UNUSED)?;
    Some((image, i64::from_str_radix(since, 16).ok()?))
}

fn unused_marker_xml(image: &str, now: i64) -> String {
    volume_xml(&VolumeSpec {
        name: &format!("{image}{UNUSED}{now:08x}"),
        format: VolumeFormat::Raw,
        capacity: Bytes::new(1),
        backing: None,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::access::fake::{FakeLibvirt, FakePool, FakeVolume, HostState, When};
    use crate::access::{Connector as _, Target};
    use crate::environment;

    const POOL: &str = "vms";
    const IMAGE: &str = "vitistack-image-0123.attempt-00000001";
    const WEEK: Duration = Duration::from_hours(7 * 24);
    const NOW: i64 = 1_800_000_000;

    fn host() -> FakeLibvirt {
        let host = FakeLibvirt::new();
        let mut state = host.state();
        let pool = state.pools.get_mut(POOL).unwrap();
        for name in [
            IMAGE,
            &marker(IMAGE),
            "golden.qcow2",
            "vitistack-image-4567",
        ] {
            pool.volumes.insert(name.into(), FakeVolume::default());
        }
        drop(state);
        host
    }

    /// An overlay of the image, in a pool of its own.
    fn overlay(host: &FakeLibvirt, pool: &str) {
        let overlay = FakeVolume {
            backing: Some(HostState::path(POOL, IMAGE)),
            ..FakeVolume::default()
        };
        let mut other = FakePool::of(1 << 30);
        other.volumes.insert("disk.qcow2".into(), overlay);
        host.state().pools.insert(pool.into(), other);
    }

    fn sweep(now: i64, needed: &[&str]) -> Sweep<impl Fn() -> BTreeSet<String>> {
        let needed: BTreeSet<_> = needed.iter().map(|&it| it.to_owned()).collect();
        Sweep {
            pool: POOL.into(),
            needed: move || needed.clone(),
            retention: WEEK,
            now,
        }
    }

    fn connection(host: &FakeLibvirt) -> Box<dyn Connection> {
        let target = Target {
            uri: String::new(),
            credentials: None,
        };
        host.open(&target).unwrap()
    }

    fn swept(host: &FakeLibvirt, now: i64) -> Result<Vec<String>> {
        sweep(now, &[]).run(&mut *connection(host), &environment::guard())
    }

    fn volumes(host: &FakeLibvirt) -> Vec<String> {
        host.state().pools[POOL].volumes.keys().cloned().collect()
    }

    fn seconds(duration: Duration) -> i64 {
        i64::try_from(duration.as_secs()).unwrap()
    }

    #[test]
    fn an_image_that_nothing_uses_for_the_retention_is_removed_and_nothing_else_is() {
        let host = host();
        assert_eq!(swept(&host, NOW).unwrap(), [""; 0]);
        let marked = volumes(&host);
        assert_eq!(marked.len(), 5, "{marked:?}");
        assert_eq!(swept(&host, NOW + seconds(WEEK) - 1).unwrap(), [""; 0]);
        assert_eq!(volumes(&host), marked);
        assert_eq!(swept(&host, NOW + seconds(WEEK)).unwrap(), [IMAGE]);
        // An image of an administrator stays, and so does one that may be under way.
        assert_eq!(volumes(&host), ["golden.qcow2", "vitistack-image-4567"]);
        assert_eq!(swept(&host, NOW + 2 * seconds(WEEK)).unwrap(), [""; 0]);
    }

    #[test]
    fn an_image_that_is_used_again_starts_anew() {
        let host = host();
        swept(&host, NOW).unwrap();
        overlay(&host, "other");
        assert_eq!(swept(&host, NOW + seconds(WEEK)).unwrap(), [""; 0]);
        assert_eq!(volumes(&host).len(), 4, "no marker volume");
        host.state().pools.remove("other");
        let again = NOW + 2 * seconds(WEEK);
        assert_eq!(swept(&host, again).unwrap(), [""; 0], "marked again");
        assert_eq!(swept(&host, again + seconds(WEEK)).unwrap(), [IMAGE]);
    }

    #[test]
    fn an_image_that_a_machine_of_the_host_names_is_kept() {
        let host = host();
        let needed = ["vitistack-image-0123"];
        for now in [NOW, NOW + seconds(WEEK), NOW + 2 * seconds(WEEK)] {
            let sweep = sweep(now, &needed);
            let guard = environment::guard();
            assert_eq!(sweep.run(&mut *connection(&host), &guard).unwrap(), [""; 0]);
        }
        assert_eq!(volumes(&host).len(), 4, "no marker volume");
    }

    #[test]
    fn an_image_that_a_machine_names_while_the_pools_are_read_is_kept() {
        let host = host();
        swept(&host, NOW).unwrap();
        let asked = Cell::new(0);
        let sweep = Sweep {
            pool: POOL.to_owned(),
            needed: || {
                asked.set(asked.get() + 1);
                let named = (asked.get() > 1).then(|| "vitistack-image-0123".to_owned());
                named.into_iter().collect()
            },
            retention: WEEK,
            now: NOW + seconds(WEEK),
        };
        let removed = sweep.run(&mut *connection(&host), &environment::guard());
        assert_eq!(removed.unwrap(), [""; 0]);
        assert!(volumes(&host).contains(&IMAGE.to_owned()));
    }

    #[test]
    fn an_image_stays_while_a_pool_cannot_be_read_or_the_lease_is_lost() {
        let host = host();
        swept(&host, NOW).unwrap();
        overlay(&host, "other");
        host.state().pools.get_mut("other").unwrap().active = false;
        let before = volumes(&host);
        let late = NOW + 2 * seconds(WEEK);
        assert_eq!(swept(&host, late).unwrap_err().kind(), "Refused");
        assert_eq!(volumes(&host), before);
        host.state().pools.remove("other");
        let lost = environment::guard_without_lease();
        let error = sweep(late, &[])
            .run(&mut *connection(&host), &lost)
            .unwrap_err();
        assert_eq!(error.kind(), "Cancelled");
        assert_eq!(volumes(&host), before);
    }

    #[test]
    fn an_image_stays_while_a_pool_that_may_hold_an_overlay_is_undefined() {
        let host = host();
        swept(&host, NOW).unwrap();
        overlay(&host, "other");
        let other = host.state().pools.remove("other").unwrap();
        let before = volumes(&host);
        let late = NOW + 2 * seconds(WEEK);
        let sweep = |guard: &Guard| sweep(late, &[]).run(&mut *connection(&host), guard);
        // The spec of the host names it.
        let named = environment::guard_with(&[POOL, "other"]);
        let why = sweep(&named).unwrap_err().to_string();
        assert!(why.contains("pool 'other' does not exist"), "{why}");
        // A domain has a volume in it.
        let domain = "<domain><name>foreign</name><uuid>0f0e0d0c-0b0a-4908-8706-050403020100</uuid>
            <devices><disk type='volume' device='disk'><source pool='other' volume='disk.qcow2'/>
            <target dev='vda'/></disk></devices></domain>";
        connection(&host).define(domain).unwrap();
        let why = sweep(&environment::guard()).unwrap_err().to_string();
        assert!(why.contains("pool 'other' does not exist"), "{why}");
        assert_eq!(volumes(&host), before);
        host.state().pools.insert("other".into(), other);
        assert_eq!(sweep(&named).unwrap(), [""; 0]);
        assert!(volumes(&host).contains(&IMAGE.to_owned()));
    }

    #[test]
    fn a_removal_that_was_interrupted_is_finished() {
        for skip in 0..3 {
            let host = host();
            swept(&host, NOW).unwrap();
            let late = NOW + seconds(WEEK);
            let gone = AccessError::Disconnected("gone".into());
            host.fail_nth(skip, When::After, gone);
            swept(&host, late).unwrap_err();
            swept(&host, late).unwrap();
            swept(&host, late).unwrap();
            assert_eq!(volumes(&host), ["golden.qcow2", "vitistack-image-4567"]);
        }
    }
}
