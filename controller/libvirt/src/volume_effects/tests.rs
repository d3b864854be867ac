//! What happens on the host between the first and the last step of a deletion.

use super::*;
use crate::access::fake::{FakeLibvirt, FakePool, FakeVolume, HostState};
use crate::access::{Connector as _, Target};
use crate::environment;

const POOL: &str = "vms";
const BASE: &str = "vitistack-image-0123.attempt-00000001";

/// A host with a base image and another pool. While that pool is refreshed, which may take minutes, somebody makes
/// an overlay of the image in the first one.
fn host() -> FakeLibvirt {
    let host = FakeLibvirt::new();
    let overlay = FakeVolume {
        backing: Some(HostState::path(POOL, BASE)),
        ..FakeVolume::default()
    };
    let slow = FakePool {
        made_meanwhile: vec![(POOL.into(), "overlay.qcow2".into(), overlay)],
        ..FakePool::of(1 << 30)
    };
    let mut state = host.state();
    let pool = state.pools.get_mut(POOL).unwrap();
    pool.volumes.insert(BASE.into(), FakeVolume::default());
    state.pools.insert("zfs".into(), slow);
    drop(state);
    host
}

/// A removal of the base image, of which every precondition holds.
fn removal(key: Option<String>) -> Removal {
    Removal {
        pool: POOL.into(),
        name: BASE.into(),
        key,
        is_owned: true,
        is_deletable: true,
    }
}

/// Breaks each precondition of each effect that removes a volume.
#[test]
fn no_volume_is_removed_without_each_precondition() {
    for effect in [
        Effect::DeleteVolume,
        Effect::RemoveImage,
        Effect::RemoveUnusedImage,
    ] {
        for precondition in effect.preconditions() {
            let fake = FakeLibvirt::new();
            put(&fake, BASE, FakeVolume::default());
            let mut connection = fake.open(&target()).unwrap();
            let key = connection.volume(POOL, BASE).unwrap().unwrap().key;
            let mut removal = removal(Some(key));
            let mut guard = environment::guard();
            match precondition {
                Precondition::LeaseHeld => guard = environment::guard_without_lease(),
                Precondition::Owned => removal.is_owned = false,
                Precondition::Deletable => removal.is_deletable = false,
                Precondition::Unchanged => {
                    let another = FakeVolume {
                        key: Some("recreated".into()),
                        ..FakeVolume::default()
                    };
                    put(&fake, BASE, another);
                }
                Precondition::Unused => {
                    let xml = format!(
                        "<domain><name>theirs</name><uuid>{}</uuid><devices><disk><source pool='{POOL}' volume='{BASE}'/></disk></devices></domain>",
                        Uuid::from_u128(7)
                    );
                    connection.define(&xml).unwrap();
                }
                Precondition::NotABackingFile => {
                    let overlay = FakeVolume {
                        backing: Some(HostState::path(POOL, BASE)),
                        ..FakeVolume::default()
                    };
                    put(&fake, "overlay.qcow2", overlay);
                }
                Precondition::OnlyDefinition => {
                    guard = environment::guard_beside(vec!["beta".into()]);
                }
                Precondition::Incomplete => put(&fake, &marker(BASE), FakeVolume::default()),
                Precondition::ExistingDisksFree | Precondition::HardwareFree => {
                    panic!("no effect on a volume starts a guest")
                }
                Precondition::NeverRan | Precondition::Movable => {
                    panic!("no volume is an instance")
                }
                Precondition::NotBoundElsewhere | Precondition::StateKept => {
                    panic!("no volume is bound to a host or holds the state of a firmware")
                }
            }
            let outcome = remove_volume(&mut *connection, &guard, effect, &removal);
            assert!(outcome.is_err(), "{effect:?} without {precondition:?}");
            assert!(fake.state().pools[POOL].volumes.contains_key(BASE));
        }
    }
}

fn put(host: &FakeLibvirt, name: &str, volume: FakeVolume) {
    let mut state = host.state();
    let pool = state.pools.get_mut(POOL).unwrap();
    pool.volumes.insert(name.into(), volume);
}

fn target() -> Target {
    Target {
        uri: String::new(),
        credentials: None,
    }
}

#[test]
fn an_overlay_that_is_made_while_the_pools_are_refreshed_keeps_its_base() {
    for effect in [
        Effect::DeleteVolume,
        Effect::RemoveImage,
        Effect::RemoveUnusedImage,
    ] {
        let host = host();
        let removal = removal(None);
        let mut connection = host.open(&target()).unwrap();
        let kept = remove_volume(&mut *connection, &environment::guard(), effect, &removal);
        let kept = kept.unwrap_err().to_string();
        assert!(kept.contains("overlay.qcow2 is an overlay of it"), "{kept}");
        assert!(host.state().pools[POOL].volumes.contains_key(BASE));
    }
}

/// libvirt refuses to read it, and there is nothing to repair.
#[test]
fn while_an_image_is_copied_into_a_pool_a_removal_waits_and_asks_for_no_repair() {
    let fake = FakeLibvirt::new();
    put(&fake, BASE, FakeVolume::default());
    let busy = AccessError::Busy("pool 'vms' has asynchronous jobs running.".into());
    fake.fail("refresh", crate::access::fake::When::Before, busy);
    let mut host = fake.open(&target()).unwrap();
    let guard = environment::guard();
    let removed = remove_volume(&mut *host, &guard, Effect::DeleteVolume, &removal(None));
    let error = removed.unwrap_err();
    assert_eq!(error.kind(), "Busy");
    assert!(!error.to_string().contains("repair"), "{error}");
    assert!(fake.state().pools[POOL].volumes.contains_key(BASE));
}
