//! What both programs need around the pure core: settings, logging, probes, tasks.
//!
//! ```text
//!  settings   flags and environment variables → parsed values
//!  logging    tracing → one flat JSON object per line, or text
//!  checks     named conditions → ready, or the list of conditions that are not met
//!  admin      /healthz /readyz /metrics on a separate plain HTTP port
//!  control    /version /loglevel on the same port
//!  tasks      long-running tasks with names; the end of one is an error
//!  outage     repeated failures: growing delays, one log line per failure
//!  cluster    the uid of the cluster
//!  metadata   metadata of an object, decoded without what is not kept
//!  signals    SIGTERM and SIGINT: the first shuts down gracefully, the second at once
//! ```
#![deny(missing_docs)]

pub mod admin;
pub mod checks;
pub mod cluster;
mod connection_slots;
pub mod control;
pub mod logging;
pub mod metadata;
pub mod outage;
pub mod settings;
pub mod signals;
pub mod tasks;
