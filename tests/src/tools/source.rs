//! Pinned Go modules, and the programs that are found or built from them.

use std::{
    env,
    fs::{self, File},
    io::Read as _,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use super::{
    Tool,
    cache::{cache_home, key, lock},
};
use crate::paths;

/// Interval of progress messages during a build.
const PROGRESS: Duration = Duration::from_secs(20);

/// Part of the cache key. Change it whenever the build flags change.
const RECIPE: &str = "1: CGO_ENABLED=0 -trimpath -s -w, version stamped";

/// Pinned modules, and the folder in which their binaries are kept.
pub(super) struct Source {
    folder: PathBuf,
    go_mod: String,
    cache: PathBuf,
}

impl Source {
    pub(super) fn read(modules: &str) -> Result<Self> {
        let folder = paths::repository().join(modules);
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let go_mod = read("go.mod")?;
        let mut hash = Sha256::new();
        for part in [RECIPE, &go_mod, &read("go.sum")?] {
            hash.update(part);
            hash.update([0]);
        }
        let cache = cache_home()?
            .join("kubevirt-operator-lab")
            .join("tools")
            .join(key(hash));
        Ok(Self {
            folder,
            go_mod,
            cache,
        })
    }

    pub(super) async fn ensure(&self, tool: Tool) -> Result<PathBuf> {
        if let Some(path) = self.found(tool) {
            return Ok(path);
        }
        if let Some(path) = self.on_path(tool).await {
            return Ok(path);
        }
        self.build(tool).await
    }

    fn found(&self, tool: Tool) -> Option<PathBuf> {
        let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        assets
            .into_iter()
            .chain([self.cache.clone()])
            .map(|folder| folder.join(tool.name()))
            .find(|path| path.is_file())
    }

    async fn on_path(&self, tool: Tool) -> Option<PathBuf> {
        let wanted = self.version(tool).ok()?.trim_start_matches('v');
        for folder in env::split_paths(&env::var_os("PATH")?) {
            let path = folder.join(tool.name());
            if !path.is_file() {
                continue;
            }
            let output = Command::new(&path)
                .args(tool.version_arguments())
                .stdin(Stdio::null())
                .output()
                .await
                .ok()?;
            let text = String::from_utf8_lossy(&output.stdout);
            if text
                .split_whitespace()
                .any(|word| word.trim_start_matches('v') == wanted)
            {
                return Some(path);
            }
        }
        None
    }

    /// The version that go.mod requires for the tool's module.
    fn version(&self, tool: Tool) -> Result<&str> {
        self.go_mod
            .lines()
            .map(str::trim)
            .filter(|line| !line.contains("=>"))
            .find_map(|line| {
                line.strip_prefix(tool.module())?
                    .strip_prefix(' ')?
                    .split(' ')
                    .next()
            })
            .with_context(|| {
                let (modules, module) = (tool.modules(), tool.module());
                format!("{modules}/go.mod does not require {module}")
            })
    }

    async fn build(&self, tool: Tool) -> Result<PathBuf> {
        fs::create_dir_all(&self.cache)
            .with_context(|| format!("creating {}", self.cache.display()))?;
        let _lock = lock(&self.cache.join(".lock"), tool.name()).await?;
        // Another process may have built it while this one waited.
        if let Some(path) = self.found(tool) {
            return Ok(path);
        }
        require_go().await?;
        let version = self.version(tool)?;
        eprintln!(
            "lab: building {} {version} from source, once (usually {} on two cores)",
            tool.name(),
            tool.usual()
        );
        let started = Instant::now();
        let target = self.cache.join(tool.name());
        let partial = self.cache.join(format!(".{}.partial", tool.name()));
        let log_path = self.cache.join(format!("{}.log", tool.name()));
        let log = File::create(&log_path)?;
        let mut child = Command::new("go")
            .current_dir(&self.folder)
            .env("CGO_ENABLED", "0")
            .args(["build", "-trimpath", "-buildvcs=false", "-ldflags"])
            .arg(linker_flags(tool, version))
            .args(["-tags", tool.tags(), "-o"])
            .args([partial.as_os_str(), tool.package().as_ref()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("starting go")?;
        let status = loop {
            match tokio::time::timeout(PROGRESS, child.wait()).await {
                Ok(status) => break status?,
                Err(_) => eprintln!(
                    "lab: building {}: {} s so far",
                    tool.name(),
                    started.elapsed().as_secs()
                ),
            }
        };
        if !status.success() {
            let mut text = String::new();
            File::open(&log_path)?.read_to_string(&mut text)?;
            bail!("go build {} failed:\n{text}", tool.package());
        }
        // A rename is atomic, so that no process ever starts an incomplete file.
        fs::rename(&partial, &target)?;
        eprintln!(
            "lab: built {} in {} s, kept in {}",
            tool.name(),
            started.elapsed().as_secs(),
            self.cache.display()
        );
        Ok(target)
    }
}

/// Sets the version in the binary: without it the API server reports v0.0.0, and Helm v4.3.
fn linker_flags(tool: Tool, version: &str) -> String {
    match tool {
        Tool::Helm => {
            return format!("-s -w -X helm.sh/helm/v4/internal/version.version={version}");
        }
        Tool::Promtool => {
            let version = version.trim_start_matches('v');
            return format!("-s -w -X github.com/prometheus/common/version.Version={version}");
        }
        _ => {}
    }
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    )
}

async fn require_go() -> Result<()> {
    let output = Command::new("go").arg("version").output().await;
    ensure!(
        output.is_ok_and(|output| output.status.success()),
        "the control plane, Helm and promtool are built with Go, which is not on PATH: \
         install Go 1.24 or newer (https://go.dev/dl, or `apt-get install golang`)"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every tool with the modules it is built from.
    fn pinned() -> impl Iterator<Item = (Tool, Source)> {
        let all = Tool::ALL.into_iter();
        let all = all.chain(Tool::NODE).chain([Tool::Helm, Tool::Promtool]);
        all.map(|tool| (tool, Source::read(tool.modules()).unwrap()))
    }

    #[test]
    fn every_tool_has_a_version() {
        for (tool, source) in pinned() {
            let version = source.version(tool).unwrap();
            assert!(version.starts_with('v'), "{}: {version}", tool.name());
        }
    }

    #[test]
    fn every_tool_is_declared_in_go_mod() {
        for (tool, source) in pinned() {
            let package = tool.package();
            let declared = |line: &str| line.trim().trim_start_matches("tool ") == package;
            assert!(source.go_mod.lines().any(declared), "{package}");
        }
    }

    #[test]
    fn the_linker_flags_contain_major_and_minor_version() {
        let flags = linker_flags(Tool::ApiServer, "v1.36.3");
        assert!(flags.ends_with("version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"));
    }
}
