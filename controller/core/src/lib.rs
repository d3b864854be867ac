//! The life of a Machine, the same for every backend.
//!
//! ```text
//! watches ──▶ caches ───────┐
//!    └─ triggers ─▶ queue ──▶ reconcile: observe → plan → apply → status
//! Lease ──▶ guard ──────────┘   (every write)          ▲
//!                                                      │ trait Backend
//!                                    controller-kubevirt, controller-libvirt
//! ```
//! [`backend`] is what a backend implements, [`reconcile`] the steps of a reconcile. No crate of a backend is
//! used here; what the caches keep of a block for one backend alone is in [`machine`]: `HostBinding`, `KubevirtNeeds`.
//!
//! From the ground: `objects → cache → machine → secrets, address_index, machine_index, addresses → caches → network_usage → triggers → watch`.

#![deny(missing_docs)]

pub mod address_index;
pub mod addresses;
#[cfg(any(test, feature = "fixtures"))]
pub mod api_server;
pub mod backend;
pub mod cache;
pub mod caches;
pub mod client;
pub mod conditions;
pub mod deletion;
#[cfg(any(test, feature = "fixtures"))]
pub mod documented_reasons;
pub mod errors;
pub mod events;
pub mod expectations;
#[cfg(any(test, feature = "fixtures"))]
#[allow(
    clippy::unwrap_used,
    reason = "a fixture that does not decode fails its test"
)]
pub mod fixtures;
pub mod foreign_stop;
pub mod held_addresses;
#[cfg(any(test, feature = "fixtures"))]
#[allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a law that does not hold panics, as a test does"
)]
pub mod laws;
pub mod lease;
pub mod machine;
pub mod machine_addresses;
pub mod machine_index;
pub mod metrics;
pub mod migration;
pub mod missing_guest;
pub mod network_usage;
pub mod objects;
pub mod plan;
pub mod preconditions;
pub mod queue;
pub mod quota;
mod random;
pub mod readiness;
pub mod ready;
pub mod reconcile;
pub mod refusal;
pub mod reset;
pub mod restart;
pub mod secrets;
pub mod status;
pub mod triggers;
mod unobserved;
pub mod watch;
pub mod writes;
