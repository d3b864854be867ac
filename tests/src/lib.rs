//! A real control plane on this machine, and everything that plays in it.
//!
//! ```text
//!            kubectl, tests                        lab (verbs for people)
//!                  │                                   │
//!                  ▼                                   ▼
//! etcd ◄── kube-apiserver ──────────────────────────► Lab
//!            ▲   │   ▲                                 starts, counts, ends
//!            │   │   └── kube-controller-manager
//!   watches  │   └──────► machine-webhook      as shipped, with the roles
//!            └─────────── machine-controller   and tokens they ship with
//!            └─────────── Simulator            plays KubeVirt and storage
//!                         Libvirt              really runs guests
//! ```
//! Errors here are read by people who look at a failed test: they are
//! [`anyhow::Error`]s whose text says what was waited for and what was seen.

pub mod audit;
pub mod balancer;
mod cdi;
mod control_plane;
mod credentials;
pub mod dependencies;
mod folder;
mod foreign;
pub mod http;
pub mod install;
mod kubectl;
mod lab;
pub mod layers;
pub mod libvirt;
pub mod objects;
pub mod pages;
pub mod paths;
mod ports;
pub mod process;
pub mod reviews;
pub mod saboteur;
mod shipped;
pub mod simulator;
pub mod tables;
pub mod tools;
pub mod usage;
pub mod wait;

pub use cdi::Cdi;
pub use credentials::{Caller, CallerCa, User};
pub use foreign::{KubevirtCrds, storage_class, thin_crd};
pub use kubectl::{Helm, Kubectl, Output};
pub use lab::{CALLER, Lab, Options, WEBHOOK_CONFIGURATION};
pub use shipped::{Binary, Shipped, built_here, features, next_release_built};
pub use simulator::{Script, Simulator};

/// Where the product is installed.
pub const OPERATOR_NAMESPACE: &str = "kubevirt-operator-system";

/// Reports that a test cannot do its work on this machine; the test returns right after. `cargo lab test` lists
/// it as skipped with this reason, and does not count it as passed.
pub fn skip(reason: impl std::fmt::Display) {
    // The test runner keeps what a test prints; `lab test` asks for it and reads it.
    eprintln!("skipped: {reason}");
}
