//! Finds the programs of the control plane, Helm and promtool, or builds them.
//!
//! ```text
//! $KUBEBUILDER_ASSETS ──► cache ──► PATH, same version ──► go build ──► cache
//! ```
//! No package registry ships these binaries, so they are built from Go modules
//! that `tests/tools/go.mod` pins, and `tests/tools/helm/go.mod` for Helm and
//! `tests/tools/prometheus/go.mod` for promtool. The cache is keyed by the content
//! of that file and its sums: after an update, the binaries are built again.

mod cache;
mod source;

use std::path::{Path, PathBuf};

use anyhow::Result;
use tokio::sync::OnceCell;

use crate::kubectl::Helm;
pub use cache::cache_home;
pub(crate) use cache::{key, lock};
use source::Source;

/// Folder of the go.mod that pins the modules of the control plane.
const CONTROL_PLANE: &str = "tests/tools";

/// Folder of Helm's go.mod: Helm depends on other versions of Kubernetes' modules.
const HELM: &str = "tests/tools/helm";

/// Folder of promtool's go.mod, for the same reason.
const PROMETHEUS: &str = "tests/tools/prometheus";

/// A third-party program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The store behind the API server.
    Etcd,
    /// The API server.
    ApiServer,
    /// kube-controller-manager: garbage collection, namespaces, protection of claims.
    ControllerManager,
    /// kubectl.
    Kubectl,
    /// Runs the pods of a node; built when a node is first started, as the next two.
    Kubelet,
    /// Assigns pods to nodes.
    Scheduler,
    /// Makes Services reachable on a node.
    Proxy,
    /// Helm; built when it is first needed.
    Helm,
    /// Evaluates the rules of Prometheus; built when it is first needed.
    Promtool,
}

impl Tool {
    /// The programs that every lab needs, in the order of their builds.
    pub const ALL: [Self; 4] = [
        Self::Etcd,
        Self::ApiServer,
        Self::Kubectl,
        Self::ControllerManager,
    ];

    /// The programs of a node, in the order of their builds.
    pub const NODE: [Self; 3] = [Self::Kubelet, Self::Scheduler, Self::Proxy];

    /// The file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
            Self::Kubelet => "kubelet",
            Self::Scheduler => "kube-scheduler",
            Self::Proxy => "kube-proxy",
            Self::Helm => "helm",
            Self::Promtool => "promtool",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::ApiServer => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::ControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::Kubelet => "k8s.io/kubernetes/cmd/kubelet",
            Self::Scheduler => "k8s.io/kubernetes/cmd/kube-scheduler",
            Self::Proxy => "k8s.io/kubernetes/cmd/kube-proxy",
            Self::Helm => "helm.sh/helm/v4/cmd/helm",
            Self::Promtool => "github.com/prometheus/prometheus/cmd/promtool",
        }
    }

    fn module(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::Helm => "helm.sh/helm/v4",
            Self::Promtool => "github.com/prometheus/prometheus",
            _ => "k8s.io/kubernetes",
        }
    }

    fn modules(self) -> &'static str {
        match self {
            Self::Helm => HELM,
            Self::Promtool => PROMETHEUS,
            _ => CONTROL_PLANE,
        }
    }

    /// The duration of a build on two idle cores, after those before it in [`Tool::ALL`].
    fn usual(self) -> &'static str {
        match self {
            Self::ApiServer => "3 minutes",
            Self::Helm => "1 and a half minutes",
            Self::Promtool => "2 minutes",
            Self::Etcd | Self::ControllerManager | Self::Kubelet => "1 minute",
            Self::Kubectl | Self::Scheduler | Self::Proxy => "half a minute",
        }
    }

    /// Build tags. promtool knows the discovery of every cloud, which nothing here needs and which is a fifth of its
    /// packages.
    fn tags(self) -> &'static str {
        match self {
            Self::Promtool => "remove_all_sd",
            _ => "",
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

    /// The folder of kubectl.
    pub fn folder(&self) -> &Path {
        self.kubectl.parent().unwrap_or(&self.kubectl)
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

/// The paths of the programs of a node.
#[derive(Debug, Clone)]
pub(crate) struct NodeTools {
    pub(crate) kubelet: PathBuf,
    pub(crate) scheduler: PathBuf,
    pub(crate) proxy: PathBuf,
}

impl NodeTools {
    /// Finds every program, and builds those that are not found.
    pub(crate) async fn ensure() -> Result<Self> {
        let source = Source::read(CONTROL_PLANE)?;
        let [kubelet, scheduler, proxy] = Tool::NODE;
        Ok(Self {
            kubelet: source.ensure(kubelet).await?,
            scheduler: source.ensure(scheduler).await?,
            proxy: source.ensure(proxy).await?,
        })
    }
}

/// The path of Helm; found or built once per process.
pub(crate) async fn helm() -> Result<&'static Path> {
    static HELM_PATH: OnceCell<PathBuf> = OnceCell::const_new();
    let found = HELM_PATH.get_or_try_init(async || Source::read(HELM)?.ensure(Tool::Helm).await);
    Ok(found.await?)
}

/// The path of promtool; found or built once per process.
pub async fn promtool() -> Result<&'static Path> {
    static PROMTOOL_PATH: OnceCell<PathBuf> = OnceCell::const_new();
    let found = PROMTOOL_PATH
        .get_or_try_init(async || Source::read(PROMETHEUS)?.ensure(Tool::Promtool).await);
    Ok(found.await?)
}

/// Helm without a cluster, with its files in the folder `home`.
pub async fn helm_alone(home: &Path) -> Result<Helm> {
    Ok(Helm::new(
        helm().await?,
        home.to_owned(),
        home.join("nowhere"),
    ))
}
