//! Addresses that the DHCP servers of a host's networks keep for cards.

use std::net::Ipv4Addr;

use common::render::{CardAddress, CardConfig};
use controller_core::conditions::Fault;
use controller_core::fixtures::{annotate, nic};
use controller_core::held_addresses::AddressFault;

use super::{Environment, UID, block, reported, state};
use crate::access::fake::When;
use crate::access::{AccessError, DhcpHost, DhcpServer, FirmwareState, State};
use common::render::libvirt::domain_uuid;

/// In the subnet of the network `default`.
pub(super) const FIRST: [u8; 4] = [192, 168, 122, 50];
const SECOND: [u8; 4] = [192, 168, 122, 51];

pub(super) fn hold(env: &mut Environment, card: &str, address: [u8; 4]) {
    let address = CardAddress {
        address: Ipv4Addr::from(address).into(),
        prefix: 24,
        gateway: None,
    };
    let config = CardConfig {
        addresses: vec![address],
        ..CardConfig::default()
    };
    let configs = &mut env.machine_mut().addresses.configs;
    configs.insert(card.into(), config);
}

/// Changes what the DHCP server of the network `default` has.
fn server(env: &Environment, change: impl FnOnce(&mut DhcpServer)) {
    let mut state = env.host.state();
    change(&mut state.networks.get_mut("default").unwrap().dhcp);
}

fn hosts(env: &Environment) -> Vec<DhcpHost> {
    env.host.state().networks["default"].dhcp.hosts.clone()
}

fn addresses(env: &Environment) -> Vec<Ipv4Addr> {
    hosts(env).iter().map(|host| host.address).collect()
}

/// The number of the first call of this name.
fn position(env: &Environment, call: &str) -> Option<usize> {
    let calls = env.host.calls();
    calls.iter().position(|it| it.starts_with(call))
}

fn holder() -> Environment {
    let mut block = block();
    block.networks = vec![nic("eth0", None)];
    let mut env = Environment::new(block);
    hold(&mut env, "eth0", FIRST);
    env
}

#[test]
fn a_card_gets_its_address_before_the_guest_starts_and_the_entry_goes_with_the_domain() {
    let mut env = holder();
    env.settle();
    assert_eq!(addresses(&env), [Ipv4Addr::from(FIRST)]);
    assert!(position(&env, "add_dhcp_host") < position(&env, "start"));
    assert!(position(&env, "define") < position(&env, "add_dhcp_host"));
    let calls = env.host.calls().len();
    assert_eq!(env.settle(), [""; 0]);
    assert_eq!(env.host.calls().len(), calls, "a second pass does nothing");

    hold(&mut env, "eth0", SECOND);
    env.settle();
    assert_eq!(addresses(&env), [Ipv4Addr::from(SECOND)]);
    assert_eq!(state(&env), Some(State::Running));
    env.delete();
    env.settle();
    assert!(env.machine.is_none());
    assert_eq!(hosts(&env), []);
    assert!(position(&env, "remove_dhcp_host") < position(&env, "undefine"));
}

#[test]
fn a_card_that_is_removed_gives_its_address_back() {
    let mut env = holder();
    env.edit(|block| block.networks.push(nic("eth1", None)));
    hold(&mut env, "eth1", SECOND);
    env.settle();
    assert_eq!(addresses(&env), [FIRST, SECOND].map(Ipv4Addr::from));
    env.edit(|block| drop(block.networks.pop()));
    env.machine_mut().addresses.configs.remove("eth1");
    env.settle();
    assert_eq!(addresses(&env), [Ipv4Addr::from(FIRST)]);
}

#[test]
fn addresses_that_are_not_known_now_are_not_taken_back() {
    let mut env = holder();
    env.settle();
    let addresses_of = &mut env.machine_mut().addresses;
    addresses_of.configs.clear();
    addresses_of.fault = Some(AddressFault {
        fault: Fault::new("NetworkFailed", "the API server does not answer"),
        is_in_use: false,
        is_transient: true,
    });
    env.settle();
    assert_eq!(addresses(&env), [Ipv4Addr::from(FIRST)]);
}

#[test]
fn an_entry_of_an_administrator_is_never_changed() {
    let foreign = |mac: u8, address: [u8; 4]| DhcpHost {
        mac: common::mac::Mac::new([2, 0, 0, 0, 0, mac]),
        address: address.into(),
    };
    // Of another card, and another one of the card.
    for (entry, of_card) in [(foreign(1, FIRST), 2), (foreign(1, SECOND), 1)] {
        let mut env = holder();
        let mac = common::mac::Mac::new([2, 0, 0, 0, 0, of_card]);
        env.edit(|block| block.networks[0].mac_address = Some(mac));
        server(&env, |dhcp| dhcp.hosts = vec![entry]);
        env.settle();
        assert_eq!(hosts(&env), [entry]);
        assert_eq!(reported(&env, "NetworkReady"), ("False", "NetworkFailed"));
        assert_eq!(
            state(&env),
            Some(State::Running),
            "cloud-init knows the address"
        );
        env.delete();
        env.settle();
        assert_eq!(hosts(&env), [entry]);
    }
    // The same entry.
    let mut env = holder();
    let mac = common::mac::Mac::new([2, 0, 0, 0, 0, 1]);
    env.edit(|block| block.networks[0].mac_address = Some(mac));
    let same = foreign(1, FIRST);
    server(&env, |dhcp| dhcp.hosts = vec![same]);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    env.delete();
    env.settle();
    assert_eq!(hosts(&env), [same]);
}

#[test]
fn a_network_without_a_server_or_of_other_subnets_has_no_entry() {
    let mut env = holder();
    server(&env, |dhcp| dhcp.subnets = vec![]);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(hosts(&env), []);
    let mut env = holder();
    hold(&mut env, "eth0", [10, 0, 0, 5]);
    env.settle();
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));
    assert_eq!(hosts(&env), []);
}

/// A controller that is killed after any action leaves no entry that nobody removes.
#[test]
fn an_interrupted_machine_leaves_no_entry() {
    for steps in 0..8 {
        let mut env = holder();
        for _ in 0..3 {
            env.pass_until(steps % 4);
        }
        if steps > 3 {
            hold(&mut env, "eth0", SECOND);
            env.pass_until(steps % 4);
        }
        env.settle();
        assert_eq!(hosts(&env).len(), 1, "{steps}");
        env.delete();
        for _ in 0..3 {
            if env.machine.is_some() {
                env.pass_until(steps % 4);
            }
        }
        env.settle();
        assert!(env.machine.is_none());
        assert_eq!(hosts(&env), [], "{steps}");
        assert!(!env.host.state().domains.contains_key(&domain_uuid(UID)));
    }
}

#[test]
fn a_server_that_refuses_an_entry_keeps_no_guest_off() {
    let mut env = holder();
    for _ in 0..4 {
        let refused = AccessError::Refused("no permission".into());
        env.host.fail("add_dhcp_host", When::Before, refused);
    }
    for _ in 0..6 {
        env.pass();
    }
    assert_eq!(state(&env), Some(State::Running));
    assert_eq!(reported(&env, "NetworkReady"), ("False", "NetworkFailed"));
    env.settle();
    assert_eq!(addresses(&env), [Ipv4Addr::from(FIRST)]);
    assert_eq!(reported(&env, "Ready"), ("True", "Running"));

    // An entry for a name, which has no card, and one for a card without an address.
    for partial in [0, 1] {
        let mut env = holder();
        let mac = common::mac::Mac::new([2, 0, 0, 0, 0, 1]);
        env.edit(|block| block.networks[0].mac_address = Some(mac));
        let of = [(None, Some(FIRST.into())), (Some(mac), None)];
        server(&env, |dhcp| dhcp.partial = vec![of[partial]]);
        env.settle();
        assert_eq!(reported(&env, "NetworkReady"), ("False", "NetworkFailed"));
        assert_eq!(state(&env), Some(State::Running));
        assert_eq!(position(&env, "add_dhcp_host"), None);
    }
}

#[test]
fn a_running_guest_keeps_the_entry_of_its_card_until_its_restart() {
    let mut env = holder();
    env.settle();
    let before = hosts(&env);
    let mac = common::mac::Mac::new([2, 0, 0, 0, 0, 1]);
    env.edit(|block| block.networks[0].mac_address = Some(mac));
    env.settle();
    assert_eq!(hosts(&env), before);
    let key = common::names::ANNOTATION_RESTART_REQUESTED;
    annotate(env.machine_mut(), key, "now");
    env.settle();
    let address = Ipv4Addr::from(FIRST);
    assert_eq!(hosts(&env), [DhcpHost { mac, address }]);
    env.delete();
    env.settle();
    assert_eq!(hosts(&env), []);
}

#[test]
fn an_entry_whose_domain_somebody_removed_is_taken_over() {
    let mut env = holder();
    env.settle();
    let uuid = domain_uuid(UID);
    env.host.guest_shuts_down(uuid);
    let mut host = env.connection().unwrap();
    host.undefine(uuid, FirmwareState::Remove).unwrap();
    env.settle();
    assert_eq!(state(&env), Some(State::Running));
    assert_eq!(addresses(&env), [Ipv4Addr::from(FIRST)]);
    env.delete();
    env.settle();
    assert_eq!(hosts(&env), []);
}
