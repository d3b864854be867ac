//! Whether a node can run on this machine, and what it needs.

use std::path::Path;

use anyhow::Result;
use tokio::sync::OnceCell;

use super::{
    containerd::CNI_PLUGINS,
    images,
    namespaces::{Enclosed, Output},
};
use crate::{
    Binary,
    debian::{Missing, install, instead, program},
    libvirt::packages::namespaces,
    tools::{self, NodeTools, Tools},
};

/// Required programs, each with its package of Debian and Ubuntu.
const PROGRAMS: [(&str, &str); 8] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("strip", "binutils"),
];

/// The package of the CNI plugins, which are on no `PATH`.
const PLUGINS: &str = "containernetworking-plugins";

/// Whether a node can run here; checked once per process.
pub async fn requirements() -> Result<Result<(), Missing>> {
    static FOUND: OnceCell<Result<(), Missing>> = OnceCell::const_new();
    Ok(FOUND.get_or_try_init(check).await?.clone())
}

async fn check() -> Result<Result<(), Missing>> {
    if !rustix::process::geteuid().is_root() {
        // Creating namespaces, bridges and cgroups needs root.
        return Ok(Err(Missing::new("only root can start a node")));
    }
    if !missing_packages().is_empty() {
        install("the programs of a node", &missing_packages()).await?;
    }
    let missing = missing_packages();
    if !missing.is_empty() {
        return Ok(Err(instead("programs of a node are missing", &missing)));
    }
    Ok(namespaces().await)
}

fn missing_packages() -> Vec<&'static str> {
    let programs = PROGRAMS.iter().filter(|(name, _)| program(name).is_none());
    let plugins = (!Path::new(CNI_PLUGINS).join("bridge").is_file()).then_some(PLUGINS);
    let mut missing: Vec<_> = programs
        .map(|(_, package)| *package)
        .chain(plugins)
        .collect();
    missing.dedup();
    missing
}

/// Finds or builds everything that needs the internet, makes the images, and starts this program again in namespaces, where
/// there is no internet.
pub async fn prepare(arguments: &[&str], output: Output) -> Result<Enclosed> {
    Tools::ensure().await?;
    NodeTools::ensure().await?;
    tools::helm().await?;
    Binary::Webhook.path().await?;
    let folder = Enclosed::folder()?;
    images::make(&folder).await?;
    Enclosed::start(folder, arguments, output)
}
