//! The programs of others that read an archive.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::debian::{Missing, ensure, program};

const SKOPEO: &str = "skopeo";

/// The path of skopeo, which is installed if it is missing; else the reason.
pub async fn skopeo() -> Result<Result<PathBuf, Missing>> {
    let missing = || match program(SKOPEO) {
        Some(_) => vec![],
        None => vec![SKOPEO],
    };
    let found = ensure(SKOPEO, "skopeo is missing", missing).await?;
    Ok(found.map(|()| program(SKOPEO).unwrap_or_else(|| Path::new(SKOPEO).into())))
}

/// The path of podman; else the reason. It is not installed: its package would replace others of the machine.
pub fn podman() -> Result<PathBuf, Missing> {
    program("podman").ok_or_else(|| Missing::new("podman is not installed"))
}
