//! The admission webhook of Machines.

use std::process::ExitCode;

use runtime::tasks::chain;
use runtime::{logging, settings};

#[tokio::main]
async fn main() -> ExitCode {
    let args: webhook::args::Args = settings::parse_or_exit();
    let log = logging::init(args.log_format, args.log_level);
    match webhook::run::run(args, log).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = chain(error.as_ref()), "stopped");
            ExitCode::FAILURE
        }
    }
}
