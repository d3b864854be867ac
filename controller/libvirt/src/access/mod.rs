//! Access to a libvirt host.
//!
//! ```text
//! reconcile ──▶ Host ─┬─ fast: Worker ──▶ a thread ──▶ Connection ──▶ libvirtd
//!                     └─ slow: Worker ──▶ a thread ──▶ Connection ──▶   "
//!                                                      (or the fake)
//! ```
//! libvirt's calls block, and one that waits for a frozen guest can block all others on its connection. So a host
//! has several connections, each with a thread and one call at a time: calls that take milliseconds use the fast one;
//! agents, volumes, starts and stops use the slow one. Readiness probes, the removal of what nothing needs any more, and each
//! fetch or copy of an image have one of their own.

#![cfg_attr(
    not(feature = "native"),
    allow(
        dead_code,
        unused_imports,
        reason = "a build without libvirt opens no connection"
    )
)]

mod addresses;
mod connection;
mod error;
#[cfg(not(feature = "native"))]
mod missing;
#[cfg(feature = "native")]
mod native;
mod raw_disk;
mod target;
mod types;
mod worker;
mod xml;

#[cfg(test)]
mod contract;
#[cfg(test)]
pub(crate) mod fake;

use std::sync::Arc;

pub(crate) use addresses::CardAddresses;
pub(crate) use connection::{Connection, Connector};
pub(crate) use error::{AccessError, Result};
pub(crate) use target::{Credentials, Target};
pub(crate) use types::{
    DhcpHost, DhcpServer, DomainDetail, DomainDisks, DomainHardware, DomainState, FirmwareState,
    HostInfo, Lease, Network, Pool, Shutdown, State, Volume, VolumeKey, shutoff,
};
pub(crate) use worker::{Host, Worker};

/// The connector of this build.
pub(crate) fn connector() -> Arc<dyn Connector> {
    #[cfg(feature = "native")]
    return Arc::new(native::Libvirt::new());
    #[cfg(not(feature = "native"))]
    return Arc::new(missing::Missing);
}
