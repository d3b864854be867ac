//! The objects of a normalized Machine on KubeVirt.
//!
//! ```text
//!  block ─────────┬─▶ claim            one per volume, without owner: the controller deletes it
//!     ├─ image ───┼─▶ DataVolume       of CDI, which creates the claim
//!     └─ of name ─┼─▶ shared import    a DataVolume that disks of several Machines are clones of
//!  cloudInit ─────┼─▶ Secret           only data that cannot be inline or referenced
//!  NetworkConf. ──┼─▶ attachment       owned by the NetworkConfiguration
//!  identity ──────┴─▶ VirtualMachine   refers to all of these by name
//! ```
//!
//! The functions are pure: the same input gives the same bytes, so an unchanged Machine is never
//! written. Every field is set that KubeVirt would otherwise fill with a random value (SMBIOS uuid and
//! serial, MAC addresses) or with a default that may change between its releases (machine type,
//! architecture, secure boot).

mod attachment;
mod claim;
mod cloud_init;
mod devices;
mod features;
pub mod hotplug;
mod identity;
mod image;
mod migration;
mod placement;
mod shared_import;
pub mod types;
mod vm;
mod volume;

#[cfg(test)]
mod tests;

pub use attachment::{attachment, attachment_name, is_attachment_current};
pub use claim::claim;
pub use image::{data_volume, is_unverifiable};
pub use migration::migration;
pub use placement::{tolerations, tolerations_text};
pub use shared_import::{import_name, shared_import, source_digest};
pub use vm::{HALTED, VirtualMachineInput, virtual_machine};
pub use volume::{Volume, volumes};

/// Values of a VirtualMachine's `status.printableStatus`: `VirtualMachinePrintableStatus` in KubeVirt's
/// API v1.9. A newer KubeVirt may have more.
pub const PRINTABLE_STATUSES: [&str; 17] = [
    "Stopped",
    "Provisioning",
    "Starting",
    "Running",
    "Paused",
    "Stopping",
    "Terminating",
    "CrashLoopBackOff",
    "Migrating",
    "Unknown",
    "ErrorUnschedulable",
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrorPvcNotFound",
    "DataVolumeError",
    "WaitingForVolumeBinding",
    "WaitingForReceiver",
];
