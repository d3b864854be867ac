//! The programs of others that read an archive.

use anyhow::Result;

use crate::debian::{Missing, ensure, program};

/// Whether skopeo, which is installed if it is missing, can be run; else the reason.
pub async fn skopeo() -> Result<Result<(), Missing>> {
    let missing = || match program("skopeo") {
        Some(_) => vec![],
        None => vec!["skopeo"],
    };
    ensure("skopeo", "skopeo is missing", missing).await
}

/// Whether podman can be run; else the reason. It is not installed: its package would replace others of the machine.
pub fn podman() -> Result<(), Missing> {
    let found = program("podman").map(drop);
    found.ok_or_else(|| Missing::new("podman is not installed"))
}
