//! Network cards.

use std::collections::BTreeMap;

use crate::api::choice::NicModel;
use crate::api::machine::Network;
use crate::api::normalized::NormalizedNetwork;
use crate::bounds::NAME_MAX;
use crate::code::Code;
use crate::mac::Mac;
use crate::names;
use crate::normalize::{Item, Leaf, Merged};
use crate::violation::{Findings, Kind, Violation};
use crate::words::titled;

use super::form;
use super::guest_os;
use super::name_form::NameForm;
use super::nic_addresses;
use super::rule::{Check, Parts, Subject, rules};

rules! {
    "networks" Check::Part(unique_names), on MACHINES_AND_TEMPLATES, Always {
        Refuse DuplicateNicName = "Two network cards have the same name."
            because "KubeVirt refuses two interfaces of one name."
            fix "Rename one of them."
            crd All,
    }
    "networks" Check::Part(unique_macs), on MACHINES_AND_TEMPLATES, Always {
        Refuse DuplicateMac = "Two network cards of the Machine have the same MAC address."
            because "Two cards with one address disturb each other on every switch."
            fix "Change one of them, or leave it out."
            crd Some,
    }
    "networks" Check::Part(one_default), on MACHINES_AND_TEMPLATES, Always {
        Refuse TooManyDefaultNics = "More than one network card names no network."
            because "A machine has one card on the pod network at most."
            fix "Name the NetworkConfiguration of the others."
            crd Nothing,
    }
    "networks" Check::Part(warn_of_same_network), on MACHINES_AND_TEMPLATES, Always {
        Warn SameNetworkTwice = "Two network cards are on the same network."
            because "Two cards on one network are rarely meant, and guests route through one of them only."
            fix "Nothing, if it is meant; else name another network."
            crd Nothing,
    }
    "networks" Check::Part(networks), on MACHINES_AND_TEMPLATES, Always, and [InvalidObjectName] {
        Refuse NicNameRequired = "A network card has no name."
            because "The name ties a card to the template's card and to its MAC address."
            fix "Give a name such as `eth0`."
            crd All,
        Refuse InvalidNicName = "The name of a network card has characters it cannot have."
            because "KubeVirt refuses other characters."
            fix "Use letters, digits, `-` and `_`."
            crd All,
        Refuse UnsupportedNicModel = "The model of a network card is not one that every backend has."
            because "The backends refuse it when the machine starts."
            fix "Take one of the values that the message lists."
            crd All,
        Refuse InvalidMac = "A MAC address is not one of six bytes."
            because "The backends refuse it when the machine starts."
            fix "Write six bytes such as `52:54:00:12:34:56`, or leave the address out."
            crd All,
        Refuse MacNotUnicast = "A MAC address is multicast, broadcast or zero."
            because "No card can have a multicast, broadcast or zero address."
            fix "Take the address that the message names, or leave it out."
            crd All,
        Refuse ReservedMac = "A MAC address is the one the pod network uses itself."
            because "On the pod network the other end of the link has this address."
            fix "Choose another one, or leave it out."
            crd Nothing,
    }
}

/// The address KubeVirt's masquerade binding gives the guest's side of the pod network.
const POD_NETWORK_MAC: Mac = Mac::new([2, 0, 0, 0, 0, 0]);

/// The network cards of the machine, in the order the guest sees them, without boot order. Without
/// any, one on the pod or default network.
fn networks(subject: &Subject<'_>, parts: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    if merged.networks.is_empty() {
        parts.networks = Some(vec![NormalizedNetwork {
            name: names::DEFAULT_NIC.to_owned(),
            network_name: None,
            model: default_model(merged),
            mac_address: None,
            boot_order: None,
            ip_addresses: vec![],
        }]);
        return;
    }
    parts.networks = merged
        .networks
        .iter()
        .map(|item| nic(merged, item, findings))
        .collect::<Vec<_>>()
        .into_iter()
        .collect();
}

/// The model of a card that names none.
fn default_model(merged: &Merged<'_>) -> NicModel {
    if guest_os::lacks_virtio(merged) {
        NicModel::E1000e
    } else {
        NicModel::Virtio
    }
}

fn nic(
    merged: &Merged<'_>,
    item: &Item<'_, Network>,
    findings: &mut Findings,
) -> Option<NormalizedNetwork> {
    let name = nic_name(item.name(), findings);
    let network_name = network_name(item);
    if let Some(text) = network_name.value
        && !form::is_object_name(text)
    {
        let detail = invalid_network(text);
        let code = Code::InvalidObjectName;
        let fault = Violation::new(network_name.path, code, Kind::Invalid, detail);
        findings.deny(fault.text(text));
    }
    let model = form::choice(
        item.pick("model", |nic| nic.model.as_deref()),
        default_model(merged),
        Code::UnsupportedNicModel,
        findings,
    );
    // A template that was not found may name the network.
    let on_pod_network = network_name.value.is_none() && merged.is_complete();
    let mac_address = mac_address(merged, item, on_pod_network, findings);
    Some(NormalizedNetwork {
        name: name?.to_owned(),
        network_name: network_name.value.map(str::to_owned),
        model: model?,
        mac_address: mac_address.ok()?,
        boot_order: None,
        ip_addresses: nic_addresses::parsed(item),
    })
}

/// What is wrong with a text that cannot be the name of a NetworkConfiguration. Multus takes the namespace before a
/// slash.
fn invalid_network(text: &str) -> String {
    match text.split_once('/') {
        Some((namespace, name)) if form::is_label(namespace) && form::is_object_name(name) => {
            format!(
                "names the namespace '{namespace}', and a Machine uses NetworkConfigurations of its own namespace only: write '{name}', and create it in the Machine's namespace if it does not exist there"
            )
        }
        _ => NameForm::OBJECT.fix(text, |_| true),
    }
}

/// The `NetworkConfiguration` a card is attached to.
pub(crate) fn network_name<'a>(item: &Item<'a, Network>) -> Leaf<&'a str> {
    item.pick("networkName", |nic| nic.network_name.as_deref())
}

/// Rules [`Code::NicNameRequired`] and [`Code::InvalidNicName`].
fn nic_name<'a>(leaf: Leaf<&'a str>, findings: &mut Findings) -> Option<&'a str> {
    let Some(name) = leaf.value else {
        let detail = "give a name such as 'eth0'";
        findings.deny(Violation::new(
            leaf.path,
            Code::NicNameRequired,
            Kind::Required,
            detail,
        ));
        return None;
    };
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    let fits = |name: &str| (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_allowed);
    let is_valid = fits(name);
    if !is_valid {
        // As `eth0.100` of a VLAN, which is a name of Linux.
        let meant = name.replace(|letter| !is_allowed(letter), "-");
        let meant = meant.trim_matches('-');
        let fix = if fits(meant) {
            format!("; did you mean '{meant}'?")
        } else {
            String::new()
        };
        let detail = format!("must be letters, digits, '-' and '_', at most {NAME_MAX}{fix}");
        findings.deny(
            Violation::new(leaf.path, Code::InvalidNicName, Kind::Invalid, detail).text(name),
        );
    }
    is_valid.then_some(name)
}

/// A network card as messages about another one name it.
fn title(item: &Item<'_, Network>) -> String {
    titled("network card", item.name().value)
}

/// Rule [`Code::DuplicateNicName`].
fn unique_names(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let names = subject.merged.networks.iter().map(Item::name);
    form::unique_names(names, Code::DuplicateNicName, findings);
}

/// The MAC address of a card: rules [`Code::InvalidMac`], [`Code::MacNotUnicast`],
/// [`Code::ReservedMac`].
fn mac_address(
    merged: &Merged<'_>,
    item: &Item<'_, Network>,
    on_pod_network: bool,
    findings: &mut Findings,
) -> Result<Option<Mac>, ()> {
    let leaf = address(item);
    let Some(text) = leaf.value else {
        return Ok(None);
    };
    let fault = match text.parse::<Mac>() {
        Err(error) => (
            Code::InvalidMac,
            format!("{error}; write it as '52:54:00:12:34:56', or leave it out for a stable one"),
        ),
        Ok(mac) if mac.is_zero() || mac.is_broadcast() => (
            Code::MacNotUnicast,
            "no network card has this address; leave it out for a stable one".to_owned(),
        ),
        Ok(mac) if mac.is_multicast() => {
            let fixed = unicast(mac);
            // Do not propose an address that would be refused next: the pod network's own, or one of another card.
            let may_be_reserved = network_name(item).value.is_none() && fixed == POD_NETWORK_MAC;
            let fix = if may_be_reserved || !is_free(merged, fixed) {
                "leave it out for a stable one".to_owned()
            } else {
                format!("the nearest unicast address is '{fixed}'")
            };
            let detail = format!("is a multicast address, which no network card can have; {fix}");
            (Code::MacNotUnicast, detail)
        }
        Ok(mac) if on_pod_network && mac == POD_NETWORK_MAC => (
            Code::ReservedMac,
            "is an address that the pod network uses itself; choose another, or leave it out"
                .to_owned(),
        ),
        Ok(mac) => return Ok(Some(mac)),
    };
    let (code, detail) = fault;
    findings.deny(Violation::new(leaf.path, code, Kind::Invalid, detail).text(text));
    Err(())
}

/// The nearest unicast address: the group bit cleared and, if it was set, the locally administered bit set.
fn unicast(mac: Mac) -> Mac {
    let mut bytes = mac.bytes();
    if mac.is_multicast() {
        bytes[0] = (bytes[0] & !1) | 2;
    }
    Mac::new(bytes)
}

/// Whether only one card has the address `mac` once all addresses are corrected.
fn is_free(merged: &Merged<'_>, mac: Mac) -> bool {
    let written = |item| address(item).value?.parse().ok();
    let corrected = merged.networks.iter().filter_map(written).map(unicast);
    corrected.filter(|other| *other == mac).count() == 1
}

/// The address of a card as it is written.
pub(crate) fn address<'a>(item: &Item<'a, Network>) -> Leaf<&'a str> {
    item.pick("macAddress", |nic| nic.mac_address.as_deref())
}

/// Rule [`Code::DuplicateMac`], whatever form the addresses are written in.
fn unique_macs(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let mut seen: BTreeMap<Mac, &Item<'_, Network>> = BTreeMap::new();
    for item in &subject.merged.networks {
        let leaf = address(item);
        let Some(text) = leaf.value else { continue };
        let mac = text.parse::<Mac>().ok();
        let Some(mac) = mac.filter(|mac| !mac.is_multicast() && !mac.is_zero()) else {
            continue;
        };
        if let Some(other) = seen.get(&mac) {
            let detail = format!(
                "{} of this Machine has this address; change one of them, or leave it out for a stable one",
                title(other)
            );
            let fault = Violation::new(leaf.path, Code::DuplicateMac, Kind::Duplicate, detail);
            findings.deny(fault.text(text));
        } else {
            seen.insert(mac, item);
        }
    }
}

/// Rule [`Code::TooManyDefaultNics`].
fn one_default(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let merged = subject.merged;
    if !merged.is_complete() {
        return;
    }
    let cards = merged.networks.iter();
    let mut cards = cards.filter(|item| network_name(item).value.is_none());
    let Some(first) = cards.next() else { return };
    for item in cards {
        let detail = format!(
            "{} is on the default network, and only one can be; name the NetworkConfiguration of this one",
            title(first)
        );
        let (path, code) = (network_name(item).path, Code::TooManyDefaultNics);
        findings.deny(Violation::new(path, code, Kind::Required, detail));
    }
}

/// Rule [`Code::SameNetworkTwice`].
fn warn_of_same_network(subject: &Subject<'_>, _: &mut Parts, findings: &mut Findings) {
    let mut seen: BTreeMap<&str, &Item<'_, Network>> = BTreeMap::new();
    for item in &subject.merged.networks {
        let leaf = network_name(item);
        let Some(name) = leaf.value else { continue };
        if let Some(other) = seen.get(name) {
            let text = format!("{}: {} is on '{name}', too", leaf.path, title(other));
            findings.warn(Code::SameNetworkTwice, &text);
        } else {
            seen.insert(name, item);
        }
    }
}
