//! What a normalized Machine becomes on KubeVirt.
//!
//! ```text
//!  block ─────────┬─▶ claim            one per disk, no owner: deletion has an order
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
pub mod types;
mod vm;

#[cfg(test)]
mod tests;

pub use attachment::{attachment, attachment_name};
pub use claim::claim;
pub use cloud_init::{CloudInitPlan, SecretKey, Source};
pub use identity::{Identity, digest};
pub use vm::{Guest, virtual_machine};
