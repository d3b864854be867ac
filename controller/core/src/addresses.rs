//! Addresses, whatever runs the Machine: those of cards that two Machines have, and those that mean a guest to
//! others.

use std::net::IpAddr;
use std::sync::Arc;

use common::api::normalized::Normalized;
use common::mac::Mac;

use crate::machine::Machine;
use crate::objects::Meta as _;
use crate::status::Fault;

/// An address that an older Machine has, too: admission has not seen both coming.
pub fn taken(
    machine: &Machine,
    block: &Normalized,
    conflicts: &[Arc<Machine>],
    cluster: &str,
) -> Option<Fault> {
    let age = |machine: &Machine| {
        machine
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0)
    };
    let is_older = |conflict: &&Arc<Machine>| {
        (age(conflict), conflict.name()) < (age(machine), machine.name())
    };
    let older: Vec<_> = conflicts.iter().filter(is_older).collect();
    addresses(machine, block, cluster).find_map(|(nic, network, mac)| {
        let has_it = |conflict: &&&Arc<Machine>| {
            let theirs = conflict.desired().into_iter();
            let mut theirs = theirs.flat_map(|block| addresses(conflict, block, cluster));
            theirs.any(|(_, other, address)| (other, address) == (network, mac))
        };
        let conflict = older.iter().find(has_it)?;
        Some(Fault::new(
            "NetworkFailed",
            format!(
                "network card '{nic}' has the address {mac}, and so has the older Machine '{}' on NetworkConfiguration '{network}': change macAddress of one of them in spec.networks; the Machine goes on by itself then",
                conflict.name()
            ),
        ))
    })
}

/// The network cards on NetworkConfigurations: name, NetworkConfiguration, address.
fn addresses<'a>(
    machine: &'a Machine,
    block: &'a Normalized,
    cluster: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str, Mac)> {
    block.networks.iter().filter_map(|nic| {
        let derived = || machine.identity(cluster).mac(&nic.name);
        let mac = nic.mac_address.unwrap_or_else(derived);
        Some((nic.name.as_str(), nic.network_name.as_deref()?, mac))
    })
}

/// Whether an address can mean the guest to others: those of its link every card has, too.
pub fn means_others(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}
