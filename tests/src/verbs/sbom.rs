//! The bill of materials.

use std::{fs, process::ExitCode};

use anyhow::Result;
use lab::{dependencies, paths};

use super::say;

/// The path of the output file, relative to the root of the repository.
const FILE: &str = "target/sbom.cdx.json";

pub(crate) async fn run() -> Result<ExitCode> {
    let bill = dependencies::bill().await?;
    let path = paths::repository().join(FILE);
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    fs::write(&path, format!("{bill:#}\n"))?;
    let components = bill["components"].as_array().map_or(0, Vec::len);
    say(format!("{FILE}: {components} components, CycloneDX 1.6"));
    Ok(ExitCode::SUCCESS)
}
