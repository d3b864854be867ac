//! A real control plane on this machine, and the programs that run in it.
//!
//! ```text
//!            kubectl, tests                        lab (commands)        
//!                  │                                   │
//!                  ▼                                   ▼
//! etcd ◄── kube-apiserver ──────────────────────────► Lab
//!            ▲   │   ▲                                 starts, counts, stops
//!            │   │   └── kube-controller-manager
//!   watches  │   └──────► machine-webhook      with the roles and tokens
//!            └─────────── machine-controller   of manifests/install
//!            └─────────── Simulator            replaces KubeVirt and storage
//!                         Libvirt              runs guests on QEMU
//! ```
//! Errors are [`anyhow::Error`]s: their text, which is printed by a failed test, names the condition that was waited for
//! and the last observed state.

pub mod audit;
pub mod balancer;
mod cdi;
mod command;
mod control_plane;
mod credentials;
mod debian;
pub mod dependencies;
pub mod fault_proxy;
mod folder;
pub mod http;
pub mod image;
pub mod image_server;
pub mod install;
mod kubectl;
mod lab;
pub mod layers;
pub mod libvirt;
pub mod load;
pub mod node;
pub mod objects;
pub mod pages;
pub mod paths;
mod ports;
mod prepared;
pub mod process;
mod program_under_test;
pub mod readers;
pub mod reviews;
pub mod simulator;
pub mod tables;
mod third_party;
pub mod tools;
pub mod usage;
pub mod wait;

pub use cdi::Cdi;
pub use control_plane::Network;
pub use credentials::{Caller, CallerCa, User};
pub use debian::Missing;
pub use kubectl::{Helm, Kubectl, Output};
pub use lab::{CALLER, Lab, Options, WEBHOOK_CONFIGURATION};
pub use program_under_test::{Binary, ProgramUnderTest, built_here, features, next_release_built};
pub use simulator::{Admission, Eviction, Scenario, Simulator, Subresources};
pub use third_party::{KubevirtCrds, storage_class, thin_crd};

/// The namespace of the webhook and the controller.
pub const OPERATOR_NAMESPACE: &str = "kubevirt-operator-system";

/// Reports that a test cannot do its work on this machine; the test returns right after. `cargo lab test` lists
/// it as skipped with this reason, and does not count it as passed. Tests of crates below the lab print the same
/// line themselves.
pub fn skip(reason: impl std::fmt::Display) {
    // The test runner hides the output of tests that pass; `lab test` requests and reads it.
    eprintln!("skipped: {reason}");
}
