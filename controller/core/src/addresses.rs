//! Address rules that hold for every backend: MAC conflicts between Machines, and which IP addresses are reported.

use std::net::IpAddr;
use std::sync::Arc;

use common::api::normalized::Normalized;
use common::mac::Mac;

use crate::conditions::Fault;
use crate::machine::Machine;
use crate::objects::Meta as _;

/// The fault of a Machine one of whose MAC addresses an older Machine has on the same NetworkConfiguration. Admission
/// refuses that, except for two Machines that are created at the same time at two replicas of the webhook.
pub fn address_conflict(
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
        let has_address = |conflict: &&&Arc<Machine>| {
            let blocks = conflict.desired().into_iter();
            let mut others = blocks.flat_map(|block| addresses(conflict, block, cluster));
            others.any(|(_, other, address)| (other, address) == (network, mac))
        };
        let conflict = older.iter().find(has_address)?;
        Some(Fault::new(
            "NetworkFailed",
            format!(
                "network card '{nic}' has the address {mac}, and so has the older Machine '{}' on NetworkConfiguration '{network}': change macAddress of one of them in spec.networks; the Machine continues automatically then",
                conflict.name()
            ),
        ))
    })
}

/// The network cards on a NetworkConfiguration: name of the card, name of the NetworkConfiguration, MAC address.
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

/// Whether an IP address of a guest is reported in the status. Loopback and link-local addresses are not: they say
/// nothing about where the guest can be reached.
pub fn is_reported(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}
