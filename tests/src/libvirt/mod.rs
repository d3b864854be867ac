//! A real libvirtd with real QEMU guests, separate from the libvirt of this machine.
//!
//! ```text
//! Libvirt                                  everything in namespaces of its own (mount, network, processes)
//!   ├ holder ── mounts /etc/libvirt, /run/libvirt, … from the lab's folder; dropping it ends all below
//!   ├ libvirtd ─┬ dnsmasq               networks `default` and `second`
//!   │           └ qemu ── serial ──┐
//!   └ in its mounts: virsh, machine-controller  ── qemu:///system is this libvirtd
//!                                  └──► Report   the state that the tiny guest reports every second (tests/guest)
//! ```
//! Nothing of the machine's own libvirt is read or changed, so it may run meanwhile, and a daemon of the lab may
//! be killed, stopped and started again by any test. A guest cannot outlive the lab, however that ends.

mod daemon;
mod guest;
pub mod packages;
mod tls;
mod volume_monitor;

pub use daemon::{Libvirt, NETWORKS};
pub use guest::{Nic, Report, image};
pub use tls::TlsServer;
pub use volume_monitor::VolumeMonitor;
