//! Commands that end by themselves.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

/// What a command prints. If it fails, the error has its command line and what it wrote to its standard error.
pub(crate) async fn stdout(command: &mut Command) -> Result<Vec<u8>> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let line = command.as_std();
    let words = [line.get_program()].into_iter().chain(line.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let line = words.join(" ");
    let output = command
        .output()
        .await
        .with_context(|| format!("starting {line}"))?;
    ensure!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_that_fails_is_named_with_its_standard_error() {
        let mut command = Command::new("sh");
        let failed = stdout(command.args(["-c", "echo why >&2; exit 3"])).await;
        let error = failed.unwrap_err().to_string();
        assert_eq!(error, "sh -c echo why >&2; exit 3: why");
        let printed = stdout(Command::new("echo").arg("it")).await.unwrap();
        assert_eq!(printed, b"it\n");
    }
}
