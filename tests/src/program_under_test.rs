//! The programs under test, run as in a cluster: settings in the environment, the token of their own
//! ServiceAccount, and the roles that `manifests/install` grants.

use std::{
    env, fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::{fs, sync::OnceCell};

use crate::{
    http,
    libvirt::packages,
    process::{Process, Program},
    wait,
};

/// Limit of the time that a program takes to stop, in which it drains its connections.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A program of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// `machine-webhook`.
    Webhook,
    /// `machine-controller`.
    Controller,
}

impl Binary {
    /// The file name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Webhook => "machine-webhook",
            Self::Controller => "machine-controller",
        }
    }

    /// The ServiceAccount it runs as.
    pub fn account(self) -> &'static str {
        match self {
            Self::Webhook => "machine-webhook",
            Self::Controller => "kubevirt-operator-controller-manager",
        }
    }

    /// The user of its requests in the audit log.
    pub fn user(self) -> String {
        format!(
            "system:serviceaccount:{}:{}",
            crate::OPERATOR_NAMESPACE,
            self.account()
        )
    }

    /// Whether the controller is built with libvirt on this machine.
    pub async fn has_libvirt() -> Result<bool> {
        Ok(packages::headers().await?.is_ok())
    }

    /// The path of its file. It is built first, once per process, so that a test never runs an outdated program.
    pub async fn path(self) -> Result<PathBuf> {
        static FOLDER: OnceCell<PathBuf> = OnceCell::const_new();
        let folder = FOLDER.get_or_try_init(build).await?;
        Ok(folder.join(self.name()))
    }
}

/// The environment variable with the folder of the programs of the next release.
const NEXT_BUILT: &str = "LAB_NEXT_BINARIES";

/// Builds both programs with the feature `next-version`, for a caller that has just built those of this release in the
/// profile of this program. Returns the variable that passes their folder to tests, and the folder.
pub async fn next_release_built() -> Result<(&'static str, PathBuf)> {
    Ok((NEXT_BUILT, build_next(&profile_folder()?).await?))
}

/// The folder of both programs built with the feature `next-version`; built once per process.
pub(crate) async fn next_release() -> Result<PathBuf> {
    static FOLDER: OnceCell<PathBuf> = OnceCell::const_new();
    let built = async {
        if let Some(folder) = env::var_os(NEXT_BUILT) {
            return Ok(folder.into());
        }
        let program = Binary::Webhook.path().await?;
        build_next(program.parent().context("a profile's folder")?).await
    };
    FOLDER.get_or_try_init(|| built).await.cloned()
}

/// Both builds write the same files, so that those of this release, which all other tests start, are put aside
/// meanwhile. A build that fails leaves them there; the next build of this release writes them again.
async fn build_next(profile: &Path) -> Result<PathBuf> {
    let (this, next) = (profile.join("this-version"), profile.join("next-version"));
    move_programs(profile, &this).await?;
    cargo_build(
        profile,
        &["webhook/next-version", "controller/next-version"],
    )
    .await?;
    move_programs(profile, &next).await?;
    move_programs(&this, profile).await?;
    Ok(next)
}

async fn move_programs(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).await?;
    for binary in [Binary::Webhook, Binary::Controller] {
        fs::rename(from.join(binary.name()), to.join(binary.name())).await?;
    }
    Ok(())
}

/// The environment variable with the folder of programs that have just been built.
const BUILT: &str = "LAB_BINARIES";

/// The variable that passes the folder of the programs to tests, and the folder; for a caller that has just built them
/// in the profile of this program.
pub fn built_here() -> Result<(&'static str, PathBuf)> {
    Ok((BUILT, profile_folder()?))
}

/// Builds both programs in the target folder and the profile of this program.
async fn build() -> Result<PathBuf> {
    if let Some(folder) = env::var_os(BUILT) {
        return Ok(folder.into());
    }
    let profile = profile_folder()?;
    cargo_build(&profile, &[]).await?;
    Ok(profile)
}

/// The feature that needs libvirt's headers. It is off by default, so that a plain `cargo build` needs no system
/// package.
const LIBVIRT: &str = "controller/libvirt";

/// The cargo arguments for the features that can be built on this machine, and `more`.
pub async fn features(more: &[&str]) -> Result<Vec<String>> {
    let libvirt = match packages::headers().await? {
        Ok(()) => Some(LIBVIRT),
        Err(missing) => {
            eprintln!("lab: the controller is built without libvirt, because {missing}");
            None
        }
    };
    let all: Vec<&str> = libvirt.into_iter().chain(more.iter().copied()).collect();
    Ok(if all.is_empty() {
        Vec::new()
    } else {
        vec!["--features".to_owned(), all.join(",")]
    })
}

async fn cargo_build(profile: &Path, more_features: &[&str]) -> Result<()> {
    let target = profile.parent().context("a target folder")?;
    let mut command = crate::paths::cargo();
    command
        // With the features that the whole workspace enables, so that no dependency is compiled for these two alone.
        .args(["build", "--workspace", "--target-dir"])
        .arg(target)
        .args(["--bin", Binary::Webhook.name()])
        .args(["--bin", Binary::Controller.name()])
        .args(features(more_features).await?)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let status = command.status().await.context("starting cargo")?;
    ensure!(status.success(), "cargo could not build the programs");
    Ok(())
}

/// The folder that this program was started from: `target/debug` or `target/release`.
fn profile_folder() -> Result<PathBuf> {
    let executable = env::current_exe()?;
    let folder = executable.parent().context("a folder of this program")?;
    // Test binaries are in `deps`.
    let folder = match folder.file_name() {
        Some(name) if name == "deps" => folder.parent().context("a profile's folder")?,
        _ => folder,
    };
    Ok(folder.to_owned())
}

/// A running program. Dropping it kills it; if a failed test drops it, the end of its log is printed.
pub struct ProgramUnderTest {
    binary: Binary,
    program: Program,
    process: Process,
    /// Length of the log file in bytes when this run began.
    start: usize,
}

impl fmt::Debug for ProgramUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.process.fmt(f)
    }
}

impl ProgramUnderTest {
    /// Starts it and returns before it serves.
    pub(crate) fn start(binary: Binary, program: Program) -> Result<Self> {
        let process = program.start()?;
        Ok(Self {
            binary,
            program,
            process,
            start: 0,
        })
    }

    /// Which program it is.
    pub fn binary(&self) -> Binary {
        self.binary
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The log of this run.
    pub fn log(&self) -> String {
        let log = self.process.log();
        log.get(self.start..).unwrap_or_default().to_owned()
    }

    /// This run's log lines that are JSON.
    pub fn log_lines(&self) -> Vec<Value> {
        let log = self.log();
        log.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// The address in a field of its log line "serving": `listen` and `admin` of the webhook, `health` and
    /// `metrics` of the controller. Waits for that line.
    pub async fn address(&mut self, what: &str) -> Result<SocketAddr> {
        let name = self.binary.name();
        wait::until(&format!("{name} to serve"), async || {
            self.process.check_alive()?;
            let lines = self.log_lines();
            let serving = lines.iter().find(|line| line["message"] == "serving");
            let Some(serving) = serving else {
                return Ok(Err(self.process.log_tail(5)));
            };
            let address = serving[what]
                .as_str()
                .with_context(|| format!("{name} did not log its {what} address: {serving}"))?;
            Ok(Ok(address.parse()?))
        })
        .await
    }

    /// The address of health and readiness.
    pub async fn health_address(&mut self) -> Result<SocketAddr> {
        match self.binary {
            Binary::Webhook => self.address("admin").await,
            Binary::Controller => self.address("health").await,
        }
    }

    /// Waits until `/readyz` answers 200.
    pub async fn ready(&mut self) -> Result<()> {
        let address = self.health_address().await?;
        wait::until(&format!("{} to be ready", self.binary.name()), async || {
            self.process.check_alive()?;
            Ok(match http::get(address, "/readyz").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("{} {}", answer.status, answer.text())),
                Err(error) => Err(error.to_string()),
            })
        })
        .await
        .with_context(|| self.process.log_tail(20))
    }

    /// The address of metrics.
    pub async fn metrics_address(&mut self) -> Result<SocketAddr> {
        match self.binary {
            Binary::Webhook => self.address("admin").await,
            Binary::Controller => self.address("metrics").await,
        }
    }

    /// The text of `/metrics`.
    pub async fn metrics(&mut self) -> Result<String> {
        let address = self.metrics_address().await?;
        Ok(http::get(address, "/metrics").await?.text())
    }

    /// Sends SIGTERM and waits until it exits.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        self.process.terminate()?;
        self.process.wait(STOP_LIMIT).await
    }

    /// Sends SIGKILL, as if the node lost power.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again with the same settings.
    pub fn start_again(&mut self) -> Result<()> {
        self.process.kill();
        self.start = self.process.log().len();
        self.process = self.program.start()?;
        Ok(())
    }
}

impl Drop for ProgramUnderTest {
    fn drop(&mut self) {
        self.process.kill();
        if thread::panicking() {
            eprintln!(
                "--- end of the log of {} ---\n{}",
                self.binary.name(),
                self.process.log_tail(60)
            );
        }
    }
}

/// The command that starts a program in the lab.
pub(crate) fn program(path: &Path, log: &Path, kubeconfig: &Path) -> Program {
    Program::new(path, log)
        .env("KUBECONFIG", kubeconfig.display())
        .env("NAMESPACE", crate::OPERATOR_NAMESPACE)
        .env("HEALTH_PROBE_BIND_ADDRESS", "127.0.0.1:0")
        // Overrides the value from the environment of the tests.
        .env("LOG_FORMAT", "json")
}
