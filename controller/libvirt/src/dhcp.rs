//! Entries of the DHCP servers of a host's networks: made, and removed at the latest with the domain that records them.

use common::render::libvirt::{DhcpRecord, DomainMetadata};
use uuid::Uuid;

use crate::access::{AccessError, Connection, DhcpHost, FirmwareState, Result};
use crate::guard::Guard;

/// The entry of a record.
pub(crate) fn entry(record: &DhcpRecord) -> DhcpHost {
    DhcpHost {
        mac: record.mac,
        address: record.address,
    }
}

/// Removes the domain's definition, and the entries that its metadata records before. They are recorded nowhere else.
pub(crate) fn undefine(
    host: &mut dyn Connection,
    guard: &Guard,
    uuid: Uuid,
    state: FirmwareState,
) -> Result<()> {
    let metadata = host.domain(uuid)?.and_then(|found| found.state.metadata);
    let metadata = metadata.as_deref().and_then(DomainMetadata::parse);
    let records = metadata.unwrap_or_default().dhcp;
    set_dhcp_hosts(host, guard, &records, &[])?;
    guard.check()?;
    host.undefine(uuid, state)
}

/// Changes the entries. The guest runs without one, too, so a refusal is not that of the pass: the next observation reports
/// what is missing.
pub(crate) fn reserve(
    host: &mut dyn Connection,
    guard: &Guard,
    remove: &[DhcpRecord],
    add: &[DhcpRecord],
) -> Result<()> {
    match set_dhcp_hosts(host, guard, remove, add) {
        Err(error) if !error.is_of_host() => {
            tracing::warn!(%error, "the DHCP server of a network was not changed");
            Ok(())
        }
        done => done,
    }
}

/// Only what is recorded exactly so is removed, and what exists already is not added. A network that does not exist any
/// more has no entries to remove.
fn set_dhcp_hosts(
    host: &mut dyn Connection,
    guard: &Guard,
    remove: &[DhcpRecord],
    add: &[DhcpRecord],
) -> Result<()> {
    for record in remove {
        match host.dhcp_server(&record.network) {
            Ok(server) if server.hosts.contains(&entry(record)) => {
                guard.check()?;
                host.remove_dhcp_host(&record.network, entry(record))?;
            }
            Ok(_) | Err(AccessError::Absent(_)) => {}
            Err(error) => return Err(error),
        }
    }
    for record in add {
        let server = host.dhcp_server(&record.network)?;
        if !server.hosts.contains(&entry(record)) {
            guard.check()?;
            host.add_dhcp_host(&record.network, entry(record))?;
        }
    }
    Ok(())
}
