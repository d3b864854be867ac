//! `manifests/crds`: one file per kind, the list of them, and the reference of their fields.

use std::{collections::BTreeMap, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use common::api::{REFERENCE_FILE, crd_files, reference};
use lab::paths;
use serde_json::json;

use super::say;

const HEADER: &str = "# Generated from the Rust types by `cargo lab crds`.\n";

pub(crate) fn run(check: bool) -> Result<ExitCode> {
    let folder = paths::repository().join("manifests/crds");
    let wanted = files()?;
    let mut stale = Vec::new();
    for (name, content) in &wanted {
        let path = folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|found| found == *content) {
            continue;
        }
        stale.push(path.clone());
        if !check {
            fs::create_dir_all(&folder)?;
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    let left_over: Vec<PathBuf> = fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.path()))
        .filter(|path| {
            let known = |path: &PathBuf| {
                let name = path.file_name()?.to_str()?;
                Some(wanted.contains_key(name))
            };
            !matches!(path.as_ref().map(known), Ok(Some(true)))
        })
        .collect::<Result<_>>()?;
    if !check {
        for path in &left_over {
            fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    stale.extend(left_over);
    let verdict = if check { "stale" } else { "written" };
    for path in &stale {
        say(format!("{verdict}: {}", path.display()));
    }
    if check && !stale.is_empty() {
        say("run `cargo lab crds` and commit the result");
        return Ok(ExitCode::FAILURE);
    }
    say(format!("{} files are what the types say", wanted.len()));
    Ok(ExitCode::SUCCESS)
}

/// Name and content of every file.
fn files() -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let mut names = Vec::new();
    let definitions = crd_files()?;
    files.insert(REFERENCE_FILE.to_owned(), reference(&definitions));
    for crd in definitions {
        let yaml = serde_saphyr::to_string(&crd.definition)?;
        files.insert(crd.file.to_owned(), format!("{HEADER}{yaml}"));
        names.push(crd.file);
    }
    let list = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": names,
    });
    let yaml = serde_saphyr::to_string(&list)?;
    files.insert("kustomization.yaml".into(), format!("{HEADER}{yaml}"));
    Ok(files)
}
