//! A control plane for manual tests.

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::{Result, bail, ensure};
use lab::{
    Lab, Scenario,
    libvirt::Libvirt,
    node::{self, Output, ProcessInNamespaces},
    tools::Tools,
};
use tokio::time::sleep;

use super::{
    cluster::{Cluster, EXAMPLES, REFUSED, absolute},
    guest::{GUEST, VirtType, console, manifest, marker},
    say, step,
};

/// Interval of checks whether the programs still run.
const LOOK: Duration = Duration::from_secs(1);

/// Runs until a program ends or Ctrl-C.
pub(crate) async fn run(virt_type: VirtType) -> Result<ExitCode> {
    let mut cluster = Cluster::start().await?;
    step("applying the examples");
    let folder = absolute(EXAMPLES).display().to_string();
    let applied = cluster.lab.kubectl().run(&["apply", "-f", &folder]).await?;
    say(applied.stdout.trim_end());
    say(applied.stderr.trim_end());
    ensure!(applied.code == 0, "the examples are not accepted");
    if let Some(libvirt) = &cluster.libvirt {
        step("applying a LibvirtHost and a Machine on it");
        let host = manifest(&cluster.lab, virt_type)?;
        let guest = absolute(GUEST).display().to_string();
        for (what, arguments) in [
            ("the host", vec!["apply", "-f", host.as_str()]),
            (
                "its readiness",
                vec![
                    "wait",
                    "libvirthost/here",
                    "--for=condition=Ready",
                    "--timeout=10m",
                ],
            ),
            ("the Machine", vec!["apply", "-f", guest.as_str()]),
        ] {
            let reported = cluster.lab.kubectl().run(&arguments).await?;
            say(reported.stdout.trim_end());
            ensure!(reported.code == 0, "{what}: {}", reported.stderr);
        }
        let report = console(&cluster.lab, libvirt).await?;
        say(format!("its console shows: {}", marker(&report)));
    }
    say(invitation(&cluster.lab, cluster.libvirt.as_ref()));
    loop {
        cluster.webhook.process().check_alive()?;
        cluster.controller.process().check_alive()?;
        sleep(LOOK).await;
    }
}

/// As [`run`], with a node and the chart on it, in namespaces of the lab's own.
pub(crate) async fn run_with_node() -> Result<ExitCode> {
    if node::is_enclosed() {
        return run_enclosed().await;
    }
    if let Err(missing) = node::requirements().await? {
        bail!("no node can run here: {missing}");
    }
    step("looking for the programs of a node, and making the images");
    let mut enclosed = node::prepare(&["up", "--node"], Output::Shown).await?;
    let mut is_announced = false;
    loop {
        if let Some(status) = enclosed.ended()? {
            bail!("the node ended: {status}");
        }
        if let (false, Some(kubeconfig)) = (is_announced, enclosed.kubeconfig()) {
            say(invitation_to_node(&enclosed, &kubeconfig).await?);
            is_announced = true;
        }
        sleep(LOOK).await;
    }
}

/// The part in the namespaces.
async fn run_enclosed() -> Result<ExitCode> {
    step("starting a control plane and a node");
    let mut cluster = node::Cluster::start().await?;
    let _simulator = cluster.lab.simulator(Scenario::Happy).await?;
    step("installing the chart");
    cluster.install_first().await?;
    cluster.until_answered().await?;
    step("applying the examples");
    let folder = absolute(EXAMPLES).display().to_string();
    let applied = cluster.lab.kubectl().run(&["apply", "-f", &folder]).await?;
    say(applied.ok()?.trim_end());
    cluster.announce()?;
    loop {
        cluster.check_alive()?;
        sleep(LOOK).await;
    }
}

async fn invitation_to_node(enclosed: &ProcessInNamespaces, kubeconfig: &Path) -> Result<String> {
    let tools = Tools::ensure().await?;
    Ok(format!(
        "
Everything is running. The addresses exist only in namespaces of the lab's own, which another terminal enters with:

  sudo {enter} env KUBECONFIG={kubeconfig} PATH={bin}:$PATH bash

  kubectl get pods --all-namespaces --output wide           # both programs, in containers
  kubectl --namespace kubevirt-operator-system logs deployment/machine-webhook
  kubectl get machines --watch                              # KubeVirt is simulated
  kubectl apply -f {refused}

Ctrl-C ends it and removes everything.",
        enter = enclosed.entering(),
        kubeconfig = kubeconfig.display(),
        bin = tools.folder().display(),
        // Its shell starts in another folder.
        refused = absolute(REFUSED).display(),
    ))
}

fn invitation(lab: &Lab, libvirt: Option<&Libvirt>) -> String {
    let guests = libvirt.map_or_else(String::new, |libvirt| {
        let virsh = libvirt.mount_namespace_command().join(" ");
        format!("\n  sudo {virsh} virsh list --all        # the guest in QEMU\n")
    });
    let bin = lab.kubectl_path().parent().unwrap_or(lab.kubectl_path());
    format!(
        "
Everything is running. In another terminal:

  export KUBECONFIG={kubeconfig}
  export PATH={bin}:$PATH

  kubectl get machines --watch                              # phases and addresses
  kubectl get machine custom-vm -o yaml                     # what you wrote, and what it became
  kubectl explain machine.spec.disks                        # every field
  kubectl apply -f {refused}
  kubectl annotate vm basic-vm simulator/scenario=crash     # also: slow, stuck, unschedulable, …
  kubectl delete machine basic-vm
{guests}
Logs: {logs}
Ctrl-C ends it and removes everything.",
        kubeconfig = lab.kubeconfig().display(),
        bin = bin.display(),
        refused = REFUSED,
        logs = lab.path("*.log").display(),
    )
}
