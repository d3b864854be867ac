//! The images that the node needs. No registry is asked.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use tokio::process::Command;

use super::namespaces::shared;
use crate::{
    Binary, command,
    debian::program,
    folder::Folder,
    image::{Architecture, Files, Image, Reference, Revision, USER, product},
};

/// The repository of the product's image on the node.
pub const IMAGE: &str = "lab.example.com/kubevirt-operator";

/// Its tags: the same programs twice, so that an upgrade replaces the pods.
pub const IMAGE_VERSIONS: [&str; 2] = ["v1", "v2"];

/// The image of the first container of each pod, which only keeps the pod's namespaces open.
pub(super) const SANDBOX: &str = "lab.example.com/sandbox:v1";

/// The file of the sandbox's image in the folder.
const SANDBOX_FILE: &str = "sandbox.tar";

/// The variable with an archive of `tests/lab image`, which the node runs instead of the programs of this build.
const TESTED: &str = "LAB_NODE_IMAGE";

/// Makes every archive. Returns nothing: [`files`] names them.
pub(super) async fn make(folder: &Folder) -> Result<()> {
    let sleep = program("sleep").context("there is no program `sleep` on PATH")?;
    let architecture = Architecture::of_this_machine()?;
    let mut files = Files::default();
    files.program(&sleep, "/sleep", architecture).await?;
    let revision = Revision::current().await?;
    let sandbox = Image {
        name: SANDBOX.parse()?,
        architecture,
        files,
        user: USER.to_owned(),
        labels: [].into(),
        command: ["/sleep", "infinity"].map(str::to_owned).into(),
        created: revision.time.clone(),
    };
    sandbox.write(&folder.join(SANDBOX_FILE))?;

    let mut image = match env::var_os(TESTED) {
        Some(archive) => Image::read(Path::new(&archive)).context(TESTED)?,
        None => of_this_build(folder, architecture, &revision).await?,
    };
    for version in IMAGE_VERSIONS {
        image.name = Reference::new(IMAGE, version)?;
        image
            .labels
            .insert("version".to_owned(), version.to_owned());
        image.write(&folder.join(&file(version)))?;
    }
    Ok(())
}

/// The product's image with the programs of this build.
async fn of_this_build(
    folder: &Folder,
    architecture: Architecture,
    revision: &Revision,
) -> Result<Image> {
    let built = Binary::Webhook.path().await?;
    let built = built.parent().context("a folder of the programs")?;
    let stripped = folder.join("programs");
    std::fs::create_dir(&stripped)?;
    for binary in [Binary::Webhook, Binary::Controller] {
        strip(&built.join(binary.name()), &stripped.join(binary.name())).await?;
    }
    let name = Reference::new(IMAGE, IMAGE_VERSIONS[0])?;
    product(&stripped, name, architecture, revision).await
}

fn file(version: &str) -> String {
    format!("image-{version}.tar")
}

/// The archive of the product's image with the first tag, in the enclosed program.
pub fn archive() -> Result<PathBuf> {
    shared(&file(IMAGE_VERSIONS[0]))
}

/// The archives that [`make`] has made.
pub(super) fn files() -> Vec<String> {
    let versions = IMAGE_VERSIONS.map(file);
    versions
        .into_iter()
        .chain([SANDBOX_FILE.to_owned()])
        .collect()
}

/// Copies a program without its debugging information, which is most of a test build.
pub(super) async fn strip(from: &Path, to: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    strip.args(["--strip-debug", "-o"]).args([to, from]);
    command::stdout(&mut strip).await?;
    Ok(())
}
