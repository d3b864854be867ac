//! Calls that the crate `virt` lacks or wraps wrongly: its state of a domain hides errors, and its
//! addresses of interfaces leak memory.
#![expect(
    unsafe_code,
    reason = "libvirt's C functions; each is given a handle that `virt` keeps valid during the call"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::slice;

use common::api::status::GuestOs;
use common::guest_report;
use virt::domain::Domain;
use virt::error::Error;
use virt::network::Network;
use virt::sys;

use crate::access::{CardAddresses, Lease, State};

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

/// Adds the addresses that the guest's agent reports. Of an answer beyond the limits, nothing is copied.
pub(super) fn agent_addresses(domain: &Domain, known: &mut CardAddresses) -> Result<(), Error> {
    let mut list: *mut sys::virDomainInterfacePtr = ptr::null_mut();
    // SAFETY: the pointer outlives the call; what it is set to is freed by `consume`.
    unsafe {
        let source = sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT;
        let count = sys::virDomainInterfaceAddresses(domain.as_ptr(), &raw mut list, source, 0);
        consume(checked(count)?, list, sys::virDomainInterfaceFree, |it| {
            let count = usize::try_from(it.naddrs).unwrap_or(0);
            let addresses = if it.addrs.is_null() {
                &[]
            } else {
                slice::from_raw_parts(it.addrs, count)
            };
            if let Some(mac) = text(it.hwaddr) {
                known.add(mac, addresses.iter().filter_map(|it| text(it.addr)));
            }
        });
    }
    Ok(())
}

/// The operating system that the guest's agent reports. Of a longer text than the limit, the rest is not copied.
pub(super) fn guest_os(domain: &Domain) -> Result<GuestOs, Error> {
    let mut list: sys::virTypedParameterPtr = ptr::null_mut();
    let mut count: c_int = 0;
    let mut os = GuestOs::default();
    // SAFETY: both pointers outlive the call. libvirt sets `list` to an array of `count` parameters. Only parameters of
    // type string are read as text. The array is freed once, after the last read.
    unsafe {
        let kinds = sys::VIR_DOMAIN_GUEST_INFO_OS;
        checked(sys::virDomainGetGuestInfo(
            domain.as_ptr(),
            kinds,
            &raw mut list,
            &raw mut count,
            0,
        ))?;
        if list.is_null() {
            return Ok(os);
        }
        for parameter in slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) {
            if sys::virTypedParameterType::try_from(parameter.type_)
                != Ok(sys::VIR_TYPED_PARAM_STRING)
            {
                continue;
            }
            let field = match text(parameter.field.as_ptr()) {
                Some("os.name") => &mut os.name,
                Some("os.version") => &mut os.version,
                Some("os.kernel-release") => &mut os.kernel,
                _ => continue,
            };
            let reported = text(parameter.value.s).filter(|reported| !reported.is_empty());
            *field = reported.map(|reported| guest_report::text(reported).to_owned());
        }
        sys::virTypedParamsFree(list, count);
    }
    Ok(os)
}

/// The DHCP leases of a virtual network.
pub(super) fn leases(network: &Network) -> Result<Vec<Lease>, Error> {
    let mut list: *mut sys::virNetworkDHCPLeasePtr = ptr::null_mut();
    let mut found = vec![];
    // SAFETY: the pointer outlives the call; what it is set to is freed by `consume`.
    unsafe {
        let count = sys::virNetworkGetDHCPLeases(network.as_ptr(), ptr::null(), &raw mut list, 0);
        consume(checked(count)?, list, sys::virNetworkDHCPLeaseFree, |it| {
            let ip = text(it.ipaddr).and_then(|ip| ip.parse().ok());
            found.extend(text(it.mac).zip(ip).map(|(mac, ip)| Lease {
                mac: mac.to_owned(),
                ip,
                expiry: it.expirytime,
            }));
        });
    }
    Ok(found)
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
unsafe fn consume<T>(
    count: c_int,
    list: *mut *mut T,
    free: unsafe extern "C" fn(*mut T),
    mut read: impl FnMut(&T),
) {
    if list.is_null() {
        return;
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: guaranteed by the caller; each element is freed once, after it was read.
    unsafe {
        for element in slice::from_raw_parts(list, count) {
            read(&**element);
            free(*element);
        }
        libc::free(list.cast::<c_void>());
    }
}

/// A text; `None` if there is none, or if it is not UTF-8.
///
/// # Safety
/// `text` must be null, or a C string that stays unchanged for `'a`.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}
