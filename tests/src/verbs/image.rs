//! The image of both programs.

use std::{fs, process::ExitCode};

use anyhow::{Context as _, Result};
use lab::{
    dependencies,
    image::{Reference, Revision, build_release, components, product},
    paths,
};

use super::{say, step};

/// The archive and the bill of materials of its content, relative to the root of the repository.
const ARCHIVE: &str = "target/image/kubevirt-operator.tar";
const BILL: &str = "target/image/kubevirt-operator.cdx.json";

/// The repository that the chart uses if no other one is set.
const REPOSITORY: &str = "ghcr.io/vitistack/kubevirt-operator";

pub(crate) async fn run(tag: Option<Reference>) -> Result<ExitCode> {
    let name = match tag {
        Some(name) => name,
        None => Reference::new(REPOSITORY, concat!("v", env!("CARGO_PKG_VERSION")))?,
    };
    let revision = Revision::current().await?;
    step("building both programs, as a release");
    let programs = build_release(&revision).await?;
    step("collecting their libraries");
    let image = product(&programs, name, &revision).await?;
    let digest = image.write(&paths::repository().join(ARCHIVE))?;
    let mut bill = dependencies::bill().await?;
    let listed = bill["components"].as_array_mut();
    listed
        .context("a bill without components")?
        .extend(components(&image.files));
    fs::write(paths::repository().join(BILL), format!("{bill:#}\n"))?;
    let (name, tag) = (&image.name, image.name.tag());
    say(format!(
        "{ARCHIVE}: {name}, {digest}
{BILL}: what it is made of
use one of:
  skopeo copy oci-archive:{ARCHIVE}:{tag} docker://{name}
  podman load --input {ARCHIVE} && podman push {name}
  docker load --input {ARCHIVE} && docker push {name}
  kind load image-archive {ARCHIVE}
  ctr --namespace k8s.io images import {ARCHIVE}"
    ));
    Ok(ExitCode::SUCCESS)
}
