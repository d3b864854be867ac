//! The packages that the libvirt backend needs on this machine: headers to build it, and programs to run guests.
//!
//! Missing ones are installed with apt-get if that is possible. If it is not, the result is the reason: the rest of the
//! repository works without them.

use std::{env, fmt, path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result};
use tokio::{process::Command, sync::OnceCell};

/// Required programs, each with the package of Debian and Ubuntu that contains it.
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

/// The firmware, which is a file and no program, with its package.
const FIRMWARE: (&str, &str) = ("/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "ovmf");

/// The packages that are needed to build the controller with libvirt.
const HEADERS: [&str; 2] = ["libvirt-dev", "pkg-config"];

/// The reason why libvirt cannot be used on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether the controller can be built with libvirt here; checked once per process.
pub async fn headers() -> Result<Result<(), Missing>> {
    static FOUND: OnceCell<Result<(), Missing>> = OnceCell::const_new();
    Ok(FOUND.get_or_try_init(check_headers).await?.clone())
}

async fn check_headers() -> Result<Result<(), Missing>> {
    if !has_headers().await {
        install("the headers of libvirt", &HEADERS).await?;
    }
    Ok(if has_headers().await {
        Ok(())
    } else {
        Err(Missing(instead("libvirt's headers are missing", &HEADERS)))
    })
}

/// Whether guests can run here; checked once per process.
pub async fn host() -> Result<Result<(), Missing>> {
    static FOUND: OnceCell<Result<(), Missing>> = OnceCell::const_new();
    Ok(FOUND.get_or_try_init(check_host).await?.clone())
}

async fn check_host() -> Result<Result<(), Missing>> {
    if !rustix::process::geteuid().is_root() {
        // Creating namespaces, bridges and taps needs root.
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

/// Checks that namespaces can be created: root in a container may lack the permission.
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
            "this machine allows no new namespaces or bridges: {}",
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

/// The path of a program. The `sbin` folders are searched, too, because they are not on every user's `PATH`.
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

/// Installs packages if that is possible. The caller checks again whether they are installed.
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
        // The result is not an error here: the caller checks whether the packages are installed.
        let output = command.output().await.context("starting apt-get")?;
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
            break;
        }
    }
    Ok(())
}

/// The command prefix that runs a command as root; `None` if that would need a password.
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
