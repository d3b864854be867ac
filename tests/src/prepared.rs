//! etcd's data of a control plane in which objects are installed already: made once for each set of objects, and copied for each
//! lab. A CRD costs the API server as much processor time when it is created as its own start does: with the data a lab takes
//! 1.2 s of it instead of 2.6 s.
//!
//! ```text
//! objects ─► digest ─► target/lab/etcd-<digest> ──copy──► the data of this lab's etcd
//!                        ▲ made once: a control plane, the objects applied, `kube-system` removed
//! ```
//! The UID of the namespace `kube-system` identifies a cluster. The API server creates the namespace when it starts without it, so
//! each lab is a cluster of its own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    control_plane::{ControlPlane, Network},
    folder::Folder,
    http::Connection,
    install, paths,
    tools::{self, Tools},
};

/// The key of the namespace in etcd, in Base64 for etcd's JSON API.
const KUBE_SYSTEM: &str = "L3JlZ2lzdHJ5L25hbWVzcGFjZXMva3ViZS1zeXN0ZW0=";

/// The folder with the data of etcd for a control plane with these objects.
pub(crate) async fn data(tools: &Tools, admission: &Path, objects: &[Value]) -> Result<PathBuf> {
    let mut digest = Sha256::new();
    digest.update(tools.folder().as_os_str().as_encoded_bytes());
    digest.update(serde_json::to_vec(objects)?);
    let parent = paths::repository().join("target/lab");
    let data = parent.join(format!("etcd-{}", tools::key(digest)));
    if data.is_dir() {
        return Ok(data);
    }
    fs::create_dir_all(&parent)?;
    let _lock = tools::lock(&parent.join("lock"), "a control plane").await?;
    if !data.is_dir() {
        // Renamed when it is whole, so that no lab copies half of it.
        let draft = tempfile::tempdir_in(&parent)?;
        prepare(tools, admission, objects, draft.path())
            .await
            .context("preparing a control plane")?;
        fs::rename(draft.keep(), &data)?;
    }
    Ok(data)
}

async fn prepare(tools: &Tools, admission: &Path, objects: &[Value], target: &Path) -> Result<()> {
    let folder = Folder::new()?;
    let plane = ControlPlane::start(tools, &folder, admission, Network::Loopback, None);
    let mut plane = plane.await?;
    for object in objects {
        install::apply(plane.client(), object).await?;
    }
    install::served(plane.client()).await?;
    // It creates the namespace again while it runs.
    plane.stop_api_server();
    let mut etcd = Connection::plain(plane.etcd_address()).await?;
    let key = json!({ "key": KUBE_SYSTEM }).to_string();
    let removed = etcd.post("/v3/kv/deleterange", key).await?.json()?;
    ensure!(removed["deleted"] == "1", "etcd answered {removed}");
    let data = plane.stop().await?;
    copy(&data, target)
}

/// Copies a folder of etcd. Its log is a file of 64 MB that is mostly empty: the zeros at the end of a file take no space in
/// the copy.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
            continue;
        }
        let bytes = fs::read(entry.path())?;
        let used = bytes.iter().rposition(|byte| *byte != 0);
        let used = used.map_or(0, |last| last + 1);
        fs::write(&target, &bytes[..used])?;
        let file = fs::File::options().write(true).open(&target)?;
        file.set_len(entry.metadata()?.len())?;
    }
    Ok(())
}
