//! Runs kubectl and Helm as a user does, with a home folder of their own: their caches have no data of other
//! clusters.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, process::Command, time::timeout};

use crate::{paths, wait};

/// Timeout of a command: longer than any command of a test or of a page waits itself, of which the longest is 15 minutes.
const LIMIT: Duration = Duration::from_mins(20);

/// The exit code and the output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit code; -1 when a signal ended it.
    pub code: i32,
    pub stdout: String,
    /// Errors and warnings.
    pub stderr: String,
}

impl Output {
    /// The standard output of a command that succeeded; an error if it failed.
    pub fn ok(self) -> Result<String> {
        if self.code != 0 {
            bail!("{self}");
        }
        Ok(self.stdout)
    }

    /// The standard error of a command that failed; an error if it succeeded.
    pub fn refused(self) -> Result<String> {
        if self.code == 0 {
            bail!("expected a refusal, got {self}");
        }
        Ok(self.stderr)
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}\n{}{}", self.code, self.stdout, self.stderr)
    }
}

/// End of a refusal after a live read that took longer than the webhook waits.
pub(crate) const NOT_READ_IN_TIME: &str = "was not read from the API server in time; try again";

/// kubectl as one user.
#[derive(Debug, Clone)]
pub struct Kubectl {
    path: PathBuf,
    home: PathBuf,
    kubeconfig: PathBuf,
    editor: Option<String>,
}

impl Kubectl {
    pub(crate) fn new(path: &Path, home: PathBuf, kubeconfig: PathBuf) -> Self {
        Self {
            path: path.to_owned(),
            home,
            kubeconfig,
            editor: None,
        }
    }

    /// Sets the editor of `kubectl edit`; the file to edit is its last argument.
    #[must_use]
    pub fn edited_by(mut self, command: String) -> Self {
        self.editor = Some(command);
        self
    }

    /// Runs it with these arguments.
    pub async fn run(&self, arguments: &[&str]) -> Result<Output> {
        self.run_with(arguments, "").await
    }

    /// Runs a shell command in the repository, with kubectl and the programs `more` on its `PATH`.
    pub async fn shell(&self, command: &str, more: &[&Path]) -> Result<Output> {
        let programs = more.iter().copied().chain([self.path.as_path()]);
        let folders = programs.filter_map(Path::parent).map(Path::to_owned);
        let path = env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = folders.chain(env::split_paths(&path)).collect();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .current_dir(paths::repository())
            .env("PATH", env::join_paths(folders)?);
        self.output(shell, command, "").await
    }

    /// Runs it with these arguments and a text on its standard input. Again, as users would, if the webhook could not read
    /// an object in time: on processors that are busy with several suites that says nothing of the object.
    pub async fn run_with(&self, arguments: &[&str], input: impl AsRef<[u8]>) -> Result<Output> {
        let what = format!("{} {}", self.path.display(), arguments.join(" "));
        wait::until(&format!("an answer to {what}"), async || {
            let mut command = Command::new(&self.path);
            command.args(arguments);
            let output = self.output(command, &what, input.as_ref()).await?;
            let is_late = output.code != 0 && output.stderr.contains(NOT_READ_IN_TIME);
            Ok(if is_late { Err(output) } else { Ok(output) })
        })
        .await
    }

    /// `kubectl apply` of an object.
    pub async fn apply(&self, object: &Value) -> Result<Output> {
        let input = object.to_string();
        self.run_with(&["apply", "-f", "-"], input).await
    }

    async fn output(
        &self,
        mut command: Command,
        what: &str,
        input: impl AsRef<[u8]>,
    ) -> Result<Output> {
        let mut child = command
            .env("HOME", &self.home)
            .env("KUBECONFIG", &self.kubeconfig)
            .envs(self.editor.iter().map(|editor| ("KUBE_EDITOR", editor)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {what}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // Fails if the command does not read its input.
            let _ = stdin.write_all(input.as_ref()).await;
        }
        let output = timeout(LIMIT, child.wait_with_output())
            .await
            .with_context(|| format!("{what} did not end"))??;
        Ok(Output {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// Helm as the admin.
#[derive(Debug, Clone)]
pub struct Helm(Kubectl);

impl Helm {
    pub(crate) fn new(path: &Path, home: PathBuf, kubeconfig: PathBuf) -> Self {
        Self(Kubectl::new(path, home, kubeconfig))
    }

    /// Runs it with these arguments.
    pub async fn run(&self, arguments: &[&str]) -> Result<Output> {
        self.0.run(arguments).await
    }

    /// The path of the program.
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}
