//! A domain and volumes that an earlier release made are adopted: nothing is written, and no guest restarts.

use common::render::libvirt::domain_uuid;
use controller_core::fixtures::without_texts;
use controller_core::machine::CachedMachine;
use serde_json::Value;

use super::{POOL, State, UID, block, state};
use crate::access::fake::{FakeDomain, FakeVolume};
use crate::environment::Environment;

/// A running Machine with block version 1, and the volumes of its pool, as release 0.1.0 made them.
const RELEASE_0_1_0: &str = include_str!("adoption/release-0.1.0.json");
/// Its domain, with the metadata that release wrote.
const DOMAIN: &str = include_str!("adoption/release-0.1.0.xml");

fn environment() -> Environment {
    let objects: Value = serde_json::from_str(RELEASE_0_1_0).unwrap();
    let mut env = Environment::new(block());
    let cached: CachedMachine = serde_json::from_value(objects["machine"].clone()).unwrap();
    env.machine = Some(cached.decompress());
    let volumes = objects["volumes"].as_array().unwrap().iter().map(|volume| {
        let made = FakeVolume {
            capacity: volume["capacity"].as_u64().unwrap(),
            raw: volume["raw"].as_bool().unwrap(),
            backing: volume["backing"].as_str().map(Into::into),
            content: vec![],
        };
        (volume["name"].as_str().unwrap().to_owned(), made)
    });
    let mut host = env.host.state();
    host.pools.get_mut(POOL).unwrap().volumes.extend(volumes);
    let domain = FakeDomain {
        name: "default-web-cd62a16e".into(),
        inactive: DOMAIN.into(),
        live: Some(DOMAIN.into()),
        state: State::Running,
        reason: 1,
        persistent: true,
        guest: host.guest.clone(),
    };
    host.domains.insert(domain_uuid(UID), domain);
    drop(host);
    env
}

#[test]
fn a_domain_of_an_earlier_release_is_adopted_without_a_write() {
    let mut env = environment();
    let written = env.machine().status.clone();
    assert!(env.machine().desired().is_some(), "the block is read");
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(
        without_texts(env.machine().status.clone()),
        without_texts(written)
    );
    assert_eq!(env.host.calls(), [""; 0], "the host was only read");
    assert_eq!(state(&env), Some(State::Running));
}

#[test]
fn volumes_of_an_earlier_release_are_released_by_their_reclaim_policy() {
    let mut env = environment();
    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    assert_eq!(state(&env), None);
    let left = super::volumes(&env);
    assert!(
        left.iter().any(|name| name.ends_with(".data.qcow2")),
        "{left:?}"
    );
    for gone in [".root.qcow2", ".copy.qcow2", ".iso"] {
        assert!(!left.iter().any(|name| name.ends_with(gone)), "{left:?}");
    }
}
