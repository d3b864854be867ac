//! Builds the programs and the tests, and runs the suites concurrently.
//!
//! ```text
//! cargo build ──► cargo test, with `lab record-suite` as its runner ──► the suites that the arguments select
//!                                                                           │ AT_ONCE of them side by side
//!                                                                           ▼
//!                                             each suite's output in one piece ──► totals, skipped tests
//! ```
//! `cargo test` runs one suite (one test binary) after the other. Most tests wait most of the time, for leases,
//! guests and certificates, so that processors would be idle.

mod output;
mod suite;

use std::{env, fmt::Display, process::ExitCode};

use anyhow::Result;
use futures::{StreamExt as _, stream};
use lab::libvirt::{Libvirt, packages};
use lab::{built_here, features, next_release_built, tools::Tools};

use suite::Suite;
pub(crate) use suite::record;

use super::{cargo, say, step, succeed};
use output::Totals;

/// Threads of one suite. Each test that has a control plane of its own needs 0.5 GiB of memory.
const THREADS: usize = 4;

/// Suites that run concurrently: with [`THREADS`] tests of each, control planes take some 10 GiB at most.
const AT_ONCE: usize = 4;

/// The suites that take the most time, the longest first: if one of them started last, it would run alone at the end.
const LONGEST_FIRST: [&str; 8] = [
    "interruptions",
    "chart",
    "webhook",
    "libvirt",
    "corpus",
    "idle",
    "rules",
    "fairness",
];

/// The suites that run before all others, one at a time. `lifecycle` counts the writes of the controller until a
/// Machine runs: if the simulator is slow, the status passes through more phases, each of which is a write.
const ALONE: [&str; 1] = ["lifecycle"];

/// The suite with a node, which runs only by itself: API servers give a webhook 3 s, and with other suites on the same
/// processors its pods need longer. So do its tests among each other. It needs the cgroups, which are not mounted where
/// libvirt is reached, and no libvirt.
const NODE: &str = "node";

/// The suite that starts programs of the next release beside those of this one.
const UPGRADE: &str = "upgrade";

/// The suite with tests that are compiled only where libvirt's headers are: those of `access/contract/real.rs`.
const WITH_HEADERS: &str = "controller_libvirt";

/// The tests that are selected and not compiled, with the reason: their suite cannot report them. `suites`: the names of
/// those that are selected. `headers`: whether libvirt's headers are here.
fn not_compiled<'s>(
    mut suites: impl Iterator<Item = &'s str>,
    headers: &Result<(), impl Display>,
) -> Option<String> {
    let missing = headers.as_ref().err()?;
    suites.find(|name| *name == WITH_HEADERS)?;
    Some(format!(
        "controller/libvirt {WITH_HEADERS} access::contract::real: not compiled: {missing}"
    ))
}

/// `skipped`: checks that could not be made before.
pub(crate) async fn run(skipped: &[String], arguments: &[String]) -> Result<ExitCode> {
    step("looking for etcd, kube-apiserver, kube-controller-manager and kubectl");
    Tools::ensure().await?;
    step("building the programs and the tests");
    // With one command, so that both are built with the same features and only once.
    let features = features(&[]).await?;
    let build = ["build", "--workspace", "--all-targets"];
    succeed(cargo().args(build).args(&features)).await?;
    let Some((mut suites, documentation)) = suite::selected(&features, arguments).await? else {
        return Ok(ExitCode::FAILURE);
    };
    let mut totals = Totals::default();
    for what in skipped {
        totals.skip(what);
    }
    let is_node = |suite: &Suite| suite.name() == NODE;
    let names_node = |it: &String| it == NODE || it.strip_prefix("--test=") == Some(NODE);
    if suites.iter().any(is_node) && !arguments.iter().any(names_node) {
        suites.retain(|suite| !is_node(suite));
        totals.skip(
            "tests node: it takes half an hour and runs by itself: tests/lab test --test node",
        );
    }
    let headers = packages::headers().await?;
    if let Some(what) = not_compiled(suites.iter().map(Suite::name), &headers) {
        totals.skip(&what);
    }
    let place = |suite: &Suite| LONGEST_FIRST.iter().position(|name| *name == suite.name());
    suites.sort_by_key(|suite| place(suite).unwrap_or(LONGEST_FIRST.len()));
    let (alone, others): (Vec<_>, Vec<_>) = suites
        .iter()
        .partition(|suite| ALONE.contains(&suite.name()) || is_node(suite));

    let mut environment = vec![built_here()?];
    if suites.iter().any(|suite| suite.name() == UPGRADE) {
        step("building the programs of the next release");
        // Before any test runs, because the build temporarily replaces the programs of this release.
        environment.push(next_release_built().await?);
    }
    step("starting libvirtd");
    // For tests that use `qemu:///system`. Tests that end libvirtd start their own.
    let libvirt = Libvirt::start().await?;
    let reaching = match &libvirt {
        Ok(libvirt) => libvirt.mount_namespace_command().to_vec(),
        Err(missing) => {
            step(&format!("tests that need libvirt are skipped: {missing}"));
            Vec::new()
        }
    };
    step(&format!("running the tests: {} suites", suites.len()));
    // The number of the user has precedence.
    let chosen = env::var_os("RUST_TEST_THREADS").is_some();
    let live = suites.len() == 1;
    totals.add(&documentation);
    for (suites, at_once) in [(alone, 1), (others, AT_ONCE)] {
        let runs = suites.into_iter().map(|suite| {
            let (behind, threads) = if is_node(suite) {
                (&[][..], 1)
            } else {
                (&reaching[..], THREADS)
            };
            let mut environment = environment.clone();
            if !chosen {
                environment.push(("RUST_TEST_THREADS", threads.to_string().into()));
            }
            async move { suite.run(behind, &environment, live).await }
        });
        let mut runs = stream::iter(runs).buffer_unordered(at_once);
        while let Some(finished) = runs.next().await {
            let finished = finished?;
            let shown = finished.shown();
            if !shown.is_empty() {
                say(shown);
            }
            totals.add(&finished);
        }
    }
    if !suites.is_empty() {
        say(&totals);
    }
    Ok(if totals.failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_are_not_compiled_are_skipped_if_their_suite_is_selected() {
        let selected = ["rules", WITH_HEADERS];
        let missing = Err("libvirt's headers are missing: apt-get install libvirt-dev");
        assert_eq!(
            not_compiled(selected.into_iter(), &missing).as_deref(),
            Some(
                "controller/libvirt controller_libvirt access::contract::real: not compiled: libvirt's headers are missing: apt-get install libvirt-dev"
            )
        );
        assert_eq!(not_compiled(["rules"].into_iter(), &missing), None);
        let present: Result<(), &str> = Ok(());
        assert_eq!(not_compiled(selected.into_iter(), &present), None);
    }
}
