//! Runs each target of `tests/fuzz` under libFuzzer for a given time.
//!
//! ```text
//! cargo-fuzz (cached) + nightly ──build──▶ programs ──▶ corpus ◀── seeds
//!                                             └─ found ──▶ artifacts: to be added to the seeds
//! ```

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fuzz::{TARGETS, Target};
use lab::{paths::repository, tools::cache_home};
use tokio::process::Command;

use super::{command, say, status, step, succeed};

/// The version of cargo-fuzz.
const CARGO_FUZZ: &str = "0.13.2";
/// The toolchain: libFuzzer needs compiler options that only nightly has.
const TOOLCHAIN: &str = "nightly";
/// Limit of the time for one input, thousands of times the usual time.
const INPUT_LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of an input in bytes. Longer inputs are refused by limits, which have tests of their own.
const INPUT_MAX: usize = 16 * 1024;

pub(crate) async fn run(each: Duration, target: Option<&str>) -> Result<ExitCode> {
    let targets: Vec<_> = TARGETS
        .iter()
        .filter(|known| target.is_none_or(|name| known.name == name))
        .collect();
    if targets.is_empty() {
        let known = TARGETS.map(|target| target.name).join(", ");
        bail!("no such target; there are {known}");
    }
    toolchain().await?;
    let cargo_fuzz = cargo_fuzz().await?;
    step("building the targets with libFuzzer; the first time takes minutes");
    succeed(fuzzer(&cargo_fuzz, "build").args(options())).await?;
    let mut broken = Vec::new();
    for target in targets {
        step(&format!("{} for {} s", target.name, each.as_secs()));
        if !run_target(&cargo_fuzz, target, each).await? {
            broken.push(target);
        }
    }
    for Target { name, format, .. } in &broken {
        say(format!(
            "{name} found something: copy what it names above to tests/fuzz/seeds/{format}/, \
             and `cargo test -p fuzz {name}` is its test"
        ));
    }
    Ok(if broken.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn run_target(cargo_fuzz: &Path, target: &Target, each: Duration) -> Result<bool> {
    let corpus = built().join("corpus").join(target.name);
    std::fs::create_dir_all(&corpus).with_context(|| format!("creating {}", corpus.display()))?;
    let mut fuzzer = fuzzer(cargo_fuzz, "run");
    fuzzer
        .args(options())
        .arg(target.name)
        // libFuzzer adds inputs to the first folder only, so the seeds do not change.
        .args([corpus, folder().join("../seeds").join(target.format)])
        .arg("--")
        .arg(format!("-max_total_time={}", each.as_secs()))
        .arg(format!("-timeout={}", INPUT_LIMIT.as_secs()))
        .arg(format!("-max_len={INPUT_MAX}"))
        .arg("-print_final_stats=1");
    Ok(status(&mut fuzzer).await?.success())
}

/// The package that cargo-fuzz builds.
pub(super) fn folder() -> PathBuf {
    repository().join("tests/fuzz/libfuzzer")
}

/// The target folder, separate from those of other compilers.
fn built() -> PathBuf {
    repository().join("target/fuzz")
}

/// Options of cargo-fuzz. The code has no `unsafe`, so that the address sanitizer would only cost time.
fn options() -> [String; 6] {
    let path = |path: PathBuf| path.to_string_lossy().into_owned();
    [
        "--fuzz-dir".to_owned(),
        path(folder()),
        "--target-dir".to_owned(),
        path(built()),
        "--sanitizer".to_owned(),
        "none".to_owned(),
    ]
}

fn fuzzer(cargo_fuzz: &Path, verb: &str) -> Command {
    let mut fuzzer = command("rustup");
    // Rustup must not select the compiler that builds the lab.
    fuzzer.env_remove("CARGO").env_remove("RUSTC");
    fuzzer
        .args(["run", TOOLCHAIN])
        .arg(cargo_fuzz)
        .arg("fuzz")
        .arg(verb);
    fuzzer
}

async fn toolchain() -> Result<()> {
    let mut version = command("rustup");
    version.args(["run", TOOLCHAIN, "rustc", "--version"]);
    let there = status(version.stdout(Stdio::null()).stderr(Stdio::null())).await;
    let there = there.context(
        "fuzzing needs a nightly compiler, and rustup to choose it: install rustup (https://rustup.rs)",
    )?;
    if !there.success() {
        step("installing a nightly compiler");
        let install = ["toolchain", "install", TOOLCHAIN, "--profile", "minimal"];
        let installed = succeed(command("rustup").args(install)).await;
        installed
            .context("fuzzing needs a nightly compiler: `rustup toolchain install nightly`")?;
    }
    let compiler = command("c++")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .await;
    ensure!(
        compiler.is_ok_and(|outcome| outcome.success()),
        "libFuzzer is built with a C++ compiler, and there is no c++ on PATH: install g++ or clang"
    );
    Ok(())
}

/// The path of cargo-fuzz in the pinned version, installed in the cache folder of the lab's tools.
async fn cargo_fuzz() -> Result<PathBuf> {
    let root = cache_home()?
        .join("kubevirt-operator-lab")
        .join(format!("cargo-fuzz-{CARGO_FUZZ}"));
    let program = root.join("bin/cargo-fuzz");
    if !program.is_file() {
        step(&format!("installing cargo-fuzz {CARGO_FUZZ}, once"));
        let mut install = super::cargo();
        install
            .args([
                "install",
                "cargo-fuzz",
                "--locked",
                "--version",
                CARGO_FUZZ,
                "--root",
            ])
            .arg(&root);
        let installed = succeed(&mut install).await;
        installed.with_context(|| {
            format!("fuzzing needs cargo-fuzz: `cargo install cargo-fuzz --version {CARGO_FUZZ}`")
        })?;
    }
    Ok(program)
}
