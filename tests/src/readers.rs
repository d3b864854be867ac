//! What reads user data and network data in a guest: cloud-init, netplan and PyYAML, from the packages of Debian or
//! Ubuntu. They are unpacked into the cache and not installed: an installed cloud-init would configure this machine.

use std::{
    fs::{self, File},
    io::{Seek as _, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use crate::{paths, tools};

/// The Python of the system: the modules of the packages are made for it.
const PYTHON: &str = "/usr/bin/python3";
/// Exit status of [`BUILD`] on a system without the packages.
const NO_PACKAGES: i32 = 69;
/// The scripts in `tests/readers`.
const BUILD: &str = "build";
const SCRIPT: &str = "readers.py";

/// A document that a Machine gives.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Document {
    /// The field of `spec.cloudInit`.
    pub field: &'static str,
    /// The document.
    pub text: String,
}

/// What the readers of a guest make of a document.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// Why it is dropped, or a module of cloud-init ends.
    pub fails: Vec<String>,
    /// What cloud-init's JSON Schema objects to.
    pub complains: Vec<String>,
}

/// The readers, ready to run.
#[derive(Debug, Clone)]
pub struct Readers {
    root: PathBuf,
}

impl Readers {
    /// Unpacks the packages, once; otherwise the reason why this machine has none. Where there are packages, a failure is an
    /// error.
    pub async fn new() -> Result<Result<Self, String>> {
        if !Path::new(PYTHON).exists() {
            return Ok(Err(format!("{PYTHON} is missing")));
        }
        let build = folder().join(BUILD);
        let build_script = fs::read(&build).context("tests/readers/build")?;
        let key = tools::key(Sha256::new_with_prefix(build_script));
        let cache = tools::cache_home()?.join("kubevirt-operator-lab/readers");
        fs::create_dir_all(&cache)?;
        let target = cache.join(key);
        let _lock = tools::lock(&cache.join(".lock"), "cloud-init and netplan").await?;
        let readers = Self {
            root: target.join("root"),
        };
        if target.exists() {
            return Ok(Ok(readers));
        }
        eprintln!("lab: unpacking cloud-init and netplan from this system's packages, once");
        let draft = tempfile::tempdir_in(&cache)?;
        let output = Command::new(&build)
            .arg(draft.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("starting tests/readers/build")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(NO_PACKAGES) {
            let last = errors.lines().last().unwrap_or_default();
            return Ok(Err(format!(
                "no packages of cloud-init and netplan here: {last}"
            )));
        }
        ensure!(output.status.success(), "tests/readers/build: {errors}");
        fs::rename(draft.keep(), &target)?;
        Ok(Ok(readers))
    }

    /// The folder of the examples that come with cloud-init.
    pub fn examples(&self) -> PathBuf {
        self.root.join("usr/share/doc/cloud-init/examples")
    }

    /// The reading of each document, in their order.
    pub async fn read(&self, documents: &[Document]) -> Result<Vec<Reading>> {
        let mut input = tempfile::tempfile()?;
        for document in documents {
            serde_json::to_writer(&mut input, document)?;
            input.write_all(b"\n")?;
        }
        input.rewind()?;
        let output = self.script(input).output().await.context(PYTHON)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{SCRIPT}: {errors}");
        let text = String::from_utf8(output.stdout)?;
        let readings = text.lines().map(serde_json::from_str);
        let readings = readings.collect::<Result<Vec<Reading>, _>>()?;
        let (of, have) = (documents.len(), readings.len());
        ensure!(of == have, "{have} readings of {of} documents: {errors}");
        Ok(readings)
    }

    fn script(&self, input: File) -> Command {
        let mut command = Command::new(PYTHON);
        // The modules of an environment of the user's are for another Python.
        command.args(["-I", "-B"]);
        command
            .arg(folder().join(SCRIPT))
            .arg(&self.root)
            .stdin(input)
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }
}

fn folder() -> PathBuf {
    paths::repository().join("tests/readers")
}
