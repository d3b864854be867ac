//! Address rules that hold for every backend: MAC conflicts between Machines, and which IP addresses are reported.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use common::api::choice::Backend;
use common::api::libvirt_host::HostNetwork;
use common::catalog::{NetworkRow, OtherCard, Segment, on_segment};
use common::mac::Mac;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::reflector::{ObjectRef, Store};

use crate::address_index::AddressIndex;
use crate::conditions::Fault;
use crate::machine::{CachedMachine, Machine};
use crate::objects::Meta;

/// An older Machine that has the address of a network card on the same segment.
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
    pub other: Arc<CachedMachine>,
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
    /// What the segment of a NetworkConfiguration of a namespace depends on.
    fn network(&self, namespace: &str, name: &str) -> Option<NetworkRow>;
    /// The networks that each LibvirtHost offers.
    fn hosts(&self) -> Vec<Vec<HostNetwork>>;
}

/// The conflicts of a Machine with older ones, in the order of its cards: of each card that with the first older Machine
/// on the segment, and that with the first one on the same NetworkConfiguration.
///
/// Any number of Machines may have one address, on networks of their own. So the rows of the index are compared, no
/// Machine is decompressed, and each network is read once, as are the hosts.
pub fn conflicts(
    machine: &Machine,
    cluster: &str,
    (address_index, machines): (&AddressIndex, &Store<CachedMachine>),
    segments: &dyn Segments,
) -> Vec<Conflict> {
    let hosts = OnceCell::new();
    let hosts = || {
        let hosts: &Vec<_> = hosts.get_or_init(|| segments.hosts());
        hosts.iter().map(Vec::as_slice)
    };
    let known = RefCell::new(HashMap::new());
    let network = |namespace: &str, name: &str| {
        let key = (namespace.to_owned(), name.to_owned());
        let mut known = known.borrow_mut();
        let row: &Option<NetworkRow> = known
            .entry(key)
            .or_insert_with(|| segments.network(namespace, name));
        row.clone()
    };
    let mut conflicts = vec![];
    for card in cards(machine, cluster) {
        let others = address_index.others_with_mac(machine, card.mac);
        if others.is_empty() {
            continue;
        }
        let Some(segment) = card.segment(machine.namespace(), network) else {
            continue;
        };
        let others = on_segment(others, &segment, network, hosts).into_iter();
        let older = others.filter_map(|it| Some((older(&it, machine, machines)?, it.card)));
        for (index, (other, theirs)) in older.enumerate() {
            let conflict = Conflict {
                nic: card.nic.clone(),
                network: card.network.clone(),
                mac: card.mac,
                other_network: theirs.network.map(String::from),
                other,
            };
            let is_by_name = conflict.is_by_name(machine);
            if index == 0 || is_by_name {
                conflicts.push(conflict);
            }
            if is_by_name {
                break;
            }
        }
    }
    conflicts
}

/// The Machine of a card, if it is older than `machine`; of Machines of one age, if its namespace and name come first.
fn older(
    other: &OtherCard,
    machine: &Machine,
    machines: &Store<CachedMachine>,
) -> Option<Arc<CachedMachine>> {
    let key = ObjectRef::new(&other.machine).within(&other.namespace);
    let other = machines.get(&key)?;
    (rank(&*other) < rank(machine)).then_some(other)
}

fn rank(machine: &impl Meta) -> (Option<&Time>, &str, &str) {
    let created = machine.meta().creation_timestamp.as_ref();
    (created, machine.namespace(), machine.name())
}

/// The fault of a Machine that has a MAC address of an older Machine on the same segment, by its [`conflicts`]. Admission
/// refuses that, except for two Machines that are created at the same time at two replicas of the webhook. A release that
/// compared names of NetworkConfigurations accepted more: a Machine that has its guest keeps it.
pub fn address_conflict(
    machine: &Machine,
    conflicts: &[Conflict],
    has_guest: bool,
) -> Option<Fault> {
    let mut counting = conflicts.iter();
    let conflict = counting.find(|it| !has_guest || it.is_by_name(machine))?;
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
    backend: Backend,
}

impl Card {
    fn segment(
        &self,
        namespace: &str,
        row: impl Fn(&str, &str) -> Option<NetworkRow>,
    ) -> Option<Segment> {
        let row = |name: &str| row(namespace, name);
        Segment::of(namespace, self.network.as_deref(), self.backend, row)
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
mod tests;
