//! A real libvirtd with real QEMU guests, separate from the libvirt of this machine.
//!
//! ```text
//! Libvirt                                  everything in namespaces of its own (mount, network, processes)
//!   ├ holder ── mounts /etc/libvirt, /run/libvirt, … from the lab's folder; dropped, all below ends
//!   ├ libvirtd ─┬ dnsmasq               networks `default` and `second`
//!   │           └ qemu ── serial ──┐
//!   └ in its mounts: virsh, machine-controller  ── qemu:///system is this one
//!                                  └──► Report   what the tiny guest sees, once a second (tests/guest)
//! ```
//! Nothing of the machine's own libvirt is read or changed, so it may run meanwhile, and a daemon of the lab may
//! be killed, stopped and started again by any test. A guest cannot outlive the lab, however that ends.

mod daemon;
mod guest;
pub mod packages;

pub use daemon::{Libvirt, NETWORKS};
pub use guest::{Nic, Report, image};
