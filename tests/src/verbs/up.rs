//! A place to try things out.

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use lab::Lab;
use tokio::time::sleep;

use super::{
    cluster::{Cluster, EXAMPLES, REFUSED, absolute},
    say, step,
};

/// How soon a program that ended by itself is noticed.
const LOOK: Duration = Duration::from_secs(1);

/// Runs until something ends; Ctrl-C drops it.
pub(crate) async fn run() -> Result<ExitCode> {
    let mut cluster = Cluster::start().await?;
    step("applying the examples");
    let folder = absolute(EXAMPLES).display().to_string();
    let applied = cluster.lab.kubectl().run(&["apply", "-f", &folder]).await?;
    say(applied.stdout.trim_end());
    say(applied.stderr.trim_end());
    ensure!(applied.code == 0, "the examples are not accepted");
    say(invitation(&cluster.lab));
    loop {
        cluster.webhook.process().check_alive()?;
        cluster.controller.process().check_alive()?;
        sleep(LOOK).await;
    }
}

fn invitation(lab: &Lab) -> String {
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
  kubectl annotate vm basic-vm simulator/script=crash       # also: slow, stuck, unschedulable, …
  kubectl delete machine basic-vm

Logs: {logs}
Ctrl-C ends it and removes everything.",
        kubeconfig = lab.kubeconfig().display(),
        bin = bin.display(),
        refused = REFUSED,
        logs = lab.path("*.log").display(),
    )
}
