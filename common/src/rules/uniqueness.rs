//! Conflicts with other Machines: MAC addresses on a network segment, names of claims in the namespace.
//!
//! Only values that the stored object does not have are checked. The catalog may lag behind, so the
//! controller detects and reports conflicts as well.

use std::collections::BTreeMap;

use crate::api::choice::Backend;
use crate::api::machine::Network;
use crate::api::normalized::Normalized;
use crate::catalog::{self, Catalog, ClaimHolder, MachineName, OtherCard, Segment};
use crate::code::Code;
use crate::mac::Mac;
use crate::names;
use crate::normalize::{Item, Leaf};
use crate::violation::{Findings, Kind, Violation};

use super::networks::{address, network_name};
use super::rule::{Check, Lookup, rules};
use super::{disks, form};

rules! {
    "networks" Check::Lookup(macs), on MACHINES, Always {
        Refuse MacInUse = "Another Machine has the MAC address on the same network segment."
            because "Two cards with one address on a segment receive each other's frames: both guests lose connections from time to time, without an error message. A segment is a bridge and a VLAN, whichever NetworkConfigurations of whichever namespaces name them or the definition that was made of them, and the default network of libvirt hosts; a network that a host offers under two names is one segment. On KubeVirt's pod network each Machine is alone. The message names no Machine of another namespace."
            fix "Choose another address, or leave `macAddress` out: the one that is derived then is the Machine's own."
            crd Nothing,
    }
    "names" Check::Lookup(claims), on MACHINES, Always {
        Refuse NameInUse = "The claim that a disk would have is another Machine's, or was not made for a Machine; or the Secret that is referred to has the name of the Machine's own."
            because "The name of a claim is that of the Machine and that of the disk, joined by a dash: disk `b-c` of `a` and disk `c` of `a-b` would be one volume. Data for cloud-init that KubeVirt cannot read where they are, the controller keeps in a Secret whose name is that of the Machine and `-cloudinit`. It never takes over an object of another owner, so the machine would not start."
            fix "Choose another name for the disk, for the Secret or for the Machine, or delete the claim if its data is no longer needed."
            crd Nothing,
    }
}

/// Whether new values can be distinguished from stored ones. A stored Machine without a readable block may already
/// have all of them.
pub(super) fn is_comparable(lookup: &Lookup<'_>) -> bool {
    lookup.is_new || lookup.stored.is_some()
}

/// Rule [`Code::MacInUse`] for every network card.
fn macs(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let cards = lookup.merged.networks.iter();
    for card in cards.filter(|_| is_comparable(lookup)) {
        mac(card, lookup, findings);
    }
}

/// Rule [`Code::NameInUse`] for every disk. Volumes on a libvirt host carry the Machine's uid in their
/// name, and the claim of a CD-ROM carries a digest. Nothing is checked while the Machine has no name.
fn claims(lookup: &Lookup<'_>, _: &mut BTreeMap<String, String>, findings: &mut Findings) {
    let Lookup {
        machine,
        stored,
        catalog,
        ..
    } = *lookup;
    let has_claims = lookup.backend == Backend::Kubevirt && form::is_label(machine.name);
    let disks = disks::existing::own(lookup.merged, lookup.backend);
    for disk in disks.filter(|_| has_claims && is_comparable(lookup)) {
        claim(disk.name(), machine, stored, catalog, findings);
    }
}

/// Rule [`Code::MacInUse`].
fn mac(card: &Item<'_, Network>, lookup: &Lookup<'_>, findings: &mut Findings) {
    let Lookup {
        machine,
        stored,
        catalog,
        ..
    } = *lookup;
    let network = network_name(card).value;
    // A template that was not found may name the network.
    if network.is_none() && !lookup.merged.is_complete() {
        return;
    }
    let Some(segment) = segment(machine.namespace, network, lookup.backend, catalog) else {
        return;
    };
    let derived = |nic: &str| catalog.derived_mac(machine, nic);
    let leaf = address(card);
    let mac = match (leaf.value, card.name().value) {
        (Some(text), _) => text.parse().ok(),
        (None, Some(nic)) if !machine.name.is_empty() => Some(derived(nic)),
        (None, _) => None,
    };
    let Some(mac) = mac.filter(|mac: &Mac| !has_mac(stored, network, *mac, derived)) else {
        return;
    };
    let others = catalog.others_with_mac(machine, mac);
    let others = on_segment(others, &segment, catalog);
    // A Machine of the own namespace can be named.
    let is_own = |other: &&OtherCard| other.namespace == machine.namespace;
    let Some(other) = others.iter().find(is_own).or(others.first()) else {
        return;
    };
    let (holder, place) = described(other, machine.namespace, network);
    let detail = match leaf.value {
        Some(_) => {
            format!(
                "{holder} has this address {place}; choose another, or leave it out for a stable one"
            )
        }
        None => format!(
            "is derived for this network card, and {holder} has it {place}; set another address here"
        ),
    };
    let shown = leaf.value.map_or_else(|| mac.to_string(), str::to_owned);
    findings.deny(Violation::new(leaf.path, Code::MacInUse, Kind::Duplicate, detail).text(&shown));
}

/// The segment of a card; `None`: the pod network.
pub(super) fn segment(
    namespace: &str,
    network: Option<&str>,
    backend: Backend,
    catalog: &dyn Catalog,
) -> Option<Segment> {
    let row = |name: &str| catalog.network(namespace, name);
    Segment::of(namespace, network, backend, row)
}

/// The cards that are on a segment.
pub(super) fn on_segment(
    others: Vec<OtherCard>,
    of_card: &Segment,
    catalog: &dyn Catalog,
) -> Vec<OtherCard> {
    if others.is_empty() {
        return others;
    }
    let hosts = catalog.hosts();
    let hosts = || hosts.iter().map(|host| &host.networks[..]);
    let row = |namespace: &str, name: &str| catalog.network(namespace, name);
    catalog::on_segment(others, of_card, row, hosts)
}

/// The Machine that has an address, and where. What is in another namespace is confidential.
pub(super) fn described(
    other: &OtherCard,
    namespace: &str,
    network: Option<&str>,
) -> (String, String) {
    if other.namespace != namespace {
        let holder = "a Machine of another namespace".to_owned();
        return (holder, "on the same network segment".to_owned());
    }
    let theirs = other.card.network.as_deref();
    let place = match theirs {
        Some(theirs) => format!("on '{theirs}'"),
        None => "on the default network".to_owned(),
    };
    let place = if theirs == network {
        place
    } else {
        format!("{place}, which is the same network segment")
    };
    (format!("Machine '{}'", other.machine), place)
}

fn has_mac(
    old: Option<&Normalized>,
    network: Option<&str>,
    mac: Mac,
    derived: impl Fn(&str) -> Mac,
) -> bool {
    let mut cards = old.into_iter().flat_map(|block| &block.networks);
    cards.any(|nic| {
        nic.network_name.as_deref() == network
            && nic.mac_address.unwrap_or_else(|| derived(&nic.name)) == mac
    })
}

/// Rule [`Code::NameInUse`].
fn claim(
    disk: Leaf<&str>,
    machine: MachineName<'_>,
    old: Option<&Normalized>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) {
    let is_new = |name: &&str| !old.is_some_and(|old| has_disk(old, name));
    let Some(name) = disk.value.filter(is_new) else {
        return;
    };
    let Some(holder) = catalog.claim_holder(machine, name) else {
        return;
    };
    let claim = names::claim(machine.name, name);
    let detail = match holder {
        ClaimHolder::Disk { machine, disk } => format!(
            "its claim '{claim}' would be that of disk '{disk}' of Machine '{machine}'; choose another name for the disk or for the Machine"
        ),
        ClaimHolder::Former { machine } => format!(
            "its claim '{claim}' was kept from Machine '{machine}'; choose another name for the disk or for the Machine, or delete that claim"
        ),
        ClaimHolder::Existing { machine } => format!(
            "its claim '{claim}' is used as it is by Machine '{machine}', which names it in claimName; choose another name for the disk or for the Machine"
        ),
        ClaimHolder::Foreign => format!(
            "its claim '{claim}' exists and was not made for a Machine; choose another name for the disk or for the Machine, or delete that claim"
        ),
    };
    findings.deny(Violation::new(disk.path, Code::NameInUse, Kind::Duplicate, detail).text(name));
}

fn has_disk(block: &Normalized, name: &str) -> bool {
    block.disks.iter().any(|disk| disk.name == name)
}
