//! The admission webhook of Machines.
//!
//! ```text
//!  API server ──TLS──▶ server ─▶ handler ─▶ review (envelope) ─▶ common::admission ─▶ answer
//!                        ▲          │                                  ▲
//!              certificates      body (limits)                      catalog ◀─ watches
//! ```
//!
//! Everything that knows a rule is in `common`; this crate serves, looks up and answers.
#![deny(missing_docs)]

pub mod args;
pub mod body;
pub mod catalog;
pub mod certificates;
pub mod handler;
pub mod lookup;
pub mod metrics;
pub mod review;
pub mod run;
pub mod schema;
pub mod server;
mod timed;
pub mod watch;
