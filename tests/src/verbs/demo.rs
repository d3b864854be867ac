//! A demonstration that runs to completion: kubectl commands and their output.

use std::{fs, process::ExitCode};

use anyhow::{Context as _, Result, ensure};
use lab::{Kubectl, Lab, Output, libvirt::Libvirt};

use super::{
    cluster::{Cluster, EXAMPLES, REFUSED, absolute, answer_beside, relative},
    guest::{GUEST, HOST, VirtType, console, manifest, marker},
    say,
};

/// The minimum number of faults in the answer to the faulty example.
const FAULTS: usize = 10;

pub(crate) async fn run(virt_type: VirtType) -> Result<ExitCode> {
    let cluster = Cluster::start().await?;
    let demo = Demo {
        kubectl: cluster.lab.kubectl(),
    };
    demo.accepted().await?;
    demo.refused().await?;
    if let Some(libvirt) = &cluster.libvirt {
        demo.boots(&cluster.lab, libvirt, virt_type).await?;
    }
    say("\nEvery step had the expected result.");
    Ok(ExitCode::SUCCESS)
}

struct Demo {
    kubectl: Kubectl,
}

impl Demo {
    async fn accepted(&self) -> Result<()> {
        say("\n# Machines as users write them. The warnings show the result of normalization.");
        self.run_successfully(&["apply", "-f", EXAMPLES]).await?;

        say("\n# The controller creates claims, networks and VirtualMachines for them.");
        let running = "--for=jsonpath={.status.phase}=Running";
        self.run_successfully(&["wait", "machines", "--all", running, "--timeout=10m"])
            .await?;
        self.run_successfully(&["get", "machines"]).await?;
        self.run_successfully(&["get", "virtualmachines,persistentvolumeclaims"])
            .await?;

        say("\n# Applied again, nothing changes: no new generation, no drift for GitOps tools.");
        let again = self.run_successfully(&["apply", "-f", EXAMPLES]).await?;
        let lines: Vec<&str> = again.stdout.lines().collect();
        let unchanged = |line: &&str| line.ends_with(" unchanged");
        ensure!(
            !lines.is_empty() && lines.iter().all(unchanged),
            "not all unchanged"
        );
        Ok(())
    }

    async fn refused(&self) -> Result<()> {
        say("\n# A Machine with many faults: one answer lists them all, and how to fix each.");
        let output = self.run(&["apply", "-f", REFUSED]).await?;
        ensure!(output.code == 1, "exit code {}, not 1", output.code);
        let faults = output
            .stderr
            .lines()
            .filter(|line| line.starts_with("* "))
            .count();
        ensure!(faults >= FAULTS, "{faults} faults, not at least {FAULTS}");
        let beside = answer_beside(&absolute(REFUSED));
        let expected =
            fs::read_to_string(&beside).with_context(|| format!("reading {}", beside.display()))?;
        ensure!(
            relative(&output.stderr).trim() == expected.trim(),
            "the answer is not the one in {}",
            beside.display()
        );

        say("\n# Nothing was stored.");
        let absent = self.run(&["get", "-f", REFUSED]).await?;
        ensure!(
            absent.code == 1 && absent.stderr.contains("NotFound"),
            "the refused Machine is there"
        );
        Ok(())
    }

    async fn boots(&self, lab: &Lab, libvirt: &Libvirt, virt_type: VirtType) -> Result<()> {
        say("\n# A host with libvirt, and a Machine on it: its guest boots in QEMU.");
        let host = manifest(lab, virt_type)?;
        self.run_successfully(&["apply", "-f", &host]).await?;
        let ready = [
            "wait",
            "libvirthost/here",
            "--for=condition=Ready",
            "--timeout=10m",
        ];
        self.run_successfully(&ready).await?;
        self.run_successfully(&["get", "libvirthosts"]).await?;
        self.run_successfully(&["apply", "-f", GUEST]).await?;
        let has_address = "--for=jsonpath={.status.ipAddresses[0]}";
        self.run_successfully(&["wait", "machine/tiny", has_address, "--timeout=10m"])
            .await?;
        self.run_successfully(&["get", "machine", "tiny", "-o", "wide"])
            .await?;
        let report = console(lab, libvirt).await?;
        say("\n# Its console shows the user data of its cloudInit:");
        say(marker(&report));
        Ok(())
    }

    /// Runs a command that has to succeed.
    async fn run_successfully(&self, arguments: &[&str]) -> Result<Output> {
        let output = self.run(arguments).await?;
        ensure!(output.code == 0, "exit code {}", output.code);
        Ok(output)
    }

    /// Shows a command and what it prints.
    async fn run(&self, arguments: &[&str]) -> Result<Output> {
        say(relative(&format!("\n$ kubectl {}", arguments.join(" "))));
        let absolute: Vec<String> = arguments
            .iter()
            .map(|&argument| match argument {
                EXAMPLES | REFUSED | HOST | GUEST => absolute(argument).display().to_string(),
                other => other.to_owned(),
            })
            .collect();
        let arguments: Vec<&str> = absolute.iter().map(String::as_str).collect();
        let output = self.kubectl.run(&arguments).await?;
        for text in [&output.stdout, &output.stderr] {
            if !text.is_empty() {
                say(relative(text.trim_end()));
            }
        }
        Ok(output)
    }
}
