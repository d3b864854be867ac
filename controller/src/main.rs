//! `machine-controller`: reconciles normalized Machines into KubeVirt's VirtualMachines and libvirt domains.
//!
//! This is the composition root: it starts the watches, the Lease and the backends, and passes them to
//! `controller_core::reconcile`.

mod args;
mod run;

use std::process::ExitCode;

use runtime::{logging, settings, tasks::chain};

use crate::args::Args;

/// A fleet's objects are many small allocations of different ages, among which the C library's allocator searches
/// longer the more there are (`docs/performance.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // rustls needs one crypto provider per process, installed before the first TLS configuration is built.
    let fresh = rustls::crypto::ring::default_provider().install_default();
    let args: Args = settings::parse_or_exit();
    let log = logging::init(args.log_format, args.log_level);
    if fresh.is_err() {
        tracing::debug!("a crypto provider was installed before");
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "the tokio runtime could not be started");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run::run(args, log)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = chain(&error), "machine-controller ends");
            match error {
                run::RunError::Settings { .. } => ExitCode::from(settings::EXIT_USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
