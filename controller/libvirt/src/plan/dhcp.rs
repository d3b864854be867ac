//! Addresses of network cards on virtual networks whose DHCP server libvirt runs: the server gives a card the address
//! that the Machine holds, so that a guest without cloud-init has it, too.
//!
//! ```text
//! address held ─▶ recorded in the domain's metadata ─▶ entry at the server ─▶ guest starts
//! address or card gone ─▶ entry removed ─▶ record removed            domain undefined ─▶ entries removed first
//! ```
//! An entry that no record names is an administrator's. It is never changed.

use std::net::{IpAddr, Ipv4Addr};

use common::render::libvirt::{DhcpRecord, Domain, DomainMetadata, Nic, NicSource};
use controller_core::conditions::{Fault, Outcome};
use controller_core::machine::Machine;

use super::action::Action;
use crate::access::{DhcpHost, DhcpServer};
use crate::dhcp::entry;
use crate::observed::HostView;

/// What the DHCP servers of the host's networks are to have for a Machine.
#[derive(Debug, Default, PartialEq)]
struct Entries {
    /// For the domain's metadata.
    records: Vec<DhcpRecord>,
    /// The change; `None`: the servers have what they are to have.
    action: Option<Action>,
    /// An entry of an administrator stands against one.
    fault: Option<Fault>,
}

/// Records the entries of the cards in the desired domain. Returns the action that makes and removes entries.
pub(super) fn reserve(
    machine: &Machine,
    desired: &mut Domain,
    view: &HostView,
    network: &mut Outcome,
) -> Option<Action> {
    let guest = view.guest.as_ref();
    let present = guest.and_then(|guest| guest.metadata.as_ref());
    let found = entries(machine, &desired.nics, present, view);
    desired.metadata.as_mut()?.dhcp = found.records;
    if let Some(fault) = found.fault {
        network.worsen(fault);
    }
    found.action
}

/// `cards`: those of the desired domain; `metadata`: that of the present one.
fn entries(
    machine: &Machine,
    cards: &[Nic],
    metadata: Option<&DomainMetadata>,
    view: &HostView,
) -> Entries {
    let known = metadata.map_or(&[][..], |metadata| &metadata.dhcp);
    let mut entries = Entries::default();
    let (mut add, mut remove) = (vec![], vec![]);
    for card in cards {
        let Some((record, server)) = wanted(machine, card, view) else {
            continue;
        };
        let is_ours = |host: &DhcpHost| known.contains(&with(host, &record));
        let has_it = server.hosts.contains(&entry(&record));
        if has_it && !is_ours(&entry(&record)) {
            continue;
        }
        let against = |host: &&DhcpHost| host.mac == record.mac || host.address == record.address;
        let mut against = server.hosts.iter().filter(against);
        if let Some(foreign) = against.find(|host| !is_ours(host)) {
            let fault = taken(card, &record, foreign, &view.host);
            entries.fault.get_or_insert(fault);
            continue;
        }
        // One of ours that stands against it is removed first.
        if !has_it {
            add.push(record.clone());
        }
        entries.records.push(record);
    }
    for old in known {
        if entries.records.contains(old) {
            continue;
        }
        match view.dhcp.get(&old.network) {
            Some(server) if !server.hosts.contains(&entry(old)) => continue,
            // Without all its addresses it is unknown which ones the Machine has.
            Some(_) if machine.addresses.fault.is_none() => remove.push(old.clone()),
            // The network cannot be asked.
            Some(_) | None => {}
        }
        entries.records.push(old.clone());
    }
    entries.records.sort();
    if !add.is_empty() || !remove.is_empty() {
        entries.action = Some(Action::SetDhcpHosts { remove, add });
    }
    entries
}

/// The entry that a card needs, with the server; `None`: no server gives it an address that it holds.
fn wanted<'v>(
    machine: &Machine,
    card: &Nic,
    view: &'v HostView,
) -> Option<(DhcpRecord, &'v DhcpServer)> {
    let NicSource::Network(network) = &card.attachment.source else {
        return None;
    };
    let server = view.dhcp.get(network)?;
    let config = machine.addresses.configs.get(card.card()?)?;
    let addresses = config.addresses.iter().map(|it| it.address);
    // A server of libvirt's keeps one address for a card.
    let address = addresses.filter_map(v4).find(|it| server.serves(*it))?;
    let record = DhcpRecord {
        network: network.clone(),
        mac: card.mac,
        address,
    };
    Some((record, server))
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// The record of an entry on the network of another.
fn with(host: &DhcpHost, of: &DhcpRecord) -> DhcpRecord {
    DhcpRecord {
        network: of.network.clone(),
        mac: host.mac,
        address: host.address,
    }
}

fn taken(card: &Nic, record: &DhcpRecord, host: &DhcpHost, libvirt_host: &str) -> Fault {
    let DhcpRecord {
        network, address, ..
    } = record;
    let name = card.card().unwrap_or_default();
    let DhcpHost {
        mac,
        address: given,
    } = host;
    Fault::new(
        "NetworkFailed",
        format!(
            "the DHCP server of network '{network}' on LibvirtHost '{libvirt_host}' keeps {given} for {mac}, so it cannot give {address} to network card '{name}': remove that entry (virsh net-update {network} delete ip-dhcp-host \"<host mac='{mac}' ip='{given}'/>\" --live --config), or exclude the address in the NetworkConfiguration"
        ),
    )
}
