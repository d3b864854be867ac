//! The hosts: which there are, what the last poll of each observed, and the connections to it.
//!
//! ```text
//! LibvirtHost ─ watch ─▶ poller: a task per host ─▶ Snapshot ─▶ status of the LibvirtHost
//!                            │                          └─ changed domains ─▶ their Machines get a pass
//!                            └─ registry of connected hosts ◀── passes of Machines
//! ```
//! libvirt's events are not used: listing all domains takes a millisecond, and an event is lost with the
//! connection that would have delivered it.

pub(crate) mod agent_time;
mod changed;
pub(crate) mod connected;
mod credentials;
mod gone;
pub(crate) mod guards;
mod host_lookup;
mod identity;
pub(crate) mod location;
mod orphans;
pub(crate) mod poller;
mod protection;
pub(crate) mod registry;
mod released;
mod remains;
mod status;
pub(crate) mod tombstones;
mod unlisted;
mod unmounted;
mod unused_images;
