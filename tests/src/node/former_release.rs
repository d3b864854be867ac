//! Release 0.1.0, which the present one upgrades: its chart, and its programs as a test build.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use super::images::{IMAGE, strip};
use crate::{
    Binary, command,
    debian::Missing,
    image::{Architecture, Reference, Revision, product},
    libvirt, paths,
    process::Program,
    tools,
};

/// The commit of that release.
const COMMIT: &str = "8b59d1cae9aa9f1df4c85bc34b3e05fb4387ec07";

/// The tag of its image on the node.
const VERSION: &str = "v0";

/// How the names of the folders begin in which it is built.
const DRAFT: &str = "draft-";

/// The limit of its build, on a busy machine.
const BUILD_LIMIT: Duration = Duration::from_hours(1);

/// The folder with the chart and the programs of that release.
#[derive(Debug)]
pub struct FormerRelease(PathBuf);

impl FormerRelease {
    /// Finds the folder in the cache, or makes it from the history of the repository, which takes some ten minutes.
    pub async fn ensure() -> Result<Result<Self, Missing>> {
        let cache = tools::cache_home()?.join("kubevirt-operator-lab/releases");
        fs::create_dir_all(&cache)?;
        let folder = cache.join(COMMIT);
        let _lock = tools::lock(&cache.join(".lock"), "release 0.1.0").await?;
        if folder.exists() {
            return Ok(Ok(Self(folder)));
        }
        if !has_commit().await? {
            return Ok(Err(Missing::new(format!(
                "this checkout does not have the commit of release 0.1.0 ({COMMIT}): git fetch --unshallow"
            ))));
        }
        if let Err(missing) = libvirt::packages::headers().await? {
            return Ok(Err(missing));
        }
        remove_drafts(&cache)?;
        eprintln!("lab: building release 0.1.0, once");
        let started = Instant::now();
        let draft = tempfile::Builder::new().prefix(DRAFT).tempdir_in(&cache)?;
        let release = build(draft.path()).await?;
        fs::rename(release, &folder)?;
        eprintln!("lab: built it in {} s", started.elapsed().as_secs());
        Ok(Ok(Self(folder)))
    }

    /// The folder of the chart.
    pub fn chart(&self) -> PathBuf {
        self.0.join("chart")
    }

    /// Writes an image with the programs of that release as an archive. Returns its tag.
    pub async fn write_image(&self, archive: &Path) -> Result<&'static str> {
        let name = Reference::new(IMAGE, VERSION)?;
        let revision = Revision {
            commit: COMMIT.to_owned(),
            ..Revision::current().await?
        };
        let architecture = Architecture::of_this_machine()?;
        let image = product(&self.0, name, architecture, &revision).await?;
        image.write(archive)?;
        Ok(VERSION)
    }
}

/// Removes what builds that were killed have left. The caller has the lock, without which nobody builds.
fn remove_drafts(cache: &Path) -> Result<()> {
    for entry in fs::read_dir(cache)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(DRAFT) {
            fs::remove_dir_all(entry.path())
                .with_context(|| format!("removing {}", entry.path().display()))?;
        }
    }
    Ok(())
}

async fn has_commit() -> Result<bool> {
    let mut git = Command::new("git");
    git.args(["cat-file", "-e", &format!("{COMMIT}^{{commit}}")])
        .current_dir(paths::repository())
        .stderr(Stdio::null());
    Ok(git.status().await?.success())
}

/// Builds in this folder. Returns a folder in it with the chart and both programs.
async fn build(folder: &Path) -> Result<PathBuf> {
    let [source, target, release] = ["source", "target", "release"].map(|name| folder.join(name));
    fs::create_dir(&source)?;
    fs::create_dir(&release)?;
    let archive = folder.join("source.tar");
    let mut git = Command::new("git");
    git.args(["archive", "--output"])
        .arg(&archive)
        .arg(COMMIT)
        .current_dir(paths::repository());
    command::stdout(&mut git).await?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(&archive).arg("-C").arg(&source);
    command::stdout(&mut tar).await?;
    // It ends with this program.
    let manifest = source.join("Cargo.toml");
    let mut cargo = Program::new(Path::new("cargo"), &folder.join("cargo.log"))
        .args(["build", "--locked", "--package=webhook"])
        .args(["--package=controller", "--features=controller/libvirt"])
        .args([format!("--manifest-path={}", manifest.display())])
        .env("CARGO_TARGET_DIR", target.display())
        .start()?;
    let status = cargo.wait(BUILD_LIMIT).await?;
    ensure!(
        status.success(),
        "release 0.1.0 could not be built\n{}",
        cargo.log_tail(20)
    );
    for binary in [Binary::Webhook, Binary::Controller] {
        let built = target.join("debug").join(binary.name());
        strip(&built, &release.join(binary.name())).await?;
    }
    let chart = source.join("manifests/charts/kubevirt-operator");
    fs::rename(&chart, release.join("chart")).with_context(|| chart.display().to_string())?;
    Ok(release)
}
