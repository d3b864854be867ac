//! What a normalized Machine becomes on a backend: pure functions from the block to objects.

pub mod kubevirt;
pub mod libvirt;
