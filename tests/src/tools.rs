//! Finds the programs of the control plane and Helm, or builds them.
//!
//! ```text
//! $KUBEBUILDER_ASSETS ──► cache ──► PATH, same version ──► go build ──► cache
//! ```
//! No package registry ships these binaries, so they are built from Go modules
//! that `tests/tools/go.mod` pins, and `tests/tools/helm/go.mod` for Helm. The
//! cache is keyed by the content of that file and its sums: after an update, the
//! binaries are built again.

use std::{
    env,
    fs::{self, File, TryLockError},
    io::Read as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest as _, Sha256};
use tokio::{process::Command, sync::OnceCell, time::sleep};

use crate::{kubectl::Helm, paths};

/// Interval of progress messages during a build.
const PROGRESS: Duration = Duration::from_secs(20);

/// Where the modules of the control plane are pinned.
const CONTROL_PLANE: &str = "tests/tools";

/// Helm depends on other versions of Kubernetes' modules.
const HELM: &str = "tests/tools/helm";

/// Part of the cache key. To be changed with the build flags.
const RECIPE: &str = "1: CGO_ENABLED=0 -trimpath -s -w, version stamped";

/// A third-party program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The store behind the API server.
    Etcd,
    /// The API server.
    ApiServer,
    /// Garbage collection, namespaces, protection of claims.
    ControllerManager,
    /// kubectl.
    Kubectl,
    /// Helm; built when it is first needed.
    Helm,
}

impl Tool {
    /// The programs that every lab needs, in the order of their builds.
    pub const ALL: [Self; 4] = [
        Self::Etcd,
        Self::ApiServer,
        Self::Kubectl,
        Self::ControllerManager,
    ];

    /// The file's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
            Self::Helm => "helm",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::ApiServer => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::ControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::Helm => "helm.sh/helm/v4/cmd/helm",
        }
    }

    fn module(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::Helm => "helm.sh/helm/v4",
            _ => "k8s.io/kubernetes",
        }
    }

    fn modules(self) -> &'static str {
        match self {
            Self::Helm => HELM,
            _ => CONTROL_PLANE,
        }
    }

    /// The duration of a build on two idle cores, after those before it in [`Tool::ALL`].
    fn usual(self) -> &'static str {
        match self {
            Self::ApiServer => "3 minutes",
            Self::Helm => "1 and a half minutes",
            Self::Etcd | Self::ControllerManager => "1 minute",
            Self::Kubectl => "half a minute",
        }
    }

    fn version_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Kubectl => &["version", "--client"],
            Self::Helm => &["version", "--template={{.Version}}"],
            _ => &["--version"],
        }
    }
}

/// The paths of the programs of the control plane.
#[derive(Debug, Clone)]
pub struct Tools {
    etcd: PathBuf,
    api_server: PathBuf,
    controller_manager: PathBuf,
    kubectl: PathBuf,
}

impl Tools {
    /// Finds every program, and builds those that are not found.
    pub async fn ensure() -> Result<Self> {
        let source = Source::read(CONTROL_PLANE)?;
        let [etcd, api_server, kubectl, controller_manager] = Tool::ALL;
        Ok(Self {
            etcd: source.ensure(etcd).await?,
            api_server: source.ensure(api_server).await?,
            kubectl: source.ensure(kubectl).await?,
            controller_manager: source.ensure(controller_manager).await?,
        })
    }

    pub(crate) fn etcd(&self) -> &Path {
        &self.etcd
    }

    pub(crate) fn api_server(&self) -> &Path {
        &self.api_server
    }

    pub(crate) fn controller_manager(&self) -> &Path {
        &self.controller_manager
    }

    pub(crate) fn kubectl(&self) -> &Path {
        &self.kubectl
    }
}

/// The path of Helm; found or built once per process.
pub(crate) async fn helm() -> Result<&'static Path> {
    static HELM_PATH: OnceCell<PathBuf> = OnceCell::const_new();
    let found = HELM_PATH.get_or_try_init(async || Source::read(HELM)?.ensure(Tool::Helm).await);
    Ok(found.await?)
}

/// Helm without a cluster.
pub async fn helm_alone(home: &Path) -> Result<Helm> {
    Ok(Helm::new(
        helm().await?,
        home.to_owned(),
        home.join("nowhere"),
    ))
}

/// Pinned modules, and the folder in which their binaries are kept.
struct Source {
    folder: PathBuf,
    go_mod: String,
    cache: PathBuf,
}

impl Source {
    fn read(modules: &str) -> Result<Self> {
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
        // Eight bytes tell versions apart, and a path stays readable.
        let key = hash
            .finalize()
            .iter()
            .take(8)
            .fold(0_u64, |key, byte| key << 8 | u64::from(*byte));
        let cache = cache_home()?
            .join("kubevirt-operator-lab")
            .join("tools")
            .join(format!("{key:016x}"));
        Ok(Self {
            folder,
            go_mod,
            cache,
        })
    }

    async fn ensure(&self, tool: Tool) -> Result<PathBuf> {
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
            .arg("-o")
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
        // A rename is atomic: no process ever starts an incomplete file.
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

/// Without the version in the binary the server calls itself v0.0.0, and Helm v4.3.
fn linker_flags(tool: Tool, version: &str) -> String {
    if tool == Tool::Helm {
        return format!("-s -w -X helm.sh/helm/v4/internal/version.version={version}");
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
        "the control plane and Helm are built with Go, which is not on PATH: \
         install Go 1.24 or newer (https://go.dev/dl, or `apt-get install golang`)"
    );
    Ok(())
}

/// One build at a time on this machine: the tools share most of their packages.
pub(crate) async fn lock(path: &Path, what: &str) -> Result<File> {
    let file = File::create(path)?;
    let mut said = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if !said {
                    eprintln!("lab: {what} is being built by another process");
                    said = true;
                }
                sleep(Duration::from_millis(200)).await;
            }
            Err(TryLockError::Error(error)) => return Err(error).context("locking the cache"),
        }
    }
}

/// The user's cache folder.
pub fn cache_home() -> Result<PathBuf> {
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set: no place to keep built tools")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every tool with the modules it is built from.
    fn pinned() -> impl Iterator<Item = (Tool, Source)> {
        let all = Tool::ALL.into_iter().chain([Tool::Helm]);
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
    fn the_version_is_stamped_in_parts() {
        let flags = linker_flags(Tool::ApiServer, "v1.36.3");
        assert!(flags.ends_with("version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"));
    }
}
