//! The image of both programs.

use std::{fs, process::ExitCode};

use anyhow::{Context as _, Result};
use lab::{
    dependencies,
    image::{Architecture, Reference, Revision, build_release, components, product},
    paths,
};

use super::{say, step};

/// The archive and the bill of materials of its content, relative to the root of the repository, without their endings.
const FILES: &str = "target/image/kubevirt-operator";

/// The repository that the chart uses if no other one is set.
const REPOSITORY: &str = "ghcr.io/vitistack/kubevirt-operator";

/// `architecture`: `None` for that of this machine, whose files have no name of an architecture.
pub(crate) async fn run(
    tag: Option<Reference>,
    architecture: Option<Architecture>,
) -> Result<ExitCode> {
    let suffix = architecture.map_or_else(String::new, |it| format!("-{it}"));
    let architecture = match architecture {
        Some(architecture) => architecture,
        None => Architecture::of_this_machine()?,
    };
    let version = concat!("v", env!("CARGO_PKG_VERSION"));
    let name = match tag {
        Some(name) => name,
        None => Reference::new(REPOSITORY, &format!("{version}{suffix}"))?,
    };
    let archive = format!("{FILES}{suffix}.tar");
    let bill_of_materials = format!("{FILES}{suffix}.cdx.json");
    let revision = Revision::current().await?;
    step("building both programs, as a release");
    let programs = build_release(&revision, architecture).await?;
    step("collecting their libraries");
    let image = product(&programs, name, architecture, &revision).await?;
    let mut bill = dependencies::bill().await?;
    let listed = bill["components"].as_array_mut();
    listed
        .context("a bill without components")?
        .extend(components(&image.files));
    fs::write(
        paths::repository().join(&bill_of_materials),
        format!("{bill:#}\n"),
    )?;
    // At last: an archive has its bill.
    let digest = image.write(&paths::repository().join(&archive))?;
    let (name, tag) = (&image.name, image.name.tag());
    say(format!(
        "{archive}: {name}, {digest}
{bill_of_materials}: what it is made of
use one of:
  skopeo copy --preserve-digests oci-archive:{archive}:{tag} docker://{name}
  podman load --input {archive} && podman push {name}
  docker load --input {archive} && docker push {name}
  kind load image-archive {archive}
  ctr --namespace k8s.io images import {archive}"
    ));
    Ok(ExitCode::SUCCESS)
}
