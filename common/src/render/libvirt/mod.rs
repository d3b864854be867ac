//! What a normalized Machine becomes on a libvirt host.
//!
//! ```text
//!  block, volumes, networks ─▶ Domain ─ xml ─▶ libvirt ─ dumpxml ─▶ Domain
//!                                │                                    │
//!                                ├◀──────────── carrying ─────────────┤ addresses, machine type
//!                                └───────────── changes ──────────────┘ what the guest lacks
//!  cloudInit ─▶ Seed ─▶ ISO image        VolumeWish ─▶ xml
//! ```
//!
//! Pure: the same input gives the same bytes. libvirt adds some sixty lines to the XML it is given, so
//! XML is never compared: what it answers is parsed into the [`Domain`] that rendering starts from.

mod carry;
mod changes;
mod devices;
mod domain;
mod guest;
pub mod hotplug;
mod identity;
mod iso;
mod mark;
mod parse;
mod seed;
mod volume;
mod xml;

#[cfg(test)]
mod tests;

pub use crate::api::choice::{CpuMode, VolumeFormat};
pub use changes::{Change, Live};
pub use devices::{Address, Attached, Controller, Disk, Nic, Placed, Wire};
pub use domain::{Domain, VirtType};
pub use guest::{Guest, domain};
pub use identity::{
    domain_name, domain_uuid, is_seed, is_volume_of, seed_name, short_id, volume_name,
};
pub use mark::{Intent, IntentKind, Kept, METADATA_KEY, METADATA_URI, Mark, SeedMark};
pub use parse::{Reference, references};
pub use seed::{Seed, seed_iso, seed_of};
pub use volume::{VolumeWish, volume_xml};
pub use xml::XmlError;
