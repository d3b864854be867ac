//! The commands of the repository: `cargo lab <verb>`, or `just <verb>`.

mod bench;
mod verbs;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::{Parser, Subcommand};
use lab::image::{Architecture, Reference};
use tokio::signal;

use crate::verbs::guest::VirtType;

/// The commands of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a control plane with everything running and the examples applied, until Ctrl-C.
    Up {
        /// With a node: both programs run in pods of the chart.
        #[arg(long, conflicts_with = "virt_type")]
        node: bool,
        /// How QEMU runs the guest on libvirt.
        #[arg(long, value_enum, default_value_t)]
        virt_type: VirtType,
    },
    /// Demonstrate the product: valid Machines run, an invalid one is refused with every fault, a guest boots.
    Demo {
        /// How QEMU runs the guest on libvirt.
        #[arg(long, value_enum, default_value_t)]
        virt_type: VirtType,
    },
    /// Run every test, against a real control plane.
    Test {
        /// A check that could not be made before the tests, with its reason: it is listed with the skipped tests.
        #[arg(long, value_name = "CHECK")]
        skipped: Vec<String>,
        /// Arguments for `cargo test`, such as the name of a test, or `-- --nocapture`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Check format, layers, lints, and that the core has no Kubernetes dependencies.
    Lint,
    /// Check that deny.toml allows the licence of every dependency of the programs.
    Licenses,
    /// Write target/sbom.cdx.json, the bill of materials of the programs.
    Sbom,
    /// Write the image of both programs as an OCI archive, without a container engine.
    Image {
        /// Registry, repository and tag. Default: the chart's; with --architecture its tag ends with the architecture.
        #[arg(long, value_name = "NAME")]
        tag: Option<Reference>,
        /// amd64 or arm64; that of this machine, if it is not given. The names of the files end with it.
        #[arg(long, value_name = "NAME")]
        architecture: Option<Architecture>,
    },
    /// Measure the webhook over TLS, compared with an echo server, in one run.
    Bench {
        /// Run for a few seconds, to check the responses rather than to measure.
        #[arg(long)]
        quick: bool,
        /// Save the figures in this file.
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
        /// Show the ratios to the figures in this file.
        #[arg(long, value_name = "FILE")]
        compare: Option<PathBuf>,
    },
    /// Measure the cost of fleets of Machines for the controller: writes, latency, memory, a restart, idle time.
    BenchController {
        /// Numbers of Machines; each is measured in a control plane of its own.
        #[arg(default_values_t = [1_000, 10_000])]
        machines: Vec<usize>,
    },
    /// Measure what other clients notice of clients that use as many connections, as much memory and as much time as
    /// they can get: probes, reviews, memory.
    BenchLoad,
    /// Search for inputs that violate a property, with libFuzzer and a nightly compiler.
    Fuzz {
        /// Duration for each target, in seconds.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Run this target only.
        target: Option<String>,
    },
    /// The echo server of the benchmark.
    #[command(hide = true)]
    Echo {
        /// Folder with the response to send; the server writes its address into it.
        folder: PathBuf,
    },
    /// Recorder that cargo runs instead of each suite when `test` selects them.
    #[command(hide = true)]
    RecordSuite {
        /// File to which the command of the suite is appended.
        file: PathBuf,
        /// The suite with its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Write the files that are generated from the code: CRDs, references of fields and rules, parts of the chart, the
    /// graph of crates.
    Generate {
        /// Write nothing; fail if a file differs from the generated one.
        #[arg(long)]
        check: bool,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let verb = Arguments::parse().verb;
    let runs_to_completion = !matches!(verb, Verb::Up { .. });
    // An interrupted verb is dropped, and with it every process that it started.
    let outcome = tokio::select! {
        outcome = run(verb) => outcome,
        () = interrupted() => {
            let end = if runs_to_completion {
                "its processes end; the next lab removes files that they leave"
            } else {
                "all processes and files are removed"
            };
            eprintln!("lab: interrupted; {end}");
            // The exit code with which shells report SIGINT, unless the verb runs until it is interrupted.
            return ExitCode::from(if runs_to_completion { 130 } else { 0 });
        }
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Up { node: true, .. } => verbs::up::run_with_node().await,
        Verb::Up { virt_type, .. } => verbs::up::run(virt_type).await,
        Verb::Demo { virt_type } => verbs::demo::run(virt_type).await,
        Verb::Test { skipped, arguments } => verbs::test::run(&skipped, &arguments).await,
        Verb::Bench {
            quick,
            save,
            compare,
        } => verbs::bench::run(quick, save, compare).await,
        Verb::BenchController { machines } => verbs::bench::controller(&machines).await,
        Verb::BenchLoad => verbs::bench::under_load().await,
        Verb::Fuzz { seconds, target } => {
            verbs::fuzz::run(Duration::from_secs(seconds), target.as_deref()).await
        }
        Verb::Echo { folder } => bench::echo::run(&folder).await,
        Verb::RecordSuite { file, command } => verbs::test::record(&file, command),
        Verb::Lint => verbs::lint::run().await,
        Verb::Licenses => verbs::licenses::run().await,
        Verb::Image { tag, architecture } => verbs::image::run(tag, architecture).await,
        Verb::Sbom => verbs::sbom::run().await,
        Verb::Generate { check } => verbs::generate::run(check).await,
    }
}

/// Completes on Ctrl-C or SIGTERM; never if no signal handler can be installed.
async fn interrupted() {
    let terminate = async {
        match signal::unix::signal(signal::unix::SignalKind::terminate()) {
            Ok(mut stream) => drop(stream.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    let interrupt = async {
        if signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = terminate => {}
        () = interrupt => {}
    }
}
