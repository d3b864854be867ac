//! The life of a Machine, whatever runs it.
//!
//! ```text
//! watches ──▶ caches ───────┐
//!    └─ triggers ─▶ queue ──▶ reconcile: observe → plan → apply → status
//! Lease ──▶ guard ──────────┘   (every write)          ▲
//!                                                      │ trait Backend
//!                                    controller-kubevirt, controller-libvirt
//! ```
//! `backend` is what a backend implements, `reconcile` the way of a reconcile. Nothing here knows a backend.

pub mod address_index;
pub mod addresses;
pub mod backend;
pub mod cache;
pub mod client;
pub mod deletion;
pub mod events;
pub mod expectations;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(any(test, feature = "fixtures"))]
#[allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a law that does not hold panics, as a test does"
)]
pub mod laws;
pub mod lease;
pub mod machine;
pub mod metrics;
pub mod network_usage;
pub mod objects;
#[cfg(any(test, feature = "fixtures"))]
pub mod page;
pub mod plan;
pub mod preconditions;
pub mod queue;
pub mod reconcile;
pub mod secrets;
pub mod status;
pub mod watch;
pub mod writes;
