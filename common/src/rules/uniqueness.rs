//! What a Machine would have that another one of its namespace has: addresses on a network, claims.
//!
//! Only what is new is judged: whatever the old object has is its own already. What the catalog does
//! not know yet is the controller's to tell.

use crate::api::choice::Backend;
use crate::api::machine::Network;
use crate::api::normalized::Normalized;
use crate::catalog::{Catalog, ClaimHolder, MachineName};
use crate::code::Code;
use crate::mac::Mac;
use crate::names;
use crate::normalize::{Item, Leaf, Merged};
use crate::violation::{Findings, Kind, Violation};

use super::form;
use super::networks::{address, network_name};

/// Both rules, for the Machine of this name. It may have none yet: then nothing is judged that follows
/// from it.
pub(crate) fn check(
    merged: &Merged<'_>,
    backend: Backend,
    machine: MachineName<'_>,
    old: Option<&Normalized>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) {
    for card in &merged.networks {
        mac(card, machine, old, catalog, findings);
    }
    if backend != Backend::Kubevirt || !form::is_label(machine.name) {
        // Volumes on a libvirt host carry the Machine's uid in their name.
        return;
    }
    // The claim of a CD-ROM carries a digest in its name.
    for disk in &merged.disks {
        claim(disk.name(), machine, old, catalog, findings);
    }
}

/// Rule [`Code::MacInUse`]. The pod network is each Machine's own.
fn mac(
    card: &Item<'_, Network>,
    machine: MachineName<'_>,
    old: Option<&Normalized>,
    catalog: &dyn Catalog,
    findings: &mut Findings,
) {
    let Some(network) = network_name(card).value else {
        return;
    };
    let derived = |nic: &str| catalog.derived_mac(machine, nic);
    let leaf = address(card);
    let mac = match (leaf.value, card.name().value) {
        (Some(text), _) => text.parse().ok(),
        (None, Some(nic)) if !machine.name.is_empty() => Some(derived(nic)),
        (None, _) => None,
    };
    let Some(mac) = mac.filter(|mac: &Mac| !has_mac(old, network, *mac, derived)) else {
        return;
    };
    let Some(other) = catalog.other_with_mac(machine, network, mac) else {
        return;
    };
    let detail = match leaf.value {
        Some(_) => format!(
            "Machine '{other}' has this address on '{network}'; choose another, or leave it out for a stable one"
        ),
        None => format!(
            "is what this network card is given, and Machine '{other}' has it on '{network}'; write another one here"
        ),
    };
    let shown = leaf.value.map_or_else(|| mac.to_string(), str::to_owned);
    findings.deny(Violation::new(leaf.path, Code::MacInUse, Kind::Duplicate, detail).text(&shown));
}

fn has_mac(
    old: Option<&Normalized>,
    network: &str,
    mac: Mac,
    derived: impl Fn(&str) -> Mac,
) -> bool {
    let mut cards = old.into_iter().flat_map(|block| &block.networks);
    cards.any(|nic| {
        nic.network_name.as_deref() == Some(network)
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
        ClaimHolder::Stranger => format!(
            "its claim '{claim}' exists and was not made for a Machine; choose another name for the disk or for the Machine, or delete that claim"
        ),
    };
    findings.deny(Violation::new(disk.path, Code::NameInUse, Kind::Duplicate, detail).text(name));
}

fn has_disk(block: &Normalized, name: &str) -> bool {
    block.disks.iter().any(|disk| disk.name == name)
}
