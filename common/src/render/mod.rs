//! The objects of a backend for a normalized Machine: pure functions from the block to objects.
//!
//! `identity` and `cloud_init` serve both backends; neither backend uses the other's modules.

mod cloud_init;
mod identity;
pub mod kubevirt;
pub mod libvirt;

pub use cloud_init::{CloudInitPlan, Mark, Reading, SecretKey, Source};
pub use identity::{Identity, digest};
