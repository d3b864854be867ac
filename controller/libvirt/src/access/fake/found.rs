//! Finds the object of a call, with the errors that libvirt returns when it is absent.

use uuid::Uuid;

use super::{FakeDomain, FakeNetwork, FakePool, FakeVolume, HostState};
use crate::access::raw_disk::as_it_is;
use crate::access::{AccessError, Result, Volume};

pub(super) fn refused(message: &str) -> AccessError {
    AccessError::Refused(message.into())
}

pub(super) fn agent(message: &str) -> AccessError {
    AccessError::Agent(format!("Guest agent is not responding: {message}"))
}

pub(super) fn domain(state: &mut HostState, uuid: Uuid) -> Result<&mut FakeDomain> {
    state.domains.get_mut(&uuid).ok_or_else(|| {
        AccessError::Absent(format!(
            "Domain not found: no domain with matching uuid '{uuid}'"
        ))
    })
}

pub(super) fn running(domain: &FakeDomain) -> Result<()> {
    if domain.state.active() {
        return Ok(());
    }
    Err(refused(
        "Requested operation is not valid: domain is not running",
    ))
}

pub(super) fn network_of<'a>(state: &'a mut HostState, name: &str) -> Result<&'a mut FakeNetwork> {
    state.networks.get_mut(name).ok_or_else(|| {
        AccessError::Absent(format!(
            "Network not found: no network with matching name '{name}'"
        ))
    })
}

pub(super) fn active<'a>(state: &'a mut HostState, pool: &str) -> Result<&'a mut FakePool> {
    let found = state.pools.get_mut(pool).ok_or_else(|| {
        AccessError::Absent(format!(
            "Storage pool not found: no storage pool with matching name '{pool}'"
        ))
    })?;
    if found.active {
        return Ok(found);
    }
    Err(refused(&format!(
        "Requested operation is not valid: storage pool '{pool}' is not active"
    )))
}

pub(super) fn found<'a>(
    state: &'a mut HostState,
    pool: &str,
    name: &str,
) -> Result<&'a mut FakeVolume> {
    active(state, pool)?.volumes.get_mut(name).ok_or_else(|| {
        AccessError::Absent(format!(
            "Storage volume not found: no storage vol with matching name '{name}'"
        ))
    })
}

pub(super) fn put(
    state: &mut HostState,
    pool: &str,
    name: &str,
    desired_volume: FakeVolume,
) -> Result<Volume> {
    let volumes = &mut active(state, pool)?.volumes;
    if volumes.contains_key(name) {
        return Err(refused(&format!("storage volume '{name}' exists already")));
    }
    let made = volume(pool, name, &desired_volume);
    volumes.insert(name.to_owned(), desired_volume);
    Ok(made)
}

pub(super) fn volume(pool: &str, name: &str, volume: &FakeVolume) -> Volume {
    let header = volume.header();
    let is_qcow2 = if volume.raw {
        header.is_some()
    } else {
        volume.content.starts_with(b"QFI") || name.contains(".qcow2")
    };
    let reported = Volume {
        name: name.to_owned(),
        key: volume
            .key
            .clone()
            .unwrap_or_else(|| HostState::path(pool, name)),
        path: HostState::path(pool, name),
        capacity: header.map_or(volume.capacity, capacity_of),
        allocation: volume.content.len() as u64,
        backing: header.map_or_else(|| volume.backing.clone(), backing_of),
        format: if is_qcow2 { "qcow2" } else { "raw" }.into(),
        is_misread: false,
    };
    as_it_is(reported, Some(volume.file()))
}

/// The size of the disk in a qcow2 header.
fn capacity_of(header: &[u8]) -> u64 {
    u64::from_be_bytes(header[24..32].try_into().unwrap())
}

/// The backing file in a qcow2 header.
fn backing_of(header: &[u8]) -> Option<String> {
    let start = usize::try_from(u64::from_be_bytes(header[8..16].try_into().unwrap())).unwrap();
    let length = u32::from_be_bytes(header[16..20].try_into().unwrap()) as usize;
    let name = (start > 0).then(|| &header[start..start + length])?;
    Some(String::from_utf8(name.to_vec()).unwrap())
}
