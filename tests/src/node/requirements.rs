//! Whether a node can run on this machine, and what it needs.

use std::path::Path;

use anyhow::Result;
use tokio::sync::OnceCell;

use super::{
    containerd::CNI_PLUGINS,
    images,
    namespaces::{Output, ProcessInNamespaces},
};
use crate::{
    Binary,
    debian::{Missing, ensure, missing_packages},
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
        return Ok(Err(Missing::new(
            "only root can start a node: sudo env PATH=$PATH tests/lab …",
        )));
    }
    let bridge = Path::new(CNI_PLUGINS).join("bridge");
    let missing = || missing_packages(&PROGRAMS, (&bridge, PLUGINS));
    let lacks = "programs of a node are missing";
    if let Err(missing) = ensure("the programs of a node", lacks, missing).await? {
        return Ok(Err(missing));
    }
    Ok(namespaces().await)
}

/// Finds or builds everything that needs the internet, makes the images, and starts this program again in namespaces, where
/// there is no internet.
pub async fn prepare(arguments: &[&str], output: Output) -> Result<ProcessInNamespaces> {
    Tools::ensure().await?;
    NodeTools::ensure().await?;
    tools::helm().await?;
    Binary::Webhook.path().await?;
    let folder = ProcessInNamespaces::folder()?;
    images::make(&folder).await?;
    ProcessInNamespaces::start(folder, arguments, output)
}
