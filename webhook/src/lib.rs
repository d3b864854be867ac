//! The admission webhook of Machines.
//!
//! ```text
//!  API server ──TLS──▶ server ─▶ router ─▶ review::Request ─▶ handler ─▶ common::admission ─▶ review::Response
//!                        ▲          │                            │              │
//!              certificates      body (limits)                   └─ catalog ◀───┘
//!                                                       (watches; live reads of what they lack)
//! ```
//!
//! All rules are in `common`; this crate serves, reads the cluster and answers.
#![deny(missing_docs)]

pub mod args;
pub mod body;
pub mod catalog;
pub mod certificates;
mod crd;
mod crd_check;
pub mod handler;
mod metrics;
mod peer_shares;
pub mod review;
mod review_log;
pub mod router;
pub mod run;
pub mod server;
pub mod watch;
