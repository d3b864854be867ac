//! Checks format, layers, lints, and that the core has no Kubernetes dependencies.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{features, layers, paths};
use tokio::time::timeout;

use super::{cargo, command, fuzz, say, status, step, succeed};

/// Crates that `common` without features must not depend on.
const IMPURE: [&str; 5] = ["kube", "k8s-openapi", "tokio", "hyper", "rustls"];

const WASM: &str = "wasm32-unknown-unknown";

/// Limit of the download of the target (20 MB); after that the core is built for this machine instead.
const DOWNLOAD: Duration = Duration::from_mins(2);

pub(crate) async fn run() -> Result<ExitCode> {
    step("format");
    succeed(cargo().args(["fmt", "--all", "--check"])).await?;
    step("layers: dependencies between crates, imports between files");
    layers().await?;
    step("lints");
    let clippy = ["clippy", "--workspace", "--all-targets"];
    let features = features(&[]).await?;
    let strict = ["--", "-D", "warnings"];
    succeed(cargo().args(clippy).args(features).args(strict)).await?;
    step("the fuzzer's lock file is current");
    let update = ["update", "--workspace", "--locked", "--quiet"];
    let manifest = fuzz::folder().join("Cargo.toml");
    succeed(cargo().args(update).arg("--manifest-path").arg(manifest)).await?;
    step("the core builds without Kubernetes, for WebAssembly");
    let mut core = cargo();
    core.args(["check", "-p", "common", "--no-default-features"]);
    match wasm_target().await {
        Ok(()) => {
            core.args(["--target", WASM]);
        }
        Err(reason) => say(format!("built for this machine only: {reason:#}")),
    }
    succeed(&mut core).await?;
    pure().await?;
    Ok(ExitCode::SUCCESS)
}

/// Fails with every dependency, every circle of imports and every import of a higher layer of `common` that the
/// layers do not allow.
async fn layers() -> Result<()> {
    let crates = layers::crates().await?;
    let mut problems = layers::violations(&crates);
    for root in crates.iter().flat_map(|it| &it.roots) {
        let circles = layers::circles_of(root)?;
        problems.extend(circles.iter().map(ToString::to_string));
    }
    let core = paths::repository().join("common/src/lib.rs");
    problems.extend(layers::upward_imports(&core)?);
    for problem in &problems {
        say(problem);
    }
    ensure!(
        problems.is_empty(),
        "{} violations of the layers",
        problems.len()
    );
    Ok(())
}

async fn pure() -> Result<()> {
    let tree = cargo()
        .args(["tree", "-p", "common", "--no-default-features"])
        .args(["--edges", "normal", "--prefix", "none", "--format", "{lib}"])
        .output()
        .await?;
    ensure!(tree.status.success(), "cargo tree: {}", tree.status);
    let tree = String::from_utf8(tree.stdout)?;
    for line in tree.lines() {
        if IMPURE.iter().any(|name| name.replace('-', "_") == line) {
            bail!("the core depends on {line}, which it must not");
        }
    }
    Ok(())
}

async fn wasm_target() -> Result<()> {
    let mut add = command("rustup");
    add.args(["target", "add", WASM]);
    let outcome = timeout(DOWNLOAD, status(&mut add))
        .await
        .with_context(|| format!("rustup did not have it within {DOWNLOAD:?}"))??;
    ensure!(outcome.success(), "rustup target add: {outcome}");
    Ok(())
}
