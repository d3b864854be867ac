//! Converts libvirt's objects to the types of the trait.

use std::collections::BTreeMap;

use common::api::choice::{Choice as _, VirtType};
use common::render::libvirt::{MAC_FILTER, METADATA_URI, Reference};
use virt::connect::Connect;
use virt::domain::Domain;
use virt::network;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::sys;

use super::raw;
use crate::access::{AccessError, DomainState, Network, Pool, Result, Volume, xml};

/// Machines have this architecture.
pub(super) const ARCHITECTURE: &str = "x86_64";

/// VIR_DOMAIN_METADATA_ELEMENT: an element in the name space of an application.
#[expect(clippy::cast_possible_wrap, reason = "it is 2")]
pub(super) const ELEMENT: i32 = sys::VIR_DOMAIN_METADATA_ELEMENT as i32;

/// Reads each object; objects that were removed since they were listed are left out.
pub(super) fn existing<T, R>(all: Vec<T>, mut read: impl FnMut(&T) -> Result<R>) -> Result<Vec<R>> {
    let mut found = Vec::with_capacity(all.len());
    for one in all {
        match read(&one) {
            Err(AccessError::Absent(_)) => {}
            other => found.push(other?),
        }
    }
    Ok(found)
}

pub(super) fn state(domain: &Domain) -> Result<DomainState> {
    let (state, reason) = raw::state(domain)?;
    let info = domain.info()?;
    let persistent = domain.is_persistent()?;
    // What was written last: a definition may be newer than the guest.
    let from = if persistent {
        sys::VIR_DOMAIN_AFFECT_CONFIG
    } else {
        sys::VIR_DOMAIN_AFFECT_LIVE
    };
    let text = domain.metadata(ELEMENT, Some(METADATA_URI), from);
    Ok(DomainState {
        uuid: domain.uuid()?,
        name: domain.name()?,
        metadata: text.map_or_else(|error| AccessError::from(error).absent(), |it| Ok(Some(it)))?,
        state,
        reason,
        vcpus: info.nr_virt_cpu,
        memory: info.max_mem * 1024,
        persistent,
    })
}

pub(super) fn pool(pool: &StoragePool) -> Result<Pool> {
    let active = pool.is_active()?;
    let info = active.then(|| pool.info()).transpose()?;
    let (kind, path) = xml::pool_type(&pool.xml_desc(0)?)?;
    let mut pool = Pool {
        name: pool.name()?,
        active,
        kind,
        path,
        capacity: info.as_ref().map_or(0, |it| it.capacity),
        available: info.map_or(0, |it| it.available),
    };
    // The path of another type is that of its devices, such as /dev.
    if !pool.has_files() {
        pool.path = None;
    }
    Ok(pool)
}

pub(super) fn network(network: &network::Network) -> Result<Network> {
    let bridge = match network.bridge_name().map_err(AccessError::from) {
        Ok(bridge) => Some(bridge),
        Err(error) if error.unknown() => return Err(error),
        // A network that forwards to the host's own devices has no bridge.
        Err(_) => None,
    };
    Ok(Network {
        name: network.name()?,
        active: network.is_active()?,
        bridge,
        linux_bridge: xml::is_linux_bridge(&network.xml_desc(0)?)?,
    })
}

pub(super) fn volume(volume: &StorageVol) -> Result<Volume> {
    xml::volume(&volume.xml_desc(0)?)
}

/// Where a domain's volume is, if its pool is still there.
pub(super) fn resolved(host: &Connect, source: &Reference) -> Result<Option<String>> {
    let (pool, name) = match source {
        Reference::Path(path) => return Ok(Some(path.clone())),
        Reference::Volume { pool, volume } => (pool, volume),
    };
    let pool = match host.lookup_storage_pool_by_name(pool) {
        Ok(pool) => pool,
        Err(error) => return AccessError::from(error).absent(),
    };
    match pool
        .lookup_storage_vol_by_name(name)
        .and_then(|it| it.path())
    {
        Ok(path) => Ok(Some(path)),
        // The pool is stopped or was not refreshed: derive the path from the pool's target folder.
        Err(error) => match AccessError::from(error) {
            AccessError::Absent(_) | AccessError::Refused(_) => {
                let target = xml::target(&pool.xml_desc(0)?)?;
                Ok(target.map(|it| format!("{it}/{name}")))
            }
            other => Err(other),
        },
    }
}

/// What domains can have, as libvirt describes it, by how their guests are run.
pub(super) fn domain_capabilities(host: &Connect) -> Result<BTreeMap<VirtType, String>> {
    let mut all = BTreeMap::new();
    for virt_type in VirtType::ALL.iter().copied() {
        let asked = Some(virt_type.as_str());
        match host.domain_capabilities(None, Some(ARCHITECTURE), Some("q35"), asked, 0) {
            Ok(capabilities) => {
                all.insert(virt_type, capabilities);
            }
            Err(error) => match AccessError::from(error) {
                error if error.unknown() => return Err(error),
                // A host that cannot run guests in this way or has no q35, or a driver without an answer.
                _ => {}
            },
        }
    }
    Ok(all)
}

/// Whether libvirt has the filter of MAC addresses. A host without the driver of filters, or without their package, has
/// none.
pub(super) fn has_mac_filter(host: &Connect) -> Result<bool> {
    match host.lookup_nwfilter_by_name(MAC_FILTER) {
        Ok(_) => Ok(true),
        // Where filters have a daemon of their own, an error of RPC is also that of a host without this daemon.
        Err(error) if !host.is_alive().unwrap_or(false) => Err(error.into()),
        Err(_) => Ok(false),
    }
}

/// 9000000 is "9.0.0".
pub(super) fn dotted(version: u32) -> String {
    format!(
        "{}.{}.{}",
        version / 1_000_000,
        version / 1000 % 1000,
        version % 1000
    )
}
