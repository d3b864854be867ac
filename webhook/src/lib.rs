//! The admission webhook of Machines.
//!
//! ```text
//!  API server ──TLS──▶ server ─▶ router ─▶ review (envelope) ─▶ handler ─▶ common::admission ─▶ answer
//!                        ▲          │                                           ▲
//!              certificates      body (limits)                   lookup ─▶ catalog ◀─ watches
//! ```
//!
//! Everything that knows a rule is in `common`; this crate serves, looks up and answers.
#![deny(missing_docs)]

pub mod answer;
pub mod args;
pub mod body;
pub mod catalog;
pub mod certificates;
pub mod handler;
pub mod lookup;
pub mod metrics;
pub mod places;
mod report;
pub mod review;
pub mod router;
pub mod run;
pub mod schema;
pub mod server;
pub mod sharing;
mod timed;
pub mod watch;
