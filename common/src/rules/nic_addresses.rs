//! IP addresses that are given to network cards.
//!
//! Their form is checked wherever the card is; whether they fit its network, and whether another Machine has them, only
//! for addresses that the stored object does not have on this network.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::address::is_special;
use crate::api::choice::Backend;
use crate::api::machine::Network;
use crate::api::normalized::Normalized;
use crate::bounds::CARD_ADDRESSES_MAX;
use crate::catalog::{Ipam, OtherCard};
use crate::code::Code;
use crate::normalize::{Base, Item, Leaf};
use crate::violation::{Findings, Kind, Location, Violation};
use crate::words::titled;

use super::networks::network_name;
use super::rule::{Check, Lookup, Parts, Subject, rules};
use super::uniqueness::{described, is_comparable, on_segment, segment};

rules! {
    "networks" Check::Part(addresses), on MACHINES_AND_TEMPLATES, Always {
        Refuse AddressInTemplate = "A template gives an IP address to a network card."
            because "Every Machine of the template would have the same address, and only one can."
            fix "Give addresses in Machines, or let the NetworkConfiguration's `ipam` allocate them."
            crd All,
        Refuse InvalidIpAddress = "A network card is given a text that is not an IP address, or an address that no card has."
            because "The guest would refuse it, or nobody would reach the guest."
            fix "Write an address such as `10.0.0.5` or `fd00::5`, without a prefix."
            crd Some,
        Refuse DuplicateIpAddress = "An IP address is given twice in one Machine."
            because "A guest with one address on two cards answers on either."
            fix "Remove one of them."
            crd Nothing,
        Refuse AddressWithoutNetwork = "A network card that names no NetworkConfiguration is given an IP address."
            because "On the pod network KubeVirt gives the guest its address and translates it to the pod's. The default network of a libvirt host is not described by an object that has subnets."
            fix "Name a NetworkConfiguration that has `ipam` at the card, or leave `ipAddresses` out."
            crd Nothing,
    }
    "networks" Check::Lookup(check_requested_addresses), on MACHINES, Always {
        Refuse NetworkWithoutIpam = "A network card is given an IP address on a NetworkConfiguration that has no `ipam`."
            because "Prefix and gateway of the address are not known, and nothing keeps another Machine from having it."
            fix "Add `ipam` with the subnet of the address to the NetworkConfiguration, or leave `ipAddresses` out."
            crd Nothing,
        Refuse AddressNotInSubnet = "A network card is given an IP address that is in no subnet of its NetworkConfiguration."
            because "The guest would reach nobody."
            fix "Take an address of one of the subnets that the message lists."
            crd Nothing,
        Refuse AddressReserved = "A network card is given the address of a network, its broadcast address or its gateway."
            because "The router has its own address, and no host can have the other two."
            fix "Take another address of the subnet."
            crd Nothing,
        Refuse AddressInUse = "Another Machine has the IP address on the same network segment."
            because "Two guests with one address receive each other's packets: both lose connections from time to time, without an error message. A segment is a bridge and a VLAN, whichever NetworkConfigurations of whichever namespaces name them. The message names no Machine of another namespace."
            fix "Take another address, or leave `ipAddresses` out: the controller allocates a free one then."
            crd Nothing,
    }
}

/// The addresses as they are written.
pub(crate) fn written<'a>(item: &Item<'a, Network>) -> Leaf<&'a [String]> {
    item.pick("ipAddresses", |nic| nic.ip_addresses.as_deref())
}

/// The path of an address.
fn location(leaf: &Leaf<&[String]>, index: usize) -> Location {
    Location::from(leaf.path).key(&index.to_string())
}

fn parse(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    (!is_special(address)).then_some(address)
}

/// The addresses of a card that are valid. The others are violations: rule [`Code::InvalidIpAddress`].
pub(super) fn parsed(item: &Item<'_, Network>) -> Vec<IpAddr> {
    let texts = written(item).value.unwrap_or_default().iter();
    texts
        .filter_map(|text| parse(text))
        .take(CARD_ADDRESSES_MAX)
        .collect()
}

/// Rules about the form of addresses and about cards that can have none.
fn addresses(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    let mut seen: BTreeMap<IpAddr, String> = BTreeMap::new();
    for item in &merged.networks {
        let leaf = written(item);
        let Some(texts) = leaf.value.filter(|texts| !texts.is_empty()) else {
            continue;
        };
        let deny = |code, detail: &str| Violation::new(leaf.path, code, Kind::Forbidden, detail);
        if matches!(merged.base(), Base::IsTemplate) {
            let detail = "a template cannot give addresses, because only one Machine can have each: give them in Machines, or let the NetworkConfiguration's ipam allocate them";
            findings.deny(deny(Code::AddressInTemplate, detail));
            continue;
        }
        // A template that was not found may name the network.
        if network_name(item).value.is_none() && merged.is_complete() {
            let detail = match subject.backend {
                Backend::Kubevirt => {
                    "the card is on the pod network, where KubeVirt gives the guest its address and translates it to the pod's: name a NetworkConfiguration that has ipam in networkName, or leave ipAddresses out"
                }
                Backend::Libvirt => {
                    "the card is on the default network of the host, which no NetworkConfiguration describes: name one that has ipam in networkName, or leave ipAddresses out"
                }
            };
            findings.deny(deny(Code::AddressWithoutNetwork, detail));
        }
        for (index, text) in texts.iter().enumerate() {
            let Some(address) = parse(text) else {
                findings.deny(invalid(location(&leaf, index), text));
                continue;
            };
            let Some(other) = seen.get(&address) else {
                seen.insert(address, titled("network card", item.name().value));
                continue;
            };
            let detail = format!("{other} of this Machine has this address; remove one of them");
            let fault = Violation::new(
                location(&leaf, index),
                Code::DuplicateIpAddress,
                Kind::Duplicate,
                detail,
            );
            findings.deny(fault.text(text));
        }
    }
}

/// Rule [`Code::InvalidIpAddress`].
fn invalid(location: Location, text: &str) -> Violation {
    let without_prefix = text.split_once('/').and_then(|(address, _)| parse(address));
    let detail = match (text.parse::<IpAddr>(), without_prefix) {
        (Ok(_), _) => "is a loopback, link-local, multicast, broadcast or unspecified address, which no card is given".to_owned(),
        (Err(_), Some(address)) => format!("has a prefix, which the NetworkConfiguration's subnet gives; try '{address}'"),
        (Err(_), None) => "must be an IP address such as 10.0.0.5 or fd00::5".to_owned(),
    };
    Violation::new(location, Code::InvalidIpAddress, Kind::Invalid, detail).text(text)
}

/// Compares the addresses with the subnets of their network and with those of other Machines.
fn check_requested_addresses(
    lookup: &Lookup<'_>,
    _: &mut BTreeMap<String, String>,
    findings: &mut Findings,
) {
    let cards = lookup.merged.networks.iter();
    for item in cards.filter(|_| is_comparable(lookup)) {
        card(item, lookup, findings);
    }
}

fn card(item: &Item<'_, Network>, lookup: &Lookup<'_>, findings: &mut Findings) {
    let Lookup {
        machine,
        stored,
        catalog,
        ..
    } = *lookup;
    let leaf = written(item);
    let Some(network) = network_name(item).value else {
        return;
    };
    let texts = leaf.value.unwrap_or_default().iter().enumerate();
    let new: Vec<_> = texts
        .filter_map(|(index, text)| Some((index, parse(text)?)))
        .filter(|(_, address)| !has_address(stored, network, *address))
        .take(CARD_ADDRESSES_MAX)
        .collect();
    if new.is_empty() {
        return;
    }
    // A NetworkConfiguration that does not exist is reported as such.
    let Some(row) = catalog.network(machine.namespace, network) else {
        return;
    };
    let Some(ipam) = row.ipam else {
        let detail = format!(
            "NetworkConfiguration '{network}' has no ipam: add spec.ipam.subnets with the network of the address to it, or leave ipAddresses out"
        );
        let fault = Violation::new(leaf.path, Code::NetworkWithoutIpam, Kind::Forbidden, detail);
        findings.deny(fault);
        return;
    };
    let segment = segment(machine.namespace, Some(network), lookup.backend, catalog);
    for (index, address) in new {
        let mut deny = |code, kind, detail: String| {
            let fault = Violation::new(location(&leaf, index), code, kind, detail);
            findings.deny(fault.text(&address.to_string()));
        };
        if let Some((code, detail)) = misplaced(&ipam, address, network) {
            deny(code, Kind::Invalid, detail);
            continue;
        }
        let Some(segment) = &segment else { continue };
        let others = catalog.others_with_address(machine, address);
        let others = on_segment(others, segment, catalog);
        let is_own = |other: &&OtherCard| other.namespace == machine.namespace;
        if let Some(other) = others.iter().find(is_own).or(others.first()) {
            let (holder, place) = described(other, machine.namespace, Some(network));
            deny(
                Code::AddressInUse,
                Kind::Duplicate,
                format!(
                    "{holder} has this address {place}; take another, or leave ipAddresses out for a free one"
                ),
            );
        }
    }
}

/// Rules [`Code::AddressNotInSubnet`] and [`Code::AddressReserved`]. A name server may be a Machine, so its address can be
/// given, although none is allocated.
fn misplaced(ipam: &Ipam, address: IpAddr, network: &str) -> Option<(Code, String)> {
    let Some(subnet) = ipam.subnet(address) else {
        let subnets: Vec<_> = ipam
            .subnets
            .iter()
            .map(|subnet| subnet.cidr.to_string())
            .collect();
        let subnets = subnets.join(", ");
        let detail =
            format!("is in no subnet of NetworkConfiguration '{network}', which has {subnets}");
        return Some((Code::AddressNotInSubnet, detail));
    };
    let cidr = subnet.cidr;
    let what = subnet.reserved(address)?;
    let detail = format!("is the {what} of {cidr}; take another of {}", cidr.hosts());
    Some((Code::AddressReserved, detail))
}

/// Whether a card of the block on this network has the address.
fn has_address(block: Option<&Normalized>, network: &str, address: IpAddr) -> bool {
    let mut cards = block.into_iter().flat_map(|block| &block.networks);
    cards.any(|nic| {
        nic.network_name.as_deref() == Some(network) && nic.ip_addresses.contains(&address)
    })
}
