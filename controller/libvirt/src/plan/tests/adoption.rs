//! A domain and volumes that an earlier release made are adopted: nothing is written, and no guest restarts.

use common::api::choice::HostNetworkType;
use common::names;
use common::render::libvirt::domain_uuid;
use controller_core::fixtures::{annotate, without_texts};
use controller_core::machine::CachedMachine;
use serde_json::Value;

use super::{POOL, State, UID, block, reported, state, times};
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
            key: None,
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

/// Earlier releases defined ports of Open vSwitch without a tag, which carry all VLANs.
#[test]
fn a_trunk_port_of_an_earlier_release_is_reported_and_closed_at_the_next_restart() {
    let mut env = Environment::new(block());
    let network = &mut env.object.spec.networks.as_mut().unwrap()[0];
    (network.kind, network.source) = (HostNetworkType::Ovs, "br0".into());
    env.settle();
    let uuid = domain_uuid(UID);
    let defined = env.host.state().domains[&uuid].inactive.clone();
    let (before, rest) = defined.split_once("<vlan>").unwrap();
    let trunk = before.to_owned() + rest.split_once("</vlan>").unwrap().1;
    let with_trunk = |env: &Environment| {
        let live = env.host.state().domains[&uuid].live.clone();
        !live.unwrap().contains("<tag id='0'/>")
    };
    let replace = |env: &Environment| {
        let mut host = env.host.state();
        let domain = host.domains.get_mut(&uuid).unwrap();
        domain.inactive.clone_from(&trunk);
        domain.live = Some(trunk.clone());
    };
    replace(&env);
    env.settle();
    assert!(with_trunk(&env), "the guest goes on as it is");
    assert_eq!(times(&env, "start"), 1);
    assert_eq!(env.host.state().domains[&uuid].inactive, defined);
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    let [change] = &env.machine().status.pending_changes[..] else {
        panic!("{:?}", env.machine().status.pending_changes)
    };
    let values = [
        &change.field,
        &change.current,
        &change.desired,
        &change.action,
    ];
    let expected = [
        "networks[default].networkName",
        "ovs br0 all VLANs",
        "ovs br0 untagged",
        "Restart",
    ];
    assert_eq!(values, expected);

    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(env.machine_mut(), key, "now");
    env.settle();
    assert!(!with_trunk(&env));
    assert_eq!(env.machine().status.pending_changes, []);
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
