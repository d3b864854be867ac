//! What both programs need around the pure core.
//!
//! ```text
//!  settings   flags and environment → values that cannot be wrong (pure)
//!  logging    tracing → one flat JSON object per line, or text for people
//!  checks     named conditions → "ready", or the list of what is missing
//!  admin      /healthz /readyz /metrics on a plain HTTP port of their own
//!  control    /version /loglevel, beside them
//!  tasks      every task has a name and an owner; an unexpected end is an error
//!  trouble    what fails again and again: growing pauses, one word about each
//!  cluster    which cluster this is
//!  signals    first SIGTERM/SIGINT: end gracefully; the second: now
//! ```
#![deny(missing_docs)]

pub mod admin;
pub mod checks;
pub mod cluster;
pub mod control;
pub mod logging;
pub mod settings;
pub mod signals;
pub mod tasks;
pub mod trouble;
