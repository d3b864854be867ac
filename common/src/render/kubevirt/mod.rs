//! What a normalized Machine becomes on KubeVirt.
//!
//! ```text
//!  block ─────────┬─▶ claim            one per volume, no owner: deletion has an order
//!     └─ image ───┼─▶ DataVolume       of CDI, which makes the claim
//!  cloudInit ─────┼─▶ Secret           only what cannot be inline or referred to
//!  NetworkConf. ──┼─▶ attachment       owned by the NetworkConfiguration
//!  identity ──────┴─▶ VirtualMachine   refers to all of these by name
//! ```
//!
//! Pure: the same input gives the same bytes, so an unchanged Machine is never written. Whatever
//! KubeVirt would fill with a random value (SMBIOS uuid and serial, MACs) or with a default that
//! may move (machine type, architecture, secure boot) is written here.

mod attachment;
mod claim;
mod cloud_init;
mod devices;
mod features;
mod identity;
mod image;
pub mod types;
mod vm;
mod volume;

#[cfg(test)]
mod tests;

pub use attachment::{attachment, attachment_name};
pub use claim::claim;
pub use image::{data_volume, is_unverifiable};
pub use vm::{Guest, virtual_machine};
pub use volume::{Volume, volumes};

/// The words KubeVirt has for the state of a VirtualMachine: `VirtualMachinePrintableStatus` of its
/// API (v1.9). A newer KubeVirt may have more.
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
