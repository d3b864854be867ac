//! MAC addresses that two Machines have, and which IP addresses are reported.

use std::cell::Cell;

use super::*;
use crate::fixtures::{block, caches, machine, nic};
use crate::machine::Block;

#[test]
fn addresses_are_reported_by_card_with_ipv4_first_and_unreachable_ones_only_if_there_are_no_others()
{
    let reported = |cards: &[&[&str]]| {
        let parsed = |card: &&[&str]| card.iter().map(|it| it.parse().unwrap()).collect();
        let ReportedAddresses { cards, guest } = ReportedAddresses::of(cards.iter().map(parsed));
        (cards.concat(), guest)
    };
    let (cards, guest) = reported(&[
        &["fe80::1", "2001:db8::1", "203.0.113.5", "203.0.113.5"],
        &["169.254.0.1", "203.0.113.10", "203.0.113.9", "203.0.113.5"],
    ]);
    assert_eq!(
        guest,
        ["203.0.113.5", "2001:db8::1", "203.0.113.9", "203.0.113.10"]
    );
    let all = [
        "203.0.113.5",
        "2001:db8::1",
        "fe80::1",
        "203.0.113.5",
        "203.0.113.9",
        "203.0.113.10",
        "169.254.0.1",
    ];
    assert_eq!(cards, all);
    let (_, guest) = reported(&[&["fe80::1", "::1", "127.0.0.1"]]);
    assert_eq!(guest, ["127.0.0.1", "::1", "fe80::1"]);
    assert_eq!(ReportedAddresses::of([]), ReportedAddresses::default());
}

/// NetworkConfigurations of any namespace whose name is their bridge, or `of-` and the definition that they name.
struct NamedAsBridge;

impl Segments for NamedAsBridge {
    fn network(&self, _: &str, name: &str) -> Option<NetworkRow> {
        if let Some(definition) = name.strip_prefix("of-") {
            return Some(NetworkRow {
                definition: Some(definition.into()),
                ..NetworkRow::default()
            });
        }
        Some(NetworkRow {
            bridge: Some(name.trim_end_matches('-').to_owned()),
            ..NetworkRow::default()
        })
    }

    fn hosts(&self) -> Vec<Vec<HostNetwork>> {
        vec![]
    }
}

/// A Machine with the same address as all others, on this network.
fn on(namespace: &str, name: &str, backend: Backend, network: Option<&str>) -> Machine {
    let mut block = block();
    block.backend = backend;
    block.networks = vec![nic("eth0", network)];
    block.networks[0].mac_address = Some(Mac::new([2, 0, 0, 0, 0, 1]));
    let mut machine = machine(block);
    machine.metadata.namespace = Some(namespace.into());
    machine.metadata.name = Some(name.into());
    machine
}

/// The fault of `machine` beside an older one; all are of one time, so the order of names decides.
fn fault(machine: &Machine, older: Machine, has_guest: bool) -> Option<Fault> {
    let caches = caches(&[older], "cluster");
    let others = (&caches.address_index, &caches.machines);
    let conflicts = conflicts(machine, "cluster", others, &NamedAsBridge);
    address_conflict(machine, &conflicts, has_guest)
}

fn failed(message: &str) -> Fault {
    Fault::new("NetworkFailed", message)
}

#[test]
fn an_address_conflicts_on_the_same_segment_whatever_its_name_and_namespace() {
    use Backend::{Kubevirt, Libvirt};
    let web = on("prod", "web", Kubevirt, Some("br0"));
    let conflicts = |other: Machine| fault(&web, other, false).is_some();
    assert!(conflicts(on("prod", "db", Kubevirt, Some("br0"))));
    assert!(conflicts(on("prod", "db", Kubevirt, Some("br0-"))));
    assert!(conflicts(on("dev", "db", Libvirt, Some("br0"))));
    assert!(!conflicts(on("prod", "db", Kubevirt, Some("br1"))));
    assert!(!conflicts(on("prod", "db", Kubevirt, None)));
    // The definition 'br0' is that of the NetworkConfiguration of this name.
    let named = on("prod", "db", Kubevirt, Some("of-br0"));
    assert!(conflicts(named.clone()));
    assert!(fault(&named, on("prod", "app", Kubevirt, Some("br0")), false).is_some());
    assert!(!conflicts(on("prod", "db", Kubevirt, Some("of-br1"))));
    let default = on("prod", "web", Libvirt, None);
    let other = |backend| on("dev", "db", backend, None);
    assert!(fault(&default, other(Libvirt), false).is_some());
    assert!(fault(&default, other(Kubevirt), false).is_none());
}

#[test]
fn a_machine_of_another_namespace_is_not_named() {
    let web = on("prod", "web", Backend::Kubevirt, Some("br0"));
    let older = on("dev", "db", Backend::Kubevirt, Some("br0-"));
    assert_eq!(
        fault(&web, older, false),
        Some(failed(
            "network card 'eth0' has the address 02:00:00:00:00:01, and so has an older Machine of another namespace on the same network segment: change macAddress in spec.networks; the Machine continues automatically then"
        ))
    );
    let older = on("prod", "db", Backend::Kubevirt, Some("br0-"));
    assert_eq!(
        fault(&web, older, false),
        Some(failed(
            "network card 'eth0' has the address 02:00:00:00:00:01, and so has the older Machine 'db' on NetworkConfiguration 'br0-', which is the same network segment: change macAddress of one of them in spec.networks; the Machine continues automatically then"
        ))
    );
}

#[test]
fn a_guest_of_an_earlier_release_keeps_what_that_release_accepted() {
    let web = on("prod", "web", Backend::Kubevirt, Some("br0"));
    let elsewhere = on("dev", "db", Backend::Kubevirt, Some("br0"));
    assert_eq!(fault(&web, elsewhere, true), None);
    let renamed = on("prod", "db", Backend::Kubevirt, Some("br0-"));
    assert_eq!(fault(&web, renamed, true), None);
    let by_name = on("prod", "db", Backend::Kubevirt, Some("br0"));
    assert!(fault(&web, by_name, true).is_some());
}

/// Counts what is read.
#[derive(Default)]
struct Counted {
    networks: RefCell<HashMap<String, usize>>,
    hosts: Cell<usize>,
}

impl Segments for Counted {
    fn network(&self, namespace: &str, name: &str) -> Option<NetworkRow> {
        let mut networks = self.networks.borrow_mut();
        *networks.entry(format!("{namespace}/{name}")).or_default() += 1;
        NamedAsBridge.network(namespace, name)
    }

    fn hosts(&self) -> Vec<Vec<HostNetwork>> {
        self.hosts.set(self.hosts.get() + 1);
        NamedAsBridge.hosts()
    }
}

#[test]
fn of_hundreds_of_machines_with_one_address_each_network_is_read_once() {
    let on = |name: &str, network: &str| on("prod", name, Backend::Libvirt, Some(network));
    let name = |index: usize| format!("m{index:03}");
    let network = |index: usize| format!("of-br{}", index % 20);
    let others: Vec<_> = (0..500).map(|it| on(&name(it), &network(it))).collect();
    let mut web = on("web", "br-of-web");
    let mut block = web.desired().unwrap().clone();
    block.networks = vec![block.networks[0].clone(); 8];
    web.block = Block::Matching(Box::new(block));
    let caches = caches(&others, "cluster");
    let found = |machine: &Machine| {
        let counted = Counted::default();
        let others = (&caches.address_index, &caches.machines);
        let conflicts = conflicts(machine, "cluster", others, &counted);
        let networks = counted.networks.into_inner();
        assert!(networks.values().all(|reads| *reads == 1), "{networks:?}");
        (conflicts.len(), networks.len(), counted.hosts.get())
    };
    // Its own, and the 20 of the others.
    assert_eq!(found(&web), (0, 21, 1));
    // Of those before and behind it by name, only the first counts.
    assert_eq!(found(&others[110]), (1, 20, 1));
    assert_eq!(found(&others[10]), (0, 20, 1));
    // Nobody has its address.
    let mut alone = on("web", "br0");
    let mut block = alone.desired().unwrap().clone();
    block.networks[0].mac_address = None;
    alone.block = Block::Matching(Box::new(block));
    assert_eq!(found(&alone), (0, 0, 0));
}

#[test]
fn a_guest_keeps_its_address_only_if_no_older_machine_is_on_the_same_network_by_name() {
    let older = |name: &str, network: &str| on("prod", name, Backend::Kubevirt, Some(network));
    let web = older("web", "br0");
    // The first older Machine is on another NetworkConfiguration of the segment.
    let caches = caches(
        &[older("a", "br0-"), older("b", "br0"), older("c", "br0")],
        "cluster",
    );
    let others = (&caches.address_index, &caches.machines);
    let conflicts = conflicts(&web, "cluster", others, &NamedAsBridge);
    let names: Vec<_> = conflicts.iter().map(|it| it.other.name()).collect();
    assert_eq!(names, ["a", "b"]);
    for (has_guest, name) in [(false, "Machine 'a'"), (true, "Machine 'b'")] {
        let fault = address_conflict(&web, &conflicts, has_guest).unwrap();
        assert!(fault.message().contains(name), "{}", fault.message());
    }
}
