//! Suites: the test binaries that `cargo test` would run.

use std::{
    collections::BTreeMap,
    env, fs,
    fs::OpenOptions,
    io::{PipeReader, Write as _},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lab::{built_here, paths, usage::processor_time_of_all};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::unix::pipe::Receiver,
    process::{Child, Command},
    time::timeout,
};

use super::{
    super::{cargo, say},
    output::{Finished, PassedOutput, SHOW_OUTPUT},
};

/// The hidden verb that cargo runs instead of the suites, to find out which ones it selects.
const RECORD: &str = "record-suite";

/// Limit of waiting for output after a suite has ended: a process that it started may keep the pipe open.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// How cargo would run one test binary.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Suite {
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    /// The variables that cargo sets for it.
    environment: BTreeMap<String, String>,
}

/// The suites that `cargo test` selects with these arguments, and the result of the documentation tests, which it runs;
/// `None` after the output of a failure.
///
/// Cargo itself reads the arguments: it runs a recorder in place of every test binary.
pub(super) async fn selected(
    features: &[String],
    arguments: &[String],
) -> Result<Option<(Vec<Suite>, Finished)>> {
    let record = tempfile::NamedTempFile::new()?;
    // Not the executable of this process, because the build may have replaced it.
    let (_, programs) = built_here()?;
    let words = json!([programs.join("lab"), RECORD, record.path()]);
    let runner = format!("target.\"cfg(all())\".runner={words}");
    let mut test = cargo();
    test.args(["test", "--workspace", "--config", &runner])
        .args(features)
        .args(arguments);
    let start = Instant::now();
    let output = test.output().await.context("starting cargo test")?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        say(stdout + &String::from_utf8_lossy(&output.stderr));
        return Ok(None);
    }
    let lines = fs::read_to_string(record.path())?;
    let suites = lines.lines().map(serde_json::from_str);
    let documentation = Finished {
        title: "documentation".to_owned(),
        output: stdout,
        succeeded: true,
        took: start.elapsed(),
        processor: None,
        live: false,
        hidden: PassedOutput::new(&[]),
    };
    Ok(Some((suites.collect::<Result<_, _>>()?, documentation)))
}

/// Appends the command of a suite as one line to a file. Documentation tests are run at once, because rustdoc removes
/// their programs when this ends.
pub(crate) fn record(file: &Path, command: Vec<String>) -> Result<ExitCode> {
    let mut words = command.into_iter();
    let program = PathBuf::from(words.next().context("no program to record")?);
    if program
        .parent()
        .is_none_or(|folder| !folder.ends_with("deps"))
    {
        let status = std::process::Command::new(program).args(words).status()?;
        return Ok(ExitCode::from(u8::from(!status.success())));
    }
    let by_cargo = |name: &str| name.starts_with("CARGO") || name.ends_with("LIBRARY_PATH");
    let suite = Suite {
        program,
        arguments: words.collect(),
        folder: env::current_dir()?,
        environment: env::vars().filter(|(name, _)| by_cargo(name)).collect(),
    };
    let line = serde_json::to_string(&suite)? + "\n";
    let mut file = OpenOptions::new().append(true).open(file)?;
    file.write_all(line.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

impl Suite {
    /// The name of the test file or crate: the binary's name without the hash that cargo appends.
    pub(super) fn name(&self) -> &str {
        let stem = self.program.file_stem().and_then(|stem| stem.to_str());
        let stem = stem.unwrap_or_default();
        stem.rsplit_once('-').map_or(stem, |(name, _)| name)
    }

    /// Runs it with the command `behind` as a prefix. Its output is collected, and also shown at once if `live` is true.
    pub(super) async fn run(
        &self,
        behind: &[String],
        environment: &[(&str, PathBuf)],
        live: bool,
    ) -> Result<Finished> {
        let start = Instant::now();
        let (reader, writer) = std::io::pipe()?;
        let mut command = self.command(behind);
        command
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", self.name()))?;
        // The command holds the writing end of the pipe; the output ends when that is closed.
        drop(command);
        let hidden = PassedOutput::new(&self.arguments);
        let ended = collected(child, reader, live.then_some(hidden)).await?;
        let folder = self.folder.strip_prefix(paths::repository());
        let folder = folder.unwrap_or(&self.folder).display();
        Ok(Finished {
            title: format!("{folder} {}", self.name()),
            output: ended.output,
            succeeded: ended.succeeded,
            took: start.elapsed(),
            processor: Some(ended.processor),
            live,
            hidden,
        })
    }

    fn command(&self, behind: &[String]) -> Command {
        let mut words = behind.iter();
        let mut command = if let Some(first) = words.next() {
            let mut command = Command::new(first);
            // Without it, nsenter changes to the root folder.
            let here = format!("--wdns={}", self.folder.display());
            command.args(words).arg(here).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        command.args(&self.arguments);
        if !self.arguments.iter().any(|it| it == SHOW_OUTPUT) {
            // The output contains the reasons of skipped tests.
            command.arg(SHOW_OUTPUT);
        }
        command.current_dir(&self.folder).envs(&self.environment);
        command
    }
}

/// A command that has ended.
struct Ended {
    succeeded: bool,
    /// Its whole output.
    output: String,
    processor: Duration,
}

/// Waits until a process has ended, and leaves it to be waited for: until then `/proc` has its processor time.
async fn processor_time_at_end(process: Option<u32>) -> Result<Duration> {
    let id = process.context("the command was waited for")?;
    let pid = Pid::from_raw(i32::try_from(id)?).context("a process id")?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    tokio::task::spawn_blocking(move || waitid(WaitId::Pid(pid), options)).await??;
    processor_time_of_all(id)
}

/// Waits until a command and its output have ended. Lines are shown at once if `live` is given.
async fn collected(
    mut child: Child,
    output: PipeReader,
    mut live: Option<PassedOutput>,
) -> Result<Ended> {
    let mut end = std::pin::pin!(processor_time_at_end(child.id()));
    let mut lines = BufReader::new(Receiver::from_owned_fd(output.into())?);
    let (mut text, mut bytes) = (String::new(), Vec::new());
    let mut ended = None;
    loop {
        let read = lines.read_until(b'\n', &mut bytes);
        let more = if ended.is_none() {
            tokio::select! {
                // The part of a line that was read so far stays in `bytes`.
                processor = &mut end => {
                    ended = Some(processor?);
                    continue;
                }
                more = read => more? > 0,
            }
        } else {
            matches!(timeout(LAST_OUTPUT, read).await, Ok(Ok(count)) if count > 0)
        };
        let part = String::from_utf8_lossy(&bytes).into_owned();
        bytes.clear();
        let text_line = part.trim_end_matches('\n');
        if !part.is_empty() && live.as_mut().is_some_and(|live| live.shows(text_line)) {
            say(text_line);
        }
        text.push_str(&part);
        if !more {
            break;
        }
    }
    let processor = match ended {
        Some(processor) => processor,
        None => end.await?,
    };
    Ok(Ended {
        succeeded: child.wait().await?.success(),
        output: text,
        processor,
    })
}
