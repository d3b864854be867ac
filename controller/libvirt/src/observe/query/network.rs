//! DHCP servers and leases of the networks that the cards of a Machine are on.

use std::collections::BTreeSet;

use common::render::libvirt::{Nic, NicSource};

use super::answer::HostAnswer;
use crate::access::{AccessError, CardAddresses, Connection};
use crate::parts::network_fault;

impl HostAnswer {
    /// The DHCP servers of the networks that the domain is defined with, if a card holds an address, and of those that
    /// its metadata names.
    pub(super) fn read_dhcp(
        &mut self,
        host: &mut dyn Connection,
        has_addresses: bool,
    ) -> Result<(), AccessError> {
        let guest = self.guest.as_ref();
        let defined = guest.and_then(|guest| guest.defined.as_ref());
        let cards = defined.into_iter().flat_map(|domain| &domain.nics);
        let networks = cards.filter_map(|card| network_of(card).filter(|_| has_addresses));
        let metadata = guest.and_then(|guest| guest.metadata.as_ref());
        let recorded = metadata.into_iter().flat_map(|metadata| &metadata.dhcp);
        let networks = networks.chain(recorded.map(|record| record.network.as_str()));
        let networks: BTreeSet<_> = networks.map(str::to_owned).collect();
        for network in networks {
            match host.dhcp_server(&network) {
                Ok(server) => {
                    self.dhcp.insert(network, server);
                }
                Err(error) if error.is_of_host() => return Err(error),
                // Another step says what is wrong with the network.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The DHCP leases of the cards of the running guest.
    pub(super) fn read_leases(&mut self, host: &mut dyn Connection) -> Result<(), AccessError> {
        let running = self.guest.as_ref().and_then(|guest| guest.running.as_ref());
        let Some(running) = running else {
            return Ok(());
        };
        let networks = running.nics.iter().filter_map(network_of);
        let networks: BTreeSet<_> = networks.collect();
        self.addresses = CardAddresses::of(running.nics.iter().map(|nic| nic.mac));
        for network in networks {
            let leases = match host.leases(network) {
                Ok(leases) => leases,
                // Some drivers have no leases.
                Err(AccessError::Unsupported(_)) => continue,
                Err(error) if error.is_of_host() => return Err(error),
                Err(error) => {
                    let fault = network_fault(&host.networks()?, network).unwrap_or_else(|| {
                        format!("the leases of network '{network}' cannot be read ({error})")
                    });
                    self.network_faults.push(fault);
                    continue;
                }
            };
            for lease in leases {
                self.addresses.add(&lease.mac, [lease.ip.to_string()]);
            }
        }
        Ok(())
    }
}

/// The virtual network that a card is on.
fn network_of(card: &Nic) -> Option<&str> {
    match &card.attachment.source {
        NicSource::Network(name) => Some(name),
        NicSource::Bridge(_) | NicSource::Ovs(_) => None,
    }
}
