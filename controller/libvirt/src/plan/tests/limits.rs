//! What a host imposes on guests: which definitions get it, and when.

use common::api::choice::{HostNetworkType, PowerState};
use common::api::host_limits::HostLimits;
use common::names;
use common::render::libvirt::{Domain, MAC_FILTER, domain_uuid};
use controller_core::fixtures::{annotate, nic};

use super::{State, UID, block, reported, state, times};
use crate::environment::Environment;

const ALL: HostLimits = HostLimits {
    disk_iops: Some(500),
    disk_megabytes_per_second: Some(100),
    network_megabits_per_second: Some(1000),
    vcpu_quota: Some(true),
};

/// The definition, and the domain that runs.
fn texts(env: &Environment) -> (String, Option<String>) {
    let domain = &env.host.state().domains[&domain_uuid(UID)];
    (domain.inactive.clone(), domain.live.clone())
}

fn is_limited(text: &str) -> bool {
    let domain = Domain::parse(text).unwrap();
    let policy = domain.nics[0].attachment.policy;
    let limits = domain.disks[0].limits;
    let is = [
        policy.mac_filter,
        policy.isolated,
        policy.kilobytes_per_second == Some(125_000),
        limits.iops == Some(500),
        limits.bytes_per_second == Some(100_000_000),
        domain.vcpu_quota,
    ];
    assert!(is.iter().all(|it| *it == is[0]), "{is:?}: {text}");
    is[0]
}

/// A running guest that a release made before there were limits, on a host that imposes all.
fn of_an_earlier_release(power: PowerState) -> Environment {
    let mut env = Environment::new(block());
    env.host.state().info.mac_filter = false;
    env.settle();
    env.power(power);
    env.settle();
    assert!(!is_limited(&texts(&env).0));
    env.host.state().info.mac_filter = true;
    env.object.spec.limits = Some(ALL);
    env.object.spec.networks.as_mut().unwrap()[0].port_isolation = Some(true);
    env
}

#[test]
fn a_new_guest_has_every_limit_of_its_host() {
    let mut env = Environment::new(block());
    env.object.spec.limits = Some(ALL);
    env.object.spec.networks.as_mut().unwrap()[0].port_isolation = Some(true);
    env.settle();
    let (defined, running) = texts(&env);
    assert!(is_limited(&defined) && is_limited(&running.unwrap()));
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(env.settle(), [""; 0]);
}

#[test]
fn a_guest_of_an_earlier_release_gets_limits_when_it_is_started_and_not_before() {
    let mut env = of_an_earlier_release(PowerState::Running);
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0], "no step");
    assert_eq!(env.host.calls().len(), calls, "no call");
    assert_eq!(env.machine().status.pending_changes, []);

    // A change for another reason redefines it, without limits; a device that is new has them.
    env.add_network("prod", "default");
    env.edit(|block| block.networks.push(nic("eth1", Some("prod"))));
    env.settle();
    let running = Domain::parse(&texts(&env).1.unwrap()).unwrap();
    let filtered: Vec<_> = running
        .nics
        .iter()
        .map(|nic| nic.attachment.policy.mac_filter)
        .collect();
    assert_eq!(filtered, [false, true]);
    env.edit(|block| block.networks.truncate(1));
    env.settle();
    assert!(!is_limited(&texts(&env).1.unwrap()));
    assert_eq!(times(&env, "start"), 1, "the guest goes on");

    let key = names::ANNOTATION_RESTART_REQUESTED;
    annotate(env.machine_mut(), key, "now");
    env.settle();
    assert_eq!(times(&env, "start"), 2);
    assert!(is_limited(&texts(&env).1.unwrap()));
}

#[test]
fn a_guest_that_is_off_is_not_redefined_until_it_is_started() {
    let mut env = of_an_earlier_release(PowerState::Stopped);
    assert_eq!(state(&env), Some(State::ShutOff));
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.host.calls().len(), calls);
    env.power(PowerState::Running);
    env.settle();
    assert!(is_limited(&texts(&env).1.unwrap()));
}

#[test]
fn only_ports_of_linux_bridges_are_filtered_and_only_with_the_filter() {
    let filter = format!("filter='{MAC_FILTER}'");
    let has_filter = |change: &dyn Fn(&mut Environment)| {
        let mut env = Environment::new(block());
        change(&mut env);
        env.settle();
        assert_eq!(reported(&env, "Ready"), ("True", "Running"));
        texts(&env).0.contains(&filter)
    };
    let offer = |env: &mut Environment, kind, source: &str| {
        let network = &mut env.object.spec.networks.as_mut().unwrap()[0];
        (network.kind, network.source) = (kind, source.into());
    };
    assert!(has_filter(&|_| ()));
    assert!(has_filter(&|env| offer(
        env,
        HostNetworkType::Bridge,
        "br0"
    )));
    assert!(!has_filter(&|env| offer(env, HostNetworkType::Ovs, "br0")));
    assert!(!has_filter(&|env| env.host.state().info.mac_filter = false));
    assert!(!has_filter(&|env| {
        let mut host = env.host.state();
        host.networks.get_mut("default").unwrap().linux_bridge = false;
    }));
    assert!(!has_filter(&|env| {
        let networks = env.object.spec.networks.as_mut();
        networks.unwrap()[0].allow_mac_spoofing = Some(true);
    }));
}
