//! Pure functions from a normalized Machine to the objects of a backend.
//!
//! `identity` and `cloud_init` serve both backends; neither backend uses the other's modules.

mod cloud_init;
mod identity;
mod json_yaml;
pub mod kubevirt;
pub mod libvirt;
mod network_config;

pub use cloud_init::{
    CloudInitPlan, SecretKey, SecretRevision, SecretValue, Source, cloud_config_text,
    network_config_text,
};
pub use identity::{Identity, digest};
pub use network_config::{CardAddress, CardConfig, network_config};

/// Attempts to take a spin lock before a Windows guest notifies the hypervisor. Microsoft recommends
/// this number, and QEMU and KubeVirt use it.
pub(crate) const SPINLOCK_RETRIES: u32 = 8191;
