//! The crates of the workspace and their dependencies on each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::{command, paths};

/// The crates of the workspace that a crate may depend on, by folder.
/// A folder that is missing here may depend on no crate of the workspace.
const ALLOWED: [(&str, &[&str]); 8] = [
    ("common", &[]),
    ("common/runtime", &["common"]),
    ("certs", &["common"]),
    ("webhook", &["certs", "common/runtime", "common"]),
    ("controller/core", &["common/runtime", "common"]),
    (
        "controller/kubevirt",
        &["controller/core", "common/runtime", "common"],
    ),
    (
        "controller/libvirt",
        &["controller/core", "common/runtime", "common"],
    ),
    (
        "controller",
        &[
            "controller/kubevirt",
            "controller/libvirt",
            "controller/core",
            "common/runtime",
            "common",
        ],
    ),
];

/// Crates in this folder may depend on every crate.
const TESTS: &str = "tests";

/// A crate of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crate {
    /// The folder of its manifest, from the root of the repository.
    pub folder: String,
    /// The root files of its library, programs, suites and benchmarks.
    pub roots: Vec<PathBuf>,
    /// The crates of the workspace that it depends on.
    pub dependencies: BTreeSet<Edge>,
}

/// A dependency of one crate of the workspace on another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// The folder of the crate that is depended on.
    pub on: String,
    /// Whether only tests and benchmarks need it.
    pub dev: bool,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    kind: Option<String>,
    /// `None` for crates of a registry.
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

/// The crates of the workspace, as `cargo metadata` reports them.
pub async fn crates() -> Result<Vec<Crate>> {
    let mut cargo = paths::cargo();
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--locked"]);
    let metadata = command::stdout(&mut cargo).await?;
    let metadata: Metadata = serde_json::from_slice(&metadata)?;
    let mut crates = metadata
        .packages
        .into_iter()
        .map(Package::into_crate)
        .collect::<Result<Vec<_>>>()?;
    crates.sort_by(|one, other| one.folder.cmp(&other.folder));
    Ok(crates)
}

impl Package {
    fn into_crate(self) -> Result<Crate> {
        let folder = self
            .manifest_path
            .parent()
            .context("a folder of a manifest")?;
        let local = self.dependencies.iter().filter_map(|dependency| {
            let path = dependency.path.as_deref()?;
            let dev = dependency.kind.as_deref() == Some("dev");
            Some(relative(path).map(|on| Edge { on, dev }))
        });
        let roots = self.targets.iter().filter(|target| {
            let kinds = ["lib", "bin", "test", "bench"];
            target
                .kind
                .iter()
                .any(|kind| kinds.contains(&kind.as_str()))
        });
        Ok(Crate {
            folder: relative(folder)?,
            roots: roots.map(|target| target.src_path.clone()).collect(),
            dependencies: local.collect::<Result<_>>()?,
        })
    }
}

/// A path from the root of the repository.
fn relative(path: &Path) -> Result<String> {
    let path = path.strip_prefix(paths::repository());
    Ok(path
        .context("a crate outside of the repository")?
        .display()
        .to_string())
}

/// The dependencies between crates that the layers do not allow, one line each.
pub fn violations(crates: &[Crate]) -> Vec<String> {
    let mut violations = Vec::new();
    for it in crates.iter().filter(|it| !is_test(&it.folder)) {
        let allowed = ALLOWED.iter().find(|(folder, _)| *folder == it.folder);
        let allowed = allowed.map_or([].as_slice(), |(_, allowed)| allowed);
        for edge in &it.dependencies {
            if !allowed.contains(&edge.on.as_str()) {
                violations.push(format!("{} must not depend on {}", it.folder, edge.on));
            }
        }
    }
    violations
}

fn is_test(folder: &str) -> bool {
    Path::new(folder).starts_with(TESTS)
}

/// The graph of the crates, in Mermaid: without dependencies of tests and those that other dependencies imply.
pub fn graph(crates: &[Crate]) -> String {
    let edges: BTreeMap<&str, BTreeSet<&str>> = crates
        .iter()
        .map(|it| {
            let needed = it.dependencies.iter().filter(|edge| !edge.dev);
            (
                it.folder.as_str(),
                needed.map(|edge| edge.on.as_str()).collect(),
            )
        })
        .collect();
    let none = BTreeSet::new();
    let mut lines = vec!["flowchart TD".to_owned()];
    for (from, direct) in &edges {
        lines.push(format!("  {}[{from}]", Node(from)));
        for on in direct {
            let mut others = direct.iter().filter(|other| *other != on);
            if !others.any(|other| reaches(&edges, other, on, &none)) {
                lines.push(format!("  {} --> {}", Node(from), Node(on)));
            }
        }
    }
    lines.join("\n") + "\n"
}

/// Whether a path of dependencies leads from one crate to another; there are no circles between crates.
fn reaches(
    edges: &BTreeMap<&str, BTreeSet<&str>>,
    from: &str,
    to: &str,
    none: &BTreeSet<&str>,
) -> bool {
    let direct = edges.get(from).unwrap_or(none);
    direct.contains(to) || direct.iter().any(|it| reaches(edges, it, to, none))
}

/// The identifier of a folder's node; a slash is syntax in Mermaid.
struct Node<'a>(&'a str);

impl fmt::Display for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.replace('/', "-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planted(folder: &str, on: &[&str]) -> Crate {
        let edges = on.iter().map(|on| Edge {
            on: (*on).to_owned(),
            dev: false,
        });
        Crate {
            folder: folder.to_owned(),
            roots: Vec::new(),
            dependencies: edges.collect(),
        }
    }

    #[test]
    fn a_dependency_between_backends_on_the_webhook_or_on_tests_is_a_violation() {
        let crates = [
            planted("controller/kubevirt", &["controller/libvirt", "common"]),
            planted("controller/core", &["controller/kubevirt", "webhook"]),
            planted("webhook", &["controller/core", "certs"]),
            planted("certs", &["tests"]),
        ];
        assert_eq!(
            violations(&crates),
            [
                "controller/kubevirt must not depend on controller/libvirt",
                "controller/core must not depend on controller/kubevirt",
                "controller/core must not depend on webhook",
                "webhook must not depend on controller/core",
                "certs must not depend on tests",
            ]
        );
    }

    #[test]
    fn tests_may_depend_on_every_crate() {
        let crates = [planted("tests", &["webhook", "controller"])];
        assert_eq!(violations(&crates), [""; 0]);
    }

    #[tokio::test]
    async fn the_crates_of_this_repository_respect_the_layers() {
        let crates = crates().await.unwrap();
        assert!(crates.iter().any(|it| it.folder == "common/runtime"));
        assert_eq!(violations(&crates), [""; 0]);
    }

    #[test]
    fn the_graph_omits_dependencies_that_others_imply() {
        let crates = [
            planted("common", &[]),
            planted("common/runtime", &["common"]),
            planted("webhook", &["common", "common/runtime"]),
        ];
        assert_eq!(
            graph(&crates),
            "flowchart TD
  common[common]
  common-runtime[common/runtime]
  common-runtime --> common
  webhook[webhook]
  webhook --> common-runtime
"
        );
    }
}
