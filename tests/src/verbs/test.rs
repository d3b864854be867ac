//! Every test, with everything it needs built first.

use std::process::ExitCode;

use anyhow::Result;
use lab::{built_here, features, libvirt::Libvirt, paths, tools::Tools};

use super::{cargo, cargo_behind, status, step, succeed};

/// Each test that has a control plane of its own costs half a gigabyte, so
/// threads are bounded by that and not only by the processors.
const THREADS: usize = 4;

pub(crate) async fn run(arguments: &[String]) -> Result<ExitCode> {
    step("looking for etcd, kube-apiserver, kube-controller-manager and kubectl");
    Tools::ensure().await?;
    step("building the programs and the tests");
    // In one go, so that both are built with the same features and only once.
    let features = features(&[]).await?;
    let build = ["build", "--workspace", "--all-targets"];
    succeed(cargo().args(build).args(&features)).await?;
    step("starting libvirtd");
    // For the tests that look for one where all programs do. Those that end it start their own.
    let libvirt = Libvirt::start().await?;
    let reaching = match &libvirt {
        Ok(libvirt) => {
            // Whoever changes mounts is in the root folder afterwards.
            let here = format!("--wdns={}", paths::repository().display());
            libvirt.reaching().into_iter().chain([here]).collect()
        }
        Err(missing) => {
            step(&format!("what needs libvirt is skipped: {missing}"));
            Vec::new()
        }
    };
    step("running the tests");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let outcome = status(
        cargo_behind(&reaching)
            .args(["test", "--workspace"])
            .args(&features)
            .args(arguments)
            .env("RUST_TEST_THREADS", threads.min(THREADS).to_string())
            .envs([built_here()?]),
    )
    .await?;
    Ok(if outcome.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
