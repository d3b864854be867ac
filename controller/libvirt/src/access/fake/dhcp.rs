//! Changes of the entries of a DHCP server, with the errors that libvirt returns.

use super::found::refused;
use crate::access::{DhcpHost, DhcpServer, Result};

pub(super) fn add(server: &mut DhcpServer, host: DhcpHost) -> Result<()> {
    let is_taken = |other: &DhcpHost| other.mac == host.mac || other.address == host.address;
    if server.hosts.iter().any(is_taken) || server.refuses(host) {
        return Err(refused("there is an existing dhcp host entry in network"));
    }
    if !server.serves(host.address) {
        return Err(refused("couldn't locate a matching dhcp range"));
    }
    server.hosts.push(host);
    Ok(())
}

pub(super) fn remove(server: &mut DhcpServer, host: DhcpHost) -> Result<()> {
    let count = server.hosts.len();
    server.hosts.retain(|it| *it != host);
    if server.hosts.len() == count {
        return Err(refused("couldn't locate a matching dhcp host entry"));
    }
    Ok(())
}
