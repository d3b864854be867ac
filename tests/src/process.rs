//! Child processes that cannot outlive this one.
//!
//! ```text
//! spawner thread ──fork──► setpriv --pdeathsig KILL ──exec──► program (own process group)
//! ```
//! A dropped value kills its process and waits for it. Ctrl-C in a terminal
//! signals the foreground group only, which the children are not part of: they
//! end in the order of the drops. If this process is killed, the kernel kills
//! the children.
//!
//! The kernel's signal follows the *thread* that forked, not the process.
//! A test's thread ends with the test, a blocking thread after some idle
//! seconds; so everything is forked by one thread that never ends.

use std::{
    env,
    ffi::OsString,
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        OnceLock,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::time::sleep;

use crate::wait::Deadline;

/// Interval of checks whether a process has ended. Only polling works in both an
/// async wait and a drop.
const POLL: Duration = Duration::from_millis(10);

/// A program with its arguments, environment and log file.
#[derive(Debug)]
pub struct Program {
    name: String,
    path: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
    mounts: Option<u32>,
    is_shown: bool,
}

impl Program {
    /// A program whose output goes to the file `log` (appended).
    pub fn new(path: &Path, log: &Path) -> Self {
        Self {
            name: path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            path: path.to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            log: log.to_owned(),
            mounts: None,
            is_shown: false,
        }
    }

    /// Lets its output go where that of this process goes, instead of to the log.
    #[must_use]
    pub(crate) fn shown(mut self) -> Self {
        self.is_shown = true;
        self
    }

    /// Starts it in the mount namespace of the process with this id.
    #[must_use]
    pub(crate) fn in_mounts_of(mut self, id: u32) -> Self {
        self.mounts = Some(id);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets one variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// Starts the program.
    pub fn start(&self) -> Result<Process> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("opening {}", self.log.display()))?;
        let mut words: Vec<OsString> = Vec::new();
        if let Some(setpriv) = setpriv() {
            words.push(setpriv.into());
            words.extend(["--pdeathsig", "KILL", "--"].map(Into::into));
        }
        if let Some(id) = self.mounts {
            // nsenter executes the program without a new process.
            words.extend([
                "nsenter".into(),
                format!("--mount=/proc/{id}/ns/mnt").into(),
            ]);
        }
        words.push(self.path.clone().into());
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if self.is_shown {
            command.stdout(Stdio::inherit()).stderr(Stdio::inherit());
        }
        own_group(&mut command);
        let child = fork(command).with_context(|| format!("starting {}", self.path.display()))?;
        Ok(Process {
            name: self.name.clone(),
            child,
            log: self.log.clone(),
        })
    }
}

/// A running program. Dropping it kills it and waits until it is gone.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.child.id())
    }
}

impl Process {
    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// An error with the end of its log if it has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} ended: {status}\n{}", self.name, self.log_tail(20));
        }
        Ok(())
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) -> Result<()> {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("an invalid process id")?;
        kill_process(pid, Signal::TERM).with_context(|| format!("ending {self:?}"))
    }

    /// Waits until it exits, for at most `limit`.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Deadline::after(limit);
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if deadline.passed() {
                bail!(
                    "{self:?} did not end within {limit:?}\n{}",
                    self.log_tail(20)
                );
            }
            sleep(POLL).await;
        }
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only if the exit status of the process has already been collected.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What tells whether it has ended, without borrowing it.
    pub(crate) fn watched(&self) -> Watched {
        Watched {
            id: i32::try_from(self.child.id()).ok().and_then(Pid::from_raw),
            name: self.name.clone(),
            log: self.log.clone(),
        }
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        read_log(&self.log)
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        last_lines(&self.log(), lines)
    }
}

/// A child process that somebody else owns.
#[derive(Debug)]
pub(crate) struct Watched {
    id: Option<Pid>,
    name: String,
    log: PathBuf,
}

impl Watched {
    /// A text with the end of its log if it has ended. Leaves the exit status to be collected.
    pub(crate) fn ended(&self) -> Option<String> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let runs = |id| matches!(waitid(WaitId::Pid(id), options), Ok(None));
        if self.id.is_some_and(runs) {
            return None;
        }
        let log = last_lines(&read_log(&self.log), 20);
        Some(format!("{} has ended\n{log}", self.name))
    }
}

fn read_log(file: &Path) -> String {
    // A byte that is not UTF-8 must not hide the remainder of a log.
    fs::read(file).map_or_else(
        |error| format!("({}: {error})", file.display()),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The path of `setpriv` of util-linux. Without it, children survive a kill -9 of this process.
fn setpriv() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            env::split_paths(&env::var_os("PATH")?)
                .map(|folder| folder.join("setpriv"))
                .find(|path| path.is_file())
        })
        .as_deref()
}

#[cfg(unix)]
fn own_group(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    command.process_group(0);
}

#[cfg(not(unix))]
fn own_group(_: &mut Command) {}

type Job = (Command, Sender<std::io::Result<Child>>);

fn fork(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs): (Sender<Job>, Receiver<Job>) = channel();
        thread::spawn(move || {
            for (mut command, answer) in jobs {
                // Fails only if the receiver is gone, which cannot happen while `fork` waits for it below.
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (answer, child) = channel();
    spawner
        .send((command, answer))
        .map_err(|_| anyhow!("the spawner thread has ended"))?;
    Ok(child.recv().context("the spawner thread has ended")??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;

    fn gone(id: u32) -> bool {
        // A process whose exit status was collected has no entry; a zombie still has one.
        !Path::new(&format!("/proc/{id}")).exists()
    }

    fn sleeper(folder: &Path) -> Process {
        Program::new(Path::new("/bin/sleep"), &folder.join("log"))
            .args(["600"])
            .start()
            .unwrap()
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let process = sleeper(folder.path());
        let id = process.id();
        assert!(!gone(id));
        drop(process);
        assert!(gone(id));
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_noticed_and_its_exit_status_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = sleeper(folder.path());
        let watched = process.watched();
        fs::write(folder.path().join("log"), "its last words").unwrap();
        assert_eq!(watched.ended(), None);
        process.terminate().unwrap();
        let text = wait::until("the process to end", async || Ok(watched.ended().ok_or(())));
        assert_eq!(text.await.unwrap(), "sleep has ended\nits last words");
        assert_eq!(process.ended().unwrap().map(|it| it.success()), Some(false));
    }

    #[test]
    fn a_process_is_gone_after_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, receiver) = channel();
        let path = folder.path().to_owned();
        let outcome = thread::spawn(move || {
            let process = sleeper(&path);
            sender.send(process.id()).unwrap();
            panic!("on purpose");
        })
        .join();
        assert!(outcome.is_err());
        assert!(gone(receiver.recv().unwrap()));
    }

    #[test]
    fn a_process_outlives_the_thread_that_started_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mut process = thread::spawn(move || sleeper(&path)).join().unwrap();
        process.check_alive().unwrap();
    }

    #[tokio::test]
    async fn the_error_for_an_ended_process_contains_the_end_of_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = Program::new(Path::new("/bin/sh"), &folder.path().join("log"))
            .args(["-c", "echo the reason; exit 3"])
            .start()
            .unwrap();
        let status = process.wait(Duration::from_secs(5)).await.unwrap();
        assert_eq!(status.code(), Some(3));
        let error = process.check_alive().unwrap_err().to_string();
        assert!(error.ends_with("the reason"), "{error}");
    }
}
