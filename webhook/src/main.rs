//! The admission webhook of Machines.

use std::process::ExitCode;

use runtime::tasks::chain;
use runtime::{logging, settings};
use webhook::args::Args;

#[tokio::main]
async fn main() -> ExitCode {
    // The client's TLS takes the process-wide provider; there is one for everything.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        return ExitCode::FAILURE;
    }
    let args: Args = settings::parse_or_exit();
    let log = logging::init(args.log_format, args.log_level);
    match webhook::run::run(args, log).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = chain(error.as_ref()), "stopped");
            ExitCode::FAILURE
        }
    }
}
