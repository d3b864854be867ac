//! Checks that the licences of all dependencies of the programs are allowed.

use std::process::ExitCode;

use anyhow::Result;
use lab::dependencies;

use super::say;

pub(crate) async fn run() -> Result<ExitCode> {
    let refused = dependencies::refused().await?;
    if refused.is_empty() {
        let count = dependencies::of_the_programs().await?.len();
        say(format!("{count} crates, all with a licence of deny.toml"));
        say(
            "to check for known vulnerabilities, which needs the advisory database: cargo deny check advisories",
        );
        return Ok(ExitCode::SUCCESS);
    }
    for line in refused {
        say(line);
    }
    Ok(ExitCode::FAILURE)
}
