//! Address rules that hold for every backend: MAC conflicts between Machines, and which IP addresses are reported.

use std::net::IpAddr;
use std::sync::Arc;

use common::api::choice::Backend;
use common::api::libvirt_host::HostNetwork;
use common::catalog::{NetworkRow, Segment};
use common::mac::Mac;

use crate::conditions::Fault;
use crate::machine::Machine;
use crate::objects::Meta as _;

/// Another Machine that has the address of a network card on the same segment.
#[derive(Clone, Debug)]
pub struct Conflict {
    /// Name of the Machine's network card, as in `spec.networks`.
    pub nic: String,
    /// NetworkConfiguration of the card; `None`: the default network of libvirt hosts.
    pub network: Option<String>,
    /// MAC address that both cards have, from the spec or derived.
    pub mac: Mac,
    /// NetworkConfiguration of the other Machine's card.
    pub other_network: Option<String>,
    /// The other Machine. Messages name it only if it is in the same namespace.
    pub other: Arc<Machine>,
}

impl Conflict {
    /// Whether both cards are on the NetworkConfiguration of one namespace.
    fn is_by_name(&self, machine: &Machine) -> bool {
        let is_same = self.network == self.other_network;
        is_same && self.network.is_some() && self.is_in_namespace_of(machine)
    }

    fn is_in_namespace_of(&self, machine: &Machine) -> bool {
        self.other.namespace() == machine.namespace()
    }

    /// The other Machine as a message names it. What is in another namespace is confidential.
    fn other(&self, machine: &Machine) -> String {
        if !self.is_in_namespace_of(machine) {
            return "an older Machine of another namespace on the same network segment".to_owned();
        }
        let network = match &self.other_network {
            Some(network) => format!("NetworkConfiguration '{network}'"),
            None => "the default network".to_owned(),
        };
        let name = self.other.name();
        if self.network == self.other_network {
            format!("the older Machine '{name}' on {network}")
        } else {
            format!("the older Machine '{name}' on {network}, which is the same network segment")
        }
    }
}

/// What is known of networks when conflicts are looked for.
pub trait Segments {
    /// The NetworkConfiguration of a namespace.
    fn network(&self, namespace: &str, name: &str) -> Option<NetworkRow>;
    /// The networks that each LibvirtHost offers.
    fn hosts(&self) -> Vec<Vec<HostNetwork>>;
}

/// The conflicts of a Machine with others, in the order of its cards.
pub fn conflicts(
    machine: &Machine,
    cluster: &str,
    others: &[Arc<Machine>],
    segments: &dyn Segments,
) -> Vec<Conflict> {
    let own = cards(machine, cluster);
    let conflict = |card: &Card, other: &Arc<Machine>| {
        let mut theirs = cards(other, cluster).into_iter();
        let found = theirs.find(|it| it.mac == card.mac && it.meets(card, segments))?;
        Some(Conflict {
            nic: card.nic.clone(),
            network: card.network.clone(),
            mac: card.mac,
            other_network: found.network,
            other: Arc::clone(other),
        })
    };
    let of_card = own.iter().flat_map(|card| {
        let others = others.iter();
        others.filter_map(move |other| conflict(card, other))
    });
    of_card.collect()
}

/// The fault of a Machine that has a MAC address of an older Machine on the same segment. Admission refuses that, except
/// for two Machines that are created at the same time at two replicas of the webhook. A release that compared names of
/// NetworkConfigurations accepted more: a Machine that has its guest keeps it.
pub fn address_conflict(
    machine: &Machine,
    conflicts: &[Conflict],
    has_guest: bool,
) -> Option<Fault> {
    let age = |machine: &Machine| {
        let created = machine.metadata.creation_timestamp.as_ref();
        created.map(|time| time.0)
    };
    let rank = |machine: &Machine| {
        let (namespace, name) = (machine.namespace(), machine.name());
        (age(machine), namespace.to_owned(), name.to_owned())
    };
    let counts =
        |it: &&Conflict| rank(&it.other) < rank(machine) && (!has_guest || it.is_by_name(machine));
    let conflict = conflicts.iter().find(counts)?;
    let whose = if conflict.is_in_namespace_of(machine) {
        "of one of them "
    } else {
        ""
    };
    Some(Fault::new(
        "NetworkFailed",
        format!(
            "network card '{}' has the address {}, and so has {}: change macAddress {whose}in spec.networks; the Machine continues automatically then",
            conflict.nic,
            conflict.mac,
            conflict.other(machine)
        ),
    ))
}

/// A network card.
struct Card {
    nic: String,
    network: Option<String>,
    mac: Mac,
    namespace: String,
    backend: Backend,
}

impl Card {
    fn segment(&self, segments: &dyn Segments) -> Option<Segment> {
        let network = self.network.as_deref();
        let row = |name: &str| segments.network(&self.namespace, name);
        Segment::of(&self.namespace, network, self.backend, row)
    }

    fn meets(&self, other: &Self, segments: &dyn Segments) -> bool {
        let both = self.segment(segments).zip(other.segment(segments));
        let hosts = segments.hosts();
        both.is_some_and(|(own, other)| own.meets(&other, hosts.iter().map(Vec::as_slice)))
    }
}

/// The network cards of a Machine.
fn cards(machine: &Machine, cluster: &str) -> Vec<Card> {
    let identity = machine.identity(cluster);
    let cards = machine.desired().into_iter().flat_map(|block| {
        let nics = block.networks.iter();
        nics.map(|nic| Card {
            nic: nic.name.clone(),
            network: nic.network_name.clone(),
            mac: nic.mac_address.unwrap_or_else(|| identity.mac(&nic.name)),
            namespace: machine.namespace().to_owned(),
            backend: block.backend,
        })
    });
    cards.collect()
}

/// The IP addresses that a guest reports, as the status has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedAddresses {
    /// Those of each card, in the order of the cards: each once, those by which others can reach the guest first, and of these
    /// IPv4 first. The order in which agents report them changes now and then, and each change would be a status write.
    pub cards: Vec<Vec<String>>,
    /// Those of the guest in the same order. Addresses by which nobody else reaches it are in it only if there are no others.
    pub guest: Vec<String>,
}

impl ReportedAddresses {
    /// `cards`: what is reported of each card.
    pub fn of(cards: impl IntoIterator<Item = Vec<IpAddr>>) -> Self {
        let sorted = cards.into_iter().map(|mut addresses| {
            addresses.sort_unstable_by_key(|address| (!is_reachable(*address), *address));
            addresses.dedup();
            addresses
        });
        let sorted: Vec<_> = sorted.collect();
        let mut guest: Vec<IpAddr> = Vec::new();
        for address in sorted.iter().flatten() {
            if !guest.contains(address) {
                guest.push(*address);
            }
        }
        if guest.iter().copied().any(is_reachable) {
            guest.retain(|address| is_reachable(*address));
        }
        let texts = |addresses: Vec<IpAddr>| addresses.iter().map(IpAddr::to_string).collect();
        Self {
            cards: sorted.into_iter().map(texts).collect(),
            guest: texts(guest),
        }
    }
}

/// Whether others can reach a guest by this address: not by its loopback and link-local addresses.
pub fn is_reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_reported_by_card_with_ipv4_first_and_unreachable_ones_only_if_there_are_no_others()
     {
        let reported = |cards: &[&[&str]]| {
            let parsed = |card: &&[&str]| card.iter().map(|it| it.parse().unwrap()).collect();
            let ReportedAddresses { cards, guest } =
                ReportedAddresses::of(cards.iter().map(parsed));
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

    use crate::fixtures::{block, machine, nic};

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
        let conflicts = conflicts(machine, "cluster", &[Arc::new(older)], &NamedAsBridge);
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
}
