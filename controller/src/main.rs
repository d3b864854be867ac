//! `machine-controller`: makes of normalized Machines what KubeVirt runs.
//!
//! ```text
//! watches ──▶ caches ──────┐
//!    └─ triggers ─▶ queue ─▶ reconcile: observe → plan → apply → status
//! Lease ──▶ permit ────────┘   (every write)
//! ```
//! The watches run on every replica; the queue only on the one that holds the Lease.

mod addresses;
mod api;
mod args;
mod backend;
mod cache;
mod controller;
mod data_volume;
mod events;
#[cfg(test)]
mod fixtures;
mod kubevirt;
mod leader;
mod libvirt;
mod machine;
mod memory;
mod metrics;
mod neighbours;
mod networks;
mod objects;
mod packed;
#[cfg(test)]
mod page;
mod plan;
mod reconcile;
mod secrets;
mod status;
mod turns;
mod watch;

use std::process::ExitCode;

use runtime::{logging, settings, tasks::chain};

use crate::args::Args;

fn main() -> ExitCode {
    // One crypto provider for the process, chosen before anything can ask for one.
    let fresh = rustls::crypto::ring::default_provider().install_default();
    let args: Args = settings::parse_or_exit();
    let log = logging::init(args.log_format, args.log_level);
    if fresh.is_err() {
        tracing::debug!("a crypto provider was chosen before");
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "no runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(controller::run(args, log)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = chain(&error), "machine-controller ends");
            match error {
                controller::RunError::Settings { .. } => ExitCode::from(settings::EXIT_USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
