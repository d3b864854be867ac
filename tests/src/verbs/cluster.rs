//! A lab in which all programs run, for the verbs that demonstrate the product.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lab::{Binary, Lab, ProgramUnderTest, Scenario, Simulator, libvirt::Libvirt, paths};

use super::{guest::host, step};

/// The running programs. The fields are dropped from top to bottom, the control plane last.
pub(super) struct Cluster {
    pub(super) webhook: ProgramUnderTest,
    pub(super) controller: ProgramUnderTest,
    _simulator: Simulator,
    pub(super) lab: Lab,
    /// A libvirtd, if guests can boot on this machine.
    pub(super) libvirt: Option<Libvirt>,
}

impl Cluster {
    pub(super) async fn start() -> Result<Self> {
        step("building the webhook and the controller");
        Binary::Webhook.path().await?;
        step("starting etcd, kube-apiserver and kube-controller-manager");
        let mut lab = Lab::start().await?;
        let libvirt = host().await?;
        if let Some(libvirt) = &libvirt {
            lab.use_libvirt(libvirt);
        }
        step("starting the webhook, the controller and the simulator of KubeVirt");
        let webhook = lab.webhook(&[]).await?;
        let controller = lab.controller(&[]).await?;
        let simulator = lab.simulator(Scenario::Happy).await?;
        Ok(Self {
            webhook,
            controller,
            _simulator: simulator,
            lab,
            libvirt,
        })
    }
}

/// Folder of valid Machines.
pub(super) const EXAMPLES: &str = "manifests/examples";

/// A Machine with many faults; the expected output of kubectl is beside it.
pub(super) const REFUSED: &str = "manifests/examples/faulty/machine.yaml";

/// The absolute form of a path in the repository, which kubectl finds from any folder.
pub(super) fn absolute(path: &str) -> PathBuf {
    paths::repository().join(path)
}

/// The text as a user of the repository would see it.
pub(super) fn relative(text: &str) -> String {
    let root = format!(
        "{}{}",
        paths::repository().display(),
        std::path::MAIN_SEPARATOR
    );
    text.replace(&root, "")
}

/// The expected answer beside an example that is refused.
pub(super) fn answer_beside(example: &Path) -> PathBuf {
    example.with_extension("expected.txt")
}
