//! The verbs of the repository: `cargo lab <verb>`, or `just <verb>`.

mod bench;
mod verbs;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::{Parser, Subcommand};
use tokio::signal;

use crate::verbs::guest::VirtType;

/// Everything there is to do in this repository.
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
        /// What runs the guest on libvirt.
        #[arg(long, value_enum, default_value_t)]
        virt_type: VirtType,
    },
    /// Demonstrate the product: good Machines run, a bad one is refused with every fault named, a guest boots.
    Demo {
        /// What runs the guest on libvirt.
        #[arg(long, value_enum, default_value_t)]
        virt_type: VirtType,
    },
    /// Run every test, against a real control plane.
    Test {
        /// Passed to `cargo test`, such as a test's name, or `-- --nocapture`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Format, layers, lints, and that the core stays pure.
    Lint,
    /// Whether the licence of everything in the programs is one of deny.toml.
    Licenses,
    /// Write target/sbom.cdx.json: what the programs are built of.
    Sbom,
    /// Measure the webhook over TLS beside a bare echo server, in one run.
    Bench {
        /// A few seconds only: for the answers rather than the figures.
        #[arg(long)]
        quick: bool,
        /// Keep the figures in this file.
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
        /// Show the ratios to the figures in this file.
        #[arg(long, value_name = "FILE")]
        compare: Option<PathBuf>,
    },
    /// Measure what fleets of Machines cost the controller: writes, waits, memory, a restart, rest.
    BenchController {
        /// How many Machines; each number in a control plane of its own.
        #[arg(default_values_t = [1_000, 10_000])]
        machines: Vec<usize>,
    },
    /// Look for inputs that break a law, with libFuzzer and a nightly compiler.
    Fuzz {
        /// How long, for each target.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// One target instead of all.
        target: Option<String>,
    },
    /// The bare echo server of the benchmark.
    #[command(hide = true)]
    Echo {
        /// Where it finds what to answer and says where it listens.
        folder: PathBuf,
    },
    /// What cargo runs in place of each suite when `test` selects them.
    #[command(hide = true)]
    RecordSuite {
        /// Where it writes how the suite was to be run.
        file: PathBuf,
        /// The suite with its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Write what follows from the code: CRDs, references of fields and rules, parts of the chart, the graph of crates.
    Generate {
        /// Write nothing; fail if a file is not what the code says.
        #[arg(long)]
        check: bool,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let verb = Arguments::parse().verb;
    let ends_by_itself = !matches!(verb, Verb::Up { .. });
    // An interrupted verb is dropped, and with it every process that it started.
    let outcome = tokio::select! {
        outcome = run(verb) => outcome,
        () = interrupted() => {
            eprintln!("lab: ended, nothing is left behind");
            // As shells report an interrupt, unless the verb only ends this way.
            return ExitCode::from(if ends_by_itself { 130 } else { 0 });
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
        Verb::Up { virt_type } => verbs::up::run(virt_type).await,
        Verb::Demo { virt_type } => verbs::demo::run(virt_type).await,
        Verb::Test { arguments } => verbs::test::run(&arguments).await,
        Verb::Bench {
            quick,
            save,
            compare,
        } => verbs::bench::run(quick, save, compare).await,
        Verb::BenchController { machines } => verbs::bench::controller(&machines).await,
        Verb::Fuzz { seconds, target } => {
            verbs::fuzz::run(Duration::from_secs(seconds), target.as_deref()).await
        }
        Verb::Echo { folder } => bench::echo::run(&folder).await,
        Verb::RecordSuite { file, command } => verbs::test::record(&file, command),
        Verb::Lint => verbs::lint::run().await,
        Verb::Licenses => verbs::licenses::run().await,
        Verb::Sbom => verbs::sbom::run().await,
        Verb::Generate { check } => verbs::generate::run(check).await,
    }
}

/// Ends at Ctrl-C or SIGTERM; never when signals cannot be had.
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
