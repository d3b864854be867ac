//! [`Cluster`]: a control plane with a node, and the chart in it.

use std::path::Path;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use super::{IMAGE, IMAGE_VERSIONS, Node, ends::Ends, namespaces, programs};
use crate::{
    Binary, Helm, Lab, Network, OPERATOR_NAMESPACE, Options, paths, process::Process, wait,
};

/// The name of the release.
const RELEASE: &str = "kubevirt-operator";

/// A control plane with a node. The fields are dropped in this order.
#[derive(Debug)]
pub struct Cluster {
    pub node: Node,
    second: Option<Node>,
    shared: [Process; 2],
    pub lab: Lab,
    helm: Helm,
    ends: Ends,
}

impl Cluster {
    /// Starts it, with KubeVirt's kinds and without the operator.
    pub async fn start() -> Result<Self> {
        let options = Options {
            operator: false,
            network: Network::Node,
            ..Options::default()
        };
        let lab = Lab::with(options).await?;
        let helm = lab.helm().await?;
        let (shared, ends) = (programs::start_shared(&lab).await?, Ends::default());
        for program in &shared {
            ends.watch(program);
        }
        Ok(Self {
            node: Node::start(&lab, 0, &ends).await?,
            second: None,
            shared,
            lab,
            helm,
            ends,
        })
    }

    /// Starts a second node.
    pub async fn add_node(&mut self) -> Result<()> {
        self.second = Some(Node::start(&self.lab, 1, &self.ends).await?);
        Ok(())
    }

    /// An error with the end of its log if one of the programs has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        self.node.check_alive()?;
        self.second.as_mut().map_or(Ok(()), Node::check_alive)?;
        self.shared.iter_mut().try_for_each(Process::check_alive)
    }

    /// Waits until kube-scheduler, kube-proxy or a program of a node ends that nobody has ended on purpose, and returns a
    /// text with the end of its log.
    pub fn end(&self) -> impl Future<Output = String> + Send + use<> {
        self.ends.clone().first()
    }

    /// Installs or upgrades the chart with a version of the image, as docs/install.md says, and waits until its pods are
    /// ready.
    pub async fn install(&self, version: &str, values: &[&str]) -> Result<()> {
        let chart = paths::repository().join("manifests/charts/kubevirt-operator");
        self.install_chart(&chart, version, values).await
    }

    /// As [`Self::install`], with the chart in this folder.
    pub async fn install_chart(&self, chart: &Path, version: &str, values: &[&str]) -> Result<()> {
        let chart = chart.display().to_string();
        let image = [
            format!("--set=image.repository={IMAGE}"),
            format!("--set=image.tag={version}"),
        ];
        let mut arguments = vec![
            "upgrade",
            "--install",
            RELEASE,
            &chart,
            "--create-namespace",
        ];
        arguments.extend(image.iter().map(String::as_str));
        arguments.extend(["--wait", "--timeout=10m"]);
        arguments.extend(values);
        if let Err(error) = self.helm(&arguments).await {
            let pods = ["get", "pods,events", "-n", OPERATOR_NAMESPACE];
            let seen = self.lab.kubectl().run(&pods).await?;
            return Err(error.context(format!("{seen}")));
        }
        let restricted = "pod-security.kubernetes.io/enforce=restricted";
        let label = [
            "label",
            "namespace",
            OPERATOR_NAMESPACE,
            restricted,
            "--overwrite",
        ];
        self.lab.kubectl().run(&label).await?.ok()?;
        Ok(())
    }

    /// As [`Self::install`], with the first version of the image.
    pub async fn install_first(&self) -> Result<()> {
        self.install(IMAGE_VERSIONS[0], &[]).await
    }

    /// Waits until a write is reviewed: a Service leads to its pods a moment after they are ready.
    pub async fn until_answered(&self) -> Result<()> {
        let example = paths::repository().join("manifests/examples/basic-vm.yaml");
        let example = example.display().to_string();
        let write = ["apply", "--dry-run=server", "-f", &example];
        wait::until("a write to be reviewed", async || {
            let output = self.lab.kubectl().run(&write).await?;
            Ok(output.ok().map_err(|error| error.to_string()))
        })
        .await?;
        Ok(())
    }

    /// Tells the enclosing program that the cluster is complete.
    pub fn announce(&self) -> Result<()> {
        namespaces::announce(&self.lab.kubeconfig())
    }

    /// Runs Helm in the namespace of the operator.
    pub async fn helm(&self, arguments: &[&str]) -> Result<String> {
        let namespace = ["--namespace", OPERATOR_NAMESPACE];
        let output = self.helm.run(&[arguments, &namespace].concat()).await?;
        output.ok()
    }

    /// Runs kubectl in the namespace of the operator.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let namespace = ["--namespace", OPERATOR_NAMESPACE];
        let kubectl = self.lab.kubectl();
        let output = kubectl.run(&[&namespace, arguments].concat()).await?;
        output.ok()
    }

    /// The pods of a program that are not being deleted.
    pub async fn pods(&self, binary: Binary) -> Result<Vec<Value>> {
        let component = match binary {
            Binary::Webhook => "webhook",
            Binary::Controller => "controller",
        };
        let pods: Api<Pod> = Api::namespaced(self.lab.client().clone(), OPERATOR_NAMESPACE);
        let selector = format!("app.kubernetes.io/component={component}");
        let pods = pods.list(&ListParams::default().labels(&selector)).await?;
        let pods = pods.items.into_iter().map(|pod| json!(pod));
        Ok(pods
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .collect())
    }

    /// The process of a program in this pod.
    pub fn process_of(binary: Binary, pod: &Value) -> Result<i32> {
        let uid = pod["metadata"]["uid"].as_str().context("a uid")?;
        let in_pod = |process: &i32| {
            let cgroup = std::fs::read_to_string(format!("/proc/{process}/cgroup"));
            cgroup.is_ok_and(|cgroup| cgroup.contains(uid))
        };
        let mut found = Self::processes(binary)?.into_iter().filter(in_pod);
        found.next().context("the pod has no such process")
    }

    /// The processes of a program in the containers of the node.
    pub fn processes(binary: Binary) -> Result<Vec<i32>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let id = entry.file_name().to_string_lossy().parse();
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
            let program = Path::new(std::str::from_utf8(program).unwrap_or_default());
            if let Ok(id) = id
                && program == Path::new("/").join(binary.name())
            {
                found.push(id);
            }
        }
        Ok(found)
    }
}
