//! The packages that the libvirt backend needs on this machine: headers to build it, and programs to run guests.
//!
//! Missing ones are installed with apt-get if that is possible. If it is not, the result is the reason: the rest of the
//! repository works without them.

use std::{path::Path, process::Stdio};

use anyhow::Result;
use tokio::{process::Command, sync::OnceCell};

use crate::debian::{Missing, ensure, install, instead, missing_packages};

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
        Err(instead("libvirt's headers are missing", &HEADERS))
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
        return Ok(Err(Missing::new("only root can start libvirtd")));
    }
    let (file, package) = FIRMWARE;
    let missing = || missing_packages(&PROGRAMS, (Path::new(file), package));
    let lacks = "libvirt or QEMU are missing";
    if let Err(missing) = ensure("libvirt and QEMU", lacks, missing).await? {
        return Ok(Err(missing));
    }
    Ok(namespaces().await)
}

/// Checks that namespaces can be created: root in a container may lack the permission.
pub(crate) async fn namespaces() -> Result<(), Missing> {
    let tried = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "ip"])
        .args(["link", "add", "lab", "type", "bridge"])
        .stdin(Stdio::null())
        .output()
        .await;
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(Missing::new(format!(
            "this machine allows no new namespaces or bridges: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Err(error) => Err(Missing::new(format!("starting unshare: {error}"))),
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
