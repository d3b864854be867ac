//! The DHCP server of a network. A network has two descriptions: as it runs, and as it is after its next start.

use virt::network::Network;
use virt::sys;

use crate::access::{AccessError, DhcpHost, DhcpServer, Result, xml};

/// A change of the entries of a DHCP server.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Add,
    Remove,
}

/// The server with the entries of both descriptions.
pub(super) fn server(network: &Network) -> Result<DhcpServer> {
    let now = xml::dhcp_server(&network.xml_desc(0)?)?;
    let later = xml::dhcp_server(&definition(network)?)?;
    Ok(now.joined(later))
}

/// Changes each description that needs the change: an administrator may have changed only one of them. Refused if none
/// needs it.
pub(super) fn update(network: &Network, change: Change, host: DhcpHost) -> Result<()> {
    let update =
        |description: String, of| update_description(network, &description, of, change, host);
    // The second one is read after the change of the first: in libvirt's test driver both are one.
    let live =
        network.is_active()? && update(network.xml_desc(0)?, sys::VIR_NETWORK_UPDATE_AFFECT_LIVE)?;
    let later = network.is_persistent()?
        && update(definition(network)?, sys::VIR_NETWORK_UPDATE_AFFECT_CONFIG)?;
    if live || later {
        return Ok(());
    }
    let why = match change {
        Change::Add => "is kept already",
        Change::Remove => "is not kept",
    };
    Err(AccessError::Refused(format!(
        "address {} {why} for {}, or no DHCP server gives it",
        host.address, host.mac
    )))
}

/// Returns whether the description needed the change.
fn update_description(
    network: &Network,
    description: &str,
    of: sys::virNetworkUpdateFlags,
    change: Change,
    host: DhcpHost,
) -> Result<bool> {
    let has = xml::dhcp_server(description)?.hosts.contains(&host);
    let command = match (change, has) {
        (Change::Add, false) => sys::VIR_NETWORK_UPDATE_COMMAND_ADD_LAST,
        (Change::Remove, true) => sys::VIR_NETWORK_UPDATE_COMMAND_DELETE,
        (Change::Add, true) | (Change::Remove, false) => return Ok(false),
    };
    let Some(subnet) = xml::subnet_of(description, host.address)? else {
        return Ok(false);
    };
    let section = sys::VIR_NETWORK_SECTION_IP_DHCP_HOST;
    let index = i32::try_from(subnet).unwrap_or(-1);
    network.update(command, section, index, &xml::dhcp_host(host), of)?;
    Ok(true)
}

/// What the network is after its next start. libvirt's test driver and networks without a definition know no other
/// description than the present one.
fn definition(network: &Network) -> Result<String> {
    let later = network.xml_desc(sys::VIR_NETWORK_XML_INACTIVE);
    match later.map_err(AccessError::from) {
        Err(AccessError::Refused(_) | AccessError::Unsupported(_)) => Ok(network.xml_desc(0)?),
        definition => definition,
    }
}
