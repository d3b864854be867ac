//! What the libvirt backend needs of this machine: headers to build it with, programs to run it on.
//!
//! Both are installed with apt-get where they are missing and that is possible. Where it is not, the answer is the
//! reason: everything else of the repository works without.

use std::{env, fmt, path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result};
use tokio::{process::Command, sync::OnceCell};

/// What has to be there, and the package of Debian and Ubuntu that brings it.
const PROGRAMS: [(&str, &str); 11] = [
    ("libvirtd", "libvirt-daemon-system"),
    ("virsh", "libvirt-clients"),
    ("virt-xml-validate", "libvirt-clients"),
    ("xmllint", "libxml2-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("dnsmasq", "dnsmasq-base"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
    ("swtpm", "swtpm-tools"),
    ("nsenter", "util-linux"),
];

/// What has no program: the firmware.
const FIRMWARE: (&str, &str) = ("/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "ovmf");

/// What the controller is built with.
const HEADERS: [&str; 2] = ["libvirt-dev", "pkg-config"];

/// Why something of libvirt is left out here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether the controller can be built with libvirt here; looked at once per process.
pub async fn headers() -> Result<Result<(), Missing>> {
    static FOUND: OnceCell<Result<(), Missing>> = OnceCell::const_new();
    Ok(FOUND.get_or_try_init(look_at_headers).await?.clone())
}

async fn look_at_headers() -> Result<Result<(), Missing>> {
    if !has_headers().await {
        install("the headers of libvirt", &HEADERS).await?;
    }
    Ok(if has_headers().await {
        Ok(())
    } else {
        Err(Missing(instead("libvirt's headers are missing", &HEADERS)))
    })
}

/// Whether guests can run here; looked at once per process.
pub async fn host() -> Result<Result<(), Missing>> {
    static FOUND: OnceCell<Result<(), Missing>> = OnceCell::const_new();
    Ok(FOUND.get_or_try_init(look_at_host).await?.clone())
}

async fn look_at_host() -> Result<Result<(), Missing>> {
    if !rustix::process::geteuid().is_root() {
        // Namespaces, bridges and taps.
        return Ok(Err(Missing("only root can start libvirtd".to_owned())));
    }
    let missing = missing_packages();
    if !missing.is_empty() {
        install("libvirt and QEMU", &missing).await?;
    }
    let missing = missing_packages();
    if !missing.is_empty() {
        return Ok(Err(Missing(instead(
            "libvirt or QEMU are missing",
            &missing,
        ))));
    }
    Ok(namespaces().await)
}

/// A container may be root and still not be allowed this.
async fn namespaces() -> Result<(), Missing> {
    let tried = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "ip"])
        .args(["link", "add", "lab", "type", "bridge"])
        .stdin(Stdio::null())
        .output()
        .await;
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(Missing(format!(
            "no namespaces or bridges of one's own here: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Err(error) => Err(Missing(format!("starting unshare: {error}"))),
    }
}

async fn has_headers() -> bool {
    let status = Command::new("pkg-config")
        .args(["--exists", "libvirt"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.await.is_ok_and(|status| status.success())
}

fn missing_packages() -> Vec<&'static str> {
    let programs = PROGRAMS.iter().filter(|(name, _)| program(name).is_none());
    let (file, package) = FIRMWARE;
    let firmware = (!PathBuf::from(file).exists()).then_some(package);
    let mut missing: Vec<_> = programs
        .map(|(_, package)| *package)
        .chain(firmware)
        .collect();
    missing.dedup();
    missing
}

/// Where a program is; those of the system's administration are not on everyone's `PATH`.
fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

fn instead(what: &str, packages: &[&str]) -> String {
    format!("{what}: apt-get install {}", packages.join(" "))
}

/// Installs packages where that is possible; whether it helped is seen by looking again.
async fn install(what: &str, packages: &[&str]) -> Result<()> {
    if program("apt-get").is_none() {
        return Ok(());
    }
    let Some(root) = as_root().await else {
        return Ok(());
    };
    eprintln!("lab: installing {what}: {}", packages.join(" "));
    let steps: [&[&str]; 2] = [
        &["update", "-q"],
        &["install", "-y", "-q", "--no-install-recommends"],
    ];
    for step in steps {
        let mut words = root
            .iter()
            .copied()
            .chain(["apt-get"])
            .chain(step.iter().copied());
        let first = words.next().unwrap_or("apt-get");
        let mut command = Command::new(first);
        command
            .args(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if step.contains(&"install") {
            command.args(packages);
        }
        // What apt-get says is for people; what came of it is seen after.
        let output = command.output().await.context("starting apt-get")?;
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
            break;
        }
    }
    Ok(())
}

/// The words before a command that root runs; nothing where there is no way to be root without being asked.
async fn as_root() -> Option<&'static [&'static str]> {
    if rustix::process::geteuid().is_root() {
        return Some(&[]);
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "true"])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let allowed = sudo.status().await.is_ok_and(|status| status.success());
    allowed.then_some(&["sudo", "-n"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_packages_are_reported_with_their_install_command() {
        assert_eq!(
            instead("libvirt's headers are missing", &HEADERS),
            "libvirt's headers are missing: apt-get install libvirt-dev pkg-config"
        );
    }

    #[test]
    fn programs_in_sbin_are_found() {
        assert!(program("sh").is_some());
        assert_eq!(program("no-such-program"), None);
    }
}
