//! Snapshots of whole domains, each validated by libvirt's schema and compared with the XML that a real
//! libvirt returned after defining or running it.

mod differences;
mod fixtures;
mod golden;
mod host_devices;
mod limits;
mod names;
mod pinning;
mod ports;
mod preserve;
mod properties;
mod real;
mod seed;
mod watchdog;
