//! Addresses of network cards on virtual networks whose DHCP server libvirt runs: the server gives a card the address
//! that the Machine holds, so that a guest without cloud-init has it, too.
//!
//! ```text
//! address held ─▶ recorded in the domain's metadata ─▶ entry at the server ─▶ guest starts
//! address or card gone ─▶ entry removed ─▶ record removed            domain undefined ─▶ entries removed first
//! ```
//! An entry that no record names is an administrator's and is never changed. One exception: exactly the entry of a card
//! whose MAC address is derived from the Machine's name is ours, as its record was lost with the domain.

use std::net::{IpAddr, Ipv4Addr};

use common::mac::Mac;
use common::render::Identity;
use common::render::libvirt::{DhcpRecord, Domain, Nic, NicSource};
use controller_core::conditions::{Fault, Outcome};
use controller_core::held_addresses::Addresses;

use super::action::Action;
use crate::access::{DhcpHost, DhcpServer};
use crate::dhcp::entry;
use crate::observed::HostView;
use crate::parts::shell_word;

/// What the DHCP servers of the host's networks are to have for a Machine.
#[derive(Debug, Default, PartialEq)]
struct Entries {
    /// For the domain's metadata.
    records: Vec<DhcpRecord>,
    /// The change; `None`: the servers have what they are to have.
    action: Option<Action>,
    /// The first reason why a card has no entry.
    fault: Option<Fault>,
}

/// Records the entries of the cards in the desired domain. Returns the action that makes and removes entries.
pub(super) fn reserve(
    machine: &Identity<'_>,
    addresses: &Addresses,
    desired: &mut Domain,
    view: &HostView,
    network: &mut Outcome,
) -> Option<Action> {
    let guest = view.guest.as_ref();
    let present = guest.and_then(|guest| guest.metadata.as_ref());
    let running = guest.and_then(|guest| guest.running.as_ref());
    let reservations = Reservations {
        machine,
        addresses,
        known: present.map_or(&[], |metadata| &metadata.dhcp),
        running: running.map(|domain| &domain.nics[..]),
        view,
    };
    let found = reservations.entries(&desired.nics);
    desired.metadata.as_mut()?.dhcp = found.records;
    network.record_first(found.fault);
    found.action
}

struct Reservations<'a> {
    machine: &'a Identity<'a>,
    addresses: &'a Addresses,
    /// The records of the present domain.
    known: &'a [DhcpRecord],
    /// Cards of the running guest; `None`: it is off.
    running: Option<&'a [Nic]>,
    view: &'a HostView,
}

impl Reservations<'_> {
    fn entries(&self, cards: &[Nic]) -> Entries {
        let mut entries = Entries::default();
        let (mut add, mut remove) = (vec![], vec![]);
        for card in cards {
            let Some((record, server)) = self.wanted(card) else {
                continue;
            };
            let host = entry(&record);
            let is_ours = |host: DhcpHost| self.known.contains(&with(host, &record));
            let has_it = server.hosts.contains(&host);
            if has_it && !is_ours(host) && !self.is_derived(card) {
                // The same entry of an administrator.
                continue;
            }
            let against: Vec<_> = server.others(host).collect();
            let is_taken = against.iter().any(|other| !is_ours(*other));
            if !has_it && (is_taken || server.refuses(host)) {
                entries.fault.get_or_insert(self.taken(card, &record));
                continue;
            }
            let is_asked = |other: &DhcpHost| other.mac != host.mac && self.asks(other.mac);
            if against.iter().any(is_asked) {
                // The running guest still asks with its former MAC address.
                continue;
            }
            if !has_it {
                // It was recorded before, and not made.
                if self.known.contains(&record) && self.running.is_some() {
                    entries.fault.get_or_insert(self.missing(card, &record));
                }
                // An entry of ours that conflicts with it is removed first.
                add.push(record.clone());
            }
            entries.records.push(record);
        }
        for old in self.known {
            if entries.records.contains(old) {
                continue;
            }
            let has_another = entries.records.iter().any(|record| record.mac == old.mac);
            match self.view.dhcp.get(&old.network) {
                Some(server) if !server.hosts.contains(&entry(old)) => continue,
                // Without all its addresses it is unknown which ones the Machine has.
                Some(_)
                    if self.addresses.fault.is_none() && (has_another || !self.asks(old.mac)) =>
                {
                    remove.push(old.clone());
                }
                // The network cannot be asked, or the running guest has the card still.
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

    /// Whether the MAC address of a card is derived from the Machine's name.
    fn is_derived(&self, card: &Nic) -> bool {
        card.card().map(|name| self.machine.mac(name)) == Some(card.mac)
    }

    /// Whether the running guest has a card of this MAC address.
    fn asks(&self, mac: Mac) -> bool {
        let mut cards = self.running.into_iter().flatten();
        cards.any(|card| card.mac == mac)
    }

    /// The entry that a card needs, with the server; `None`: no server gives it an address that it holds.
    fn wanted(&self, card: &Nic) -> Option<(DhcpRecord, &DhcpServer)> {
        let NicSource::Network(network) = &card.attachment.source else {
            return None;
        };
        let server = self.view.dhcp.get(network)?;
        let config = self.addresses.configs.get(card.card()?)?;
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

    /// The message does not say whose entry it is: it may be that of a Machine of another namespace.
    fn taken(&self, card: &Nic, record: &DhcpRecord) -> Fault {
        let why = "has another entry for the address or for the card, which the controller did not make: remove that entry, or exclude the address in the NetworkConfiguration";
        self.fault(card, record, why)
    }

    fn missing(&self, card: &Nic, record: &DhcpRecord) -> Fault {
        let why = "did not take the entry; the log of the controller has libvirt's answer, and it is tried again";
        self.fault(card, record, why)
    }

    fn fault(&self, card: &Nic, record: &DhcpRecord, why: &str) -> Fault {
        let DhcpRecord {
            network, address, ..
        } = record;
        let (host, name) = (&self.view.host, card.card().unwrap_or_default());
        let word = shell_word(network);
        Fault::new(
            "NetworkFailed",
            format!(
                "the DHCP server of network '{network}' on LibvirtHost '{host}' cannot give {address} to network card '{name}', because it {why} (virsh net-dumpxml {word} shows the entries)"
            ),
        )
    }
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

/// The record of an entry on the network of another.
fn with(host: DhcpHost, of: &DhcpRecord) -> DhcpRecord {
    DhcpRecord {
        network: of.network.clone(),
        mac: host.mac,
        address: host.address,
    }
}
