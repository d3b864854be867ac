//! A guest that really boots, on a libvirtd of the lab: for the verbs that show the product.

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

/// The host, for `kubectl apply`.
pub(super) const HOST: &str = "tests/guest/demo/host.yaml";

/// The Machine.
pub(super) const GUEST: &str = "tests/guest/demo/machine.yaml";

/// The text of its user data that its console has to show.
const MARKER: &str = "hello from the Machine's own cloudInit";

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum VirtType {
    /// QEMU's emulation: anywhere.
    #[default]
    Qemu,
    /// The processor: where /dev/kvm works.
    Kvm,
}

/// A libvirtd with the tiny guest's image; `None`, after a message with the reason, where none can run.
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

/// The file of the host, as `kubectl apply` is to be given it.
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

/// Waits until the guest's console shows what its user data says.
pub(super) async fn console(lab: &Lab, libvirt: &Libvirt) -> Result<Report> {
    let machine = lab.objects(MACHINE, "default").get("tiny").await?;
    let owner = machine["metadata"]["uid"].as_str().unwrap_or_default();
    let domain = domain_name("default", "tiny", owner);
    let report = libvirt
        .wait_for_report(&domain, "its user data", |it| it.user_data.contains(MARKER))
        .await?;
    ensure!(report.boots > 0, "a guest that was never booted");
    Ok(report)
}

/// The line of the user data that the guest found.
pub(super) fn marker(report: &Report) -> &str {
    let mut lines = report.user_data.lines();
    lines.find(|line| line.contains(MARKER)).unwrap_or_default()
}
