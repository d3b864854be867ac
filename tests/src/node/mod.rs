//! A real node beside the control plane: containerd, kubelet, kube-scheduler and kube-proxy, in namespaces of the lab's
//! own.
//!
//! ```text
//! this program ──unshare──► network, mount and PID namespaces
//!                             this program again
//!                               etcd, kube-apiserver, kube-controller-manager
//!                               kube-scheduler, kube-proxy (nftables)
//!                               kubelet ──► containerd ──► pods on the bridge `lab`
//! ```
//! The kernel ends everything with the PID namespace: processes, and with them mounts, bridges, nftables tables and
//! network namespaces of pods. What it does not remove, cgroups and the folder, is removed after that; if this program is
//! killed, by the next one.

mod cgroups;
mod cluster;
mod containerd;
mod ends;
mod former_release;
mod images;
mod namespaces;
pub(crate) mod network;
mod programs;
mod requirements;

pub use cluster::Cluster;
pub use former_release::FormerRelease;
pub use images::{IMAGE, IMAGE_VERSIONS, archive};
pub use namespaces::{Output, ProcessInNamespaces, is_enclosed};
pub use network::{ADDRESS, NODES, client};
pub use programs::Node;
pub use requirements::{prepare, requirements};
