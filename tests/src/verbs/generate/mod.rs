//! Generates the committed files that follow from the code: `manifests/crds` with one file per kind, their
//! list and the reference of their fields; `docs/rules.md`; parts of the Helm chart; the graph of the crates
//! in `docs/development.md`.

mod chart;
mod crates;
mod rules;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use common::api::{REFERENCE_FILE, crd_files, reference};
use lab::paths;
use serde_json::json;

use super::say;

const HEADER: &str = "# Generated from the Rust types by `cargo lab generate`.\n";
/// All files of this folder are generated.
const CRDS: &str = "manifests/crds";

pub(crate) async fn run(check: bool) -> Result<ExitCode> {
    let generated = files().await?;
    let mut stale = Vec::new();
    for (path, content) in &generated {
        if fs::read_to_string(path).is_ok_and(|found| found == *content) {
            continue;
        }
        stale.push(path.clone());
        if !check {
            let folder = path.parent().context("a file without a folder")?;
            fs::create_dir_all(folder)?;
            fs::write(path, content).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    for folder in [CRDS, chart::CRDS] {
        for entry in fs::read_dir(paths::repository().join(folder))? {
            let path = entry?.path();
            if generated.contains_key(&path) {
                continue;
            }
            if !check {
                fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
            }
            stale.push(path);
        }
    }
    let verdict = if check { "stale" } else { "written" };
    for path in &stale {
        say(format!("{verdict}: {}", path.display()));
    }
    if check && !stale.is_empty() {
        say("run `cargo lab generate` and commit the result");
        return Ok(ExitCode::FAILURE);
    }
    say(format!(
        "{} generated files are up to date",
        generated.len()
    ));
    Ok(ExitCode::SUCCESS)
}

/// All generated files with their content.
async fn files() -> Result<BTreeMap<PathBuf, String>> {
    let repository = paths::repository();
    let mut files = definitions(&repository.join(CRDS))?;
    files.insert(repository.join("docs/rules.md"), rules::page()?);
    files.insert(repository.join(crates::PAGE), crates::page().await?);
    files.extend(chart::files()?);
    Ok(files)
}

/// The CRDs, their list and the reference of their fields.
fn definitions(folder: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let mut names = Vec::new();
    let definitions = crd_files()?;
    files.insert(folder.join(REFERENCE_FILE), reference(&definitions));
    for crd in definitions {
        let yaml = serde_saphyr::to_string(&crd.definition)?;
        files.insert(folder.join(crd.file), format!("{HEADER}{yaml}"));
        names.push(crd.file);
    }
    let list = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": names,
    });
    let yaml = serde_saphyr::to_string(&list)?;
    files.insert(folder.join("kustomization.yaml"), format!("{HEADER}{yaml}"));
    Ok(files)
}
