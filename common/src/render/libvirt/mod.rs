//! The objects of a normalized Machine on a libvirt host.
//!
//! ```text
//!  block, volumes, networks ─▶ Domain ─ xml ─▶ libvirt ─ dumpxml ─▶ Domain
//!                                │                                    │
//!                                ├◀─────────── preserving ────────────┤ addresses, machine type
//!                                └────────── differences_from ────────┘ desired, but not running yet
//!  cloudInit ─▶ Seed ─▶ ISO image        VolumeSpec ─▶ xml
//! ```
//!
//! The functions are pure: the same input gives the same bytes. libvirt adds some sixty lines to the
//! XML it is given, so XML is never compared: its answer is parsed into a [`Domain`], the type that
//! rendering produces, and two domains are compared.

mod build;
mod devices;
mod differences;
mod display;
mod domain;
mod host_device;
pub mod hotplug;
mod identity;
pub mod image_header;
mod iso;
mod limits;
mod metadata;
mod parse;
mod pinning;
mod ports;
mod preserve;
mod seed;
mod volume;
mod xml;

#[cfg(test)]
mod tests;

pub use crate::api::choice::{CpuMode, VolumeFormat};
pub use build::{DomainInput, domain};
pub use devices::{Address, Controller, Disk, Nic, NicAttachment, NicSource, PoolVolume, UNTAGGED};
pub use differences::{Difference, LiveUpdate};
pub use display::{
    AppliedPassword, DISPLAY_KEY, DISPLAY_URI, Display, Screen, screen_with_password,
};
pub use domain::{Domain, VirtType};
pub use host_device::{HostDevice, pci_devices};
pub use identity::{
    AS_THE_GUEST_HAD_IT, ATTEMPT, FETCHED_IMAGE, MARKER, console_log_name, disk_owner, domain_name,
    domain_uuid, is_console_log, is_disk_of, is_raw_disk, is_reserved_volume, is_seed,
    is_volume_of, seed_name, short_id, volume_name, volume_owner,
};
pub use limits::{DiskLimits, GuestLimits, MAC_FILTER, NicPolicy};
pub use metadata::{
    DhcpRecord, DomainMetadata, Intent, IntentKind, METADATA_KEY, METADATA_URI, SeedRecord,
    VolumeRecord,
};
pub use parse::{Reference, references, written_references};
pub use pinning::{Pinning, pinned_cpus};
pub use seed::seed_image;
pub use volume::{VolumeSpec, volume_xml};
pub use xml::XmlError;
