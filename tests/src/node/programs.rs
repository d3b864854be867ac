//! [`Node`]: the programs of one node, and what all nodes share.

use std::{fs, path::Path, time::Duration};

use anyhow::Result;
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use serde_json::{Value, json};

use super::{
    cgroups,
    containerd::Containerd,
    ends::Ends,
    images,
    namespaces::{cgroup, shared},
    network,
};
use crate::{
    Lab, User,
    objects::condition,
    process::{Process, Program},
    tools::NodeTools,
    wait,
};

/// A running node. Dropping it ends its programs; containers end with the namespaces.
#[derive(Debug)]
pub struct Node {
    name: &'static str,
    // Dropped in this order.
    kubelet: Process,
    containerd: Containerd,
}

impl Node {
    /// Starts the node of this number, with the images imported, and waits until it is ready.
    pub(super) async fn start(lab: &Lab, number: usize, ends: &Ends) -> Result<Self> {
        let tools = NodeTools::ensure().await?;
        let name = network::NODES[number];
        let folder = lab.path(name);
        fs::create_dir(&folder)?;
        let containerd = Containerd::start(name, &folder, ends).await?;
        for file in images::files() {
            containerd.import(&shared(&file)?).await?;
        }
        let kubeconfig = lab.kubeconfig_of(User::Node)?;
        let kubelet = kubelet(&tools, number, &containerd.socket, &folder, &kubeconfig)?;
        let mut node = Self {
            name,
            kubelet: kubelet.start()?,
            containerd,
        };
        ends.watch(&node.kubelet);
        node.wait_until_ready(lab).await?;
        Ok(node)
    }

    /// Waits until the node is ready.
    pub async fn wait_until_ready(&mut self, lab: &Lab) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(lab.client().clone());
        wait::until("the node to be ready", async || {
            self.check_alive()?;
            let node = json!(nodes.get_opt(self.name).await?);
            let ready = condition(&node, "Ready");
            Ok((ready["status"] == "True")
                .then_some(())
                .ok_or(ready.clone()))
        })
        .await
    }

    /// An error with the end of its log if one of the programs has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        self.containerd.check_alive()?;
        self.kubelet.check_alive()
    }

    /// Kills containerd, and starts it again after this time.
    pub async fn restart_containerd(&mut self, down: Duration) -> Result<()> {
        self.containerd.restart(down).await
    }

    /// Kills containerd as if it had crashed.
    pub fn kill_containerd(&mut self) {
        self.containerd.kill();
    }

    /// Whether an image has been imported.
    pub async fn has_image(&self, name: &str) -> Result<bool> {
        self.containerd.has_image(name).await
    }

    /// Imports the images of an archive.
    pub async fn import(&self, archive: &Path) -> Result<()> {
        self.containerd.import(archive).await
    }
}

fn write(path: &Path, value: &Value) -> Result<String> {
    fs::write(path, value.to_string())?;
    Ok(path.display().to_string())
}

/// Starts what a cluster with nodes has once: kube-scheduler and kube-proxy, because all nodes have the same addresses.
pub(super) async fn start_shared(lab: &Lab) -> Result<[Process; 2]> {
    let tools = NodeTools::ensure().await?;
    let kubeconfig = lab.kubeconfig_of(User::Node)?;
    Ok([
        scheduler(&tools, lab, &kubeconfig).start()?,
        proxy(&tools, lab, &kubeconfig)?.start()?,
    ])
}

/// Each node has ports and folders of its own: a kubelet removes containers, logs and cgroups that it does not know.
fn kubelet(
    tools: &NodeTools,
    number: usize,
    socket: &str,
    folder: &Path,
    kubeconfig: &Path,
) -> Result<Program> {
    let name = network::NODES[number];
    let port = |first: usize| first + 10 * number;
    let configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // Nobody else is in the network namespace.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}/{name}", cgroup()?),
        // The kubelet does not start without this where cgroups are of version 1.
        "failCgroupV1": cgroups::is_unified(),
        "failSwapOn": false,
        "containerRuntimeEndpoint": format!("unix://{socket}"),
        "port": port(10250),
        "healthzPort": port(10248),
        "podLogsDir": format!("/var/log/pods-{name}"),
        "volumePluginDir": folder.join("volume-plugins"),
        "resolvConf": "",
        "oomScoreAdj": 0,
        // Disks of developers are nearly full.
        "localStorageCapacityIsolation": false,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
    });
    let configuration = write(&folder.join("kubelet.json"), &configuration)?;
    Ok(
        Program::new(&tools.kubelet, &folder.join("kubelet.log")).args([
            format!("--config={configuration}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--root-dir=/var/lib/kubelet-{name}"),
            format!("--cert-dir=/var/lib/kubelet-{name}/pki"),
            format!("--hostname-override={name}"),
            format!("--node-ip={}", network::ADDRESS),
        ]),
    )
}

fn scheduler(tools: &NodeTools, lab: &Lab, kubeconfig: &Path) -> Program {
    Program::new(&tools.scheduler, &lab.path("kube-scheduler.log")).args([
        format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
    ])
}

fn proxy(tools: &NodeTools, lab: &Lab, kubeconfig: &Path) -> Result<Program> {
    let configuration = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": kubeconfig},
        "clusterCIDR": network::PODS,
        "hostnameOverride": network::NODES[0],
        // Its limits apply to the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "healthzBindAddress": "",
        "metricsBindAddress": "",
    });
    let configuration = write(&lab.path("kube-proxy.json"), &configuration)?;
    Ok(Program::new(&tools.proxy, &lab.path("kube-proxy.log"))
        .args([format!("--config={configuration}")]))
}
