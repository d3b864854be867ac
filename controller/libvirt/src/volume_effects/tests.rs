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

#[test]
fn an_overlay_that_is_made_while_the_pools_are_refreshed_keeps_its_base() {
    for effect in [
        Effect::DeleteVolume,
        Effect::RemoveImage,
        Effect::RemoveUnusedImage,
    ] {
        let host = host();
        let target = Target {
            uri: String::new(),
            credentials: None,
        };
        let removal = Removal {
            pool: POOL.into(),
            name: BASE.into(),
            key: None,
            is_owned: true,
            is_deletable: true,
        };
        let mut connection = host.open(&target).unwrap();
        let kept = remove_volume(&mut *connection, &environment::guard(), effect, &removal);
        let kept = kept.unwrap_err().to_string();
        assert!(kept.contains("overlay.qcow2 is an overlay of it"), "{kept}");
        assert!(host.state().pools[POOL].volumes.contains_key(BASE));
    }
}
