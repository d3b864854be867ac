//! Hosts that run libvirt.

pub(crate) mod access;
