//! The implementation of each verb.

pub(crate) mod bench;
mod cluster;
pub(crate) mod demo;
pub(crate) mod fuzz;
pub(crate) mod generate;
pub(crate) mod guest;
pub(crate) mod image;
pub(crate) mod licenses;
pub(crate) mod lint;
pub(crate) mod sbom;
pub(crate) mod test;
pub(crate) mod up;

use std::{
    ffi::OsStr,
    fmt::Display,
    io::{Write as _, stdout},
    iter,
    path::Path,
    process::{ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use lab::paths;
use tokio::process::Command;

/// Writes a line to standard output.
fn say(line: impl Display) {
    // The verb continues if the reader of the pipe has ended.
    let _ = writeln!(stdout(), "{line}");
}

/// Announces a step on standard error before it starts.
fn step(what: &str) {
    eprintln!("lab: {what}");
}

/// A command in the root of the repository that writes to this terminal; ended with the verb.
fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(paths::repository())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// The cargo that runs this program, in the root of the repository; ended with the verb.
fn cargo() -> Command {
    let mut cargo = paths::cargo();
    cargo.stdin(Stdio::null()).kill_on_drop(true);
    cargo
}

async fn status(command: &mut Command) -> Result<ExitStatus> {
    let shown = shown(command);
    command
        .status()
        .await
        .with_context(|| format!("starting {shown}"))
}

async fn succeed(command: &mut Command) -> Result<()> {
    let status = status(command).await?;
    ensure!(status.success(), "{}: {status}", shown(command));
    Ok(())
}

/// A command as a user types it in the root of the repository.
fn shown(command: &Command) -> String {
    let command = command.as_std();
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words: Vec<_> = iter::once(name)
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    words.join(" ")
}
