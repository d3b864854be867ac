//! Calls that the crate `virt` lacks or wraps wrongly: its state of a domain hides errors, and its
//! addresses of interfaces leak memory.
#![expect(
    unsafe_code,
    reason = "libvirt's C functions; each is given a handle that `virt` keeps valid during the call"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::IpAddr;
use std::ptr;
use std::slice;

use virt::domain::Domain;
use virt::error::Error;
use virt::network::Network;
use virt::sys;

use crate::access::{AgentInterface, Lease, State};

/// A domain's state with its reason.
pub(super) fn state(domain: &Domain) -> Result<(State, i32), Error> {
    let (mut state, mut reason): (c_int, c_int) = (0, 0);
    // SAFETY: both numbers outlive the call.
    checked(unsafe {
        sys::virDomainGetState(domain.as_ptr(), &raw mut state, &raw mut reason, 0)
    })?;
    let state = match sys::virDomainState::try_from(state) {
        Ok(sys::VIR_DOMAIN_RUNNING) => State::Running,
        Ok(sys::VIR_DOMAIN_BLOCKED) => State::Blocked,
        Ok(sys::VIR_DOMAIN_PAUSED) => State::Paused,
        Ok(sys::VIR_DOMAIN_SHUTDOWN) => State::ShuttingDown,
        Ok(sys::VIR_DOMAIN_SHUTOFF) => State::ShutOff,
        Ok(sys::VIR_DOMAIN_CRASHED) => State::Crashed,
        Ok(sys::VIR_DOMAIN_PMSUSPENDED) => State::Suspended,
        _ => State::Unknown,
    };
    Ok((state, reason))
}

/// Sets how long calls to the guest's agent wait, in seconds. The host keeps it until the guest ends.
pub(super) fn set_agent_timeout(domain: &Domain, seconds: i32) -> Result<(), Error> {
    // SAFETY: the handle is the only pointer that is passed.
    checked(unsafe { sys::virDomainAgentSetResponseTimeout(domain.as_ptr(), seconds, 0) }).map(drop)
}

/// The interfaces that the guest's agent reports.
pub(super) fn agent_interfaces(domain: &Domain) -> Result<Vec<AgentInterface>, Error> {
    let mut list: *mut sys::virDomainInterfacePtr = ptr::null_mut();
    // SAFETY: the pointer outlives the call; what it is set to is freed by `taken`.
    unsafe {
        let source = sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT;
        let count = sys::virDomainInterfaceAddresses(domain.as_ptr(), &raw mut list, source, 0);
        let found = taken(checked(count)?, list, sys::virDomainInterfaceFree, |it| {
            let count = usize::try_from(it.naddrs).unwrap_or(0);
            let addresses = if it.addrs.is_null() {
                &[]
            } else {
                slice::from_raw_parts(it.addrs, count)
            };
            Some(AgentInterface {
                name: text(it.name)?,
                mac: text(it.hwaddr),
                ips: addresses.iter().filter_map(|it| address(it.addr)).collect(),
            })
        });
        Ok(found)
    }
}

/// The DHCP leases of a virtual network.
pub(super) fn leases(network: &Network) -> Result<Vec<Lease>, Error> {
    let mut list: *mut sys::virNetworkDHCPLeasePtr = ptr::null_mut();
    // SAFETY: the pointer outlives the call; what it is set to is freed by `taken`.
    unsafe {
        let count = sys::virNetworkGetDHCPLeases(network.as_ptr(), ptr::null(), &raw mut list, 0);
        let found = taken(checked(count)?, list, sys::virNetworkDHCPLeaseFree, |it| {
            Some(Lease {
                mac: text(it.mac)?,
                ip: address(it.ipaddr)?,
                expiry: it.expirytime,
            })
        });
        Ok(found)
    }
}

/// -1 is an error, which libvirt keeps for the thread.
fn checked(answer: c_int) -> Result<c_int, Error> {
    if answer < 0 {
        Err(Error::last_error())
    } else {
        Ok(answer)
    }
}

/// Reads a list that libvirt allocated, and frees it with all that is in it.
///
/// # Safety
/// `list` must be null, or an array of `count` valid elements that no other code uses.
unsafe fn taken<T, R>(
    count: c_int,
    list: *mut *mut T,
    free: unsafe extern "C" fn(*mut T),
    read: impl Fn(&T) -> Option<R>,
) -> Vec<R> {
    if list.is_null() {
        return vec![];
    }
    let count = usize::try_from(count).unwrap_or(0);
    let mut taken = Vec::with_capacity(count);
    // SAFETY: guaranteed by the caller; each element is freed once, after it was read.
    unsafe {
        for element in slice::from_raw_parts(list, count) {
            taken.extend(read(&**element));
            free(*element);
        }
        libc::free(list.cast::<c_void>());
    }
    taken
}

/// # Safety
/// `text` must be null or a C string.
unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    Some(
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    )
}

/// # Safety
/// As of [`text`].
unsafe fn address(address: *const c_char) -> Option<IpAddr> {
    // SAFETY: guaranteed by the caller.
    unsafe { text(address) }?.parse().ok()
}
