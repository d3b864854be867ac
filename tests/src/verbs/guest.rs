//! A guest that boots on a libvirtd of the lab, for the verbs that demonstrate the product.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use common::render::libvirt::domain_name;
use lab::{
    Binary, Lab,
    libvirt::{Libvirt, Report, image},
    objects::MACHINE,
};

use super::{cluster::absolute, step};

/// The manifest of the LibvirtHost.
pub(super) const HOST: &str = "tests/guest/demo/host.yaml";

/// The manifest of the Machine on it.
pub(super) const GUEST: &str = "tests/guest/demo/machine.yaml";

/// A text in its user data, which its console has to show.
const MARKER: &str = "hello from the Machine's own cloudInit";

/// How QEMU runs the guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum VirtType {
    /// Emulation by QEMU, which runs on any machine.
    #[default]
    Qemu,
    /// The processor, which needs /dev/kvm.
    Kvm,
}

/// A libvirtd with the tiny guest's image; `None`, after a message with the reason, if none can run.
pub(super) async fn host() -> Result<Option<Libvirt>> {
    let missing = if Binary::has_libvirt().await? {
        step("starting libvirtd, and making a disk for a tiny guest");
        match Libvirt::start().await? {
            Ok(libvirt) => {
                let images = libvirt.pool("images").await?;
                libvirt.pool("volumes").await?;
                libvirt
                    .volume(&images, "guest.raw", &image().await?)
                    .await?;
                return Ok(Some(libvirt));
            }
            Err(missing) => missing.to_string(),
        }
    } else {
        "the controller is built without it".to_owned()
    };
    step(&format!("going on without a guest on libvirt: {missing}"));
    Ok(None)
}

/// The path of the host's manifest, with this virtualization type.
pub(super) fn manifest(lab: &Lab, virt_type: VirtType) -> Result<String> {
    let path = absolute(HOST);
    if virt_type == VirtType::Qemu {
        return Ok(path.display().to_string());
    }
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let text = text.replace("virtType: qemu", "virtType: kvm");
    let other = lab.path("host.yaml");
    fs::write(&other, text)?;
    Ok(other.display().to_string())
}

/// Waits until the guest's console shows a text of its user data.
pub(super) async fn console(lab: &Lab, libvirt: &Libvirt) -> Result<Report> {
    let machine = lab.objects(MACHINE, "default").get("tiny").await?;
    let owner = machine["metadata"]["uid"].as_str().unwrap_or_default();
    let domain = domain_name("default", "tiny", owner);
    let report = libvirt
        .wait_for_report(&domain, "its user data", |it| it.user_data.contains(MARKER))
        .await?;
    ensure!(report.boots > 0, "the guest reports no boot");
    Ok(report)
}

/// The line of the user data that the guest found.
pub(super) fn marker(report: &Report) -> &str {
    let mut lines = report.user_data.lines();
    lines.find(|line| line.contains(MARKER)).unwrap_or_default()
}
