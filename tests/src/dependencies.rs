//! The dependencies of the two programs: crates with their versions and licences.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use spdx::{Expression, LicenseReq, ParseMode};

use crate::{Binary, command, paths};

/// The packages of the programs.
const PROGRAMS: [&str; 2] = ["webhook", "controller"];

/// A crate, as `cargo metadata` reports it.
#[derive(Debug, Clone, Deserialize)]
pub struct Dependency {
    id: String,
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub license: Option<String>,
    /// The registry; `None` for crates of this repository.
    pub source: Option<String>,
    repository: Option<String>,
    description: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Dependency>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

/// The part of `deny.toml` about licences.
#[derive(Deserialize)]
struct Policy {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

/// A crate that may also have other licences.
#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

/// The crates that the programs are built from, the programs and build dependencies included, each with the ids of
/// its dependencies. Cargo downloads crates of other platforms that are missing.
pub async fn of_the_programs() -> Result<BTreeMap<String, (Dependency, Vec<String>)>> {
    let mut cargo = paths::cargo();
    cargo.args(["metadata", "--format-version=1", "--locked"]);
    // With the features of the image, whether or not this machine can build them.
    cargo.args(["--features", "controller/libvirt"]);
    let metadata = command::stdout(&mut cargo).await?;
    let metadata: Metadata = serde_json::from_slice(&metadata)?;
    let programs = metadata
        .packages
        .iter()
        .filter(|it| it.source.is_none() && PROGRAMS.contains(&it.name.as_str()));
    let mut waiting: Vec<String> = programs.map(|it| it.id.clone()).collect();
    ensure!(waiting.len() == PROGRAMS.len(), "the programs' packages");
    let packages: BTreeMap<_, _> = metadata.packages.iter().map(|it| (&it.id, it)).collect();
    let nodes: BTreeMap<_, _> = metadata
        .resolve
        .nodes
        .iter()
        .map(|it| (&it.id, it))
        .collect();
    let mut found = BTreeMap::new();
    while let Some(id) = waiting.pop() {
        if found.contains_key(&id) {
            continue;
        }
        let package = packages.get(&id).context("a package that is resolved")?;
        // Development dependencies are in no program.
        let node = nodes.get(&id).context("a node for each package")?;
        let needed = node.deps.iter().filter(|edge| {
            edge.dep_kinds
                .iter()
                .any(|it| it.kind.as_deref() != Some("dev"))
        });
        let needed: Vec<String> = needed.map(|edge| edge.pkg.clone()).collect();
        waiting.extend(needed.iter().cloned());
        found.insert(id, ((*package).clone(), needed));
    }
    Ok(found)
}

/// The dependencies whose licence `deny.toml` does not allow, each with the reason.
pub async fn refused() -> Result<Vec<String>> {
    let policy = fs::read_to_string(paths::repository().join("deny.toml"))?;
    let policy: Policy = basic_toml::from_str(&policy)?;
    let mut refused = Vec::new();
    let mut used = BTreeSet::new();
    for (dependency, _) in of_the_programs().await?.into_values() {
        let Dependency { name, version, .. } = &dependency;
        let Some(license) = &dependency.license else {
            refused.push(format!("{name} {version} names no licence"));
            continue;
        };
        // The slash in "MIT/Apache-2.0" is an obsolete spelling of OR.
        let expression = Expression::parse_mode(license, ParseMode::LAX)
            .with_context(|| format!("the licence of {name} {version}: {license}"))?;
        let licenses = &policy.licenses;
        let excepted = licenses.exceptions.iter().filter(|it| it.name == *name);
        let here: Vec<_> = excepted
            .flat_map(|it| &it.allow)
            .chain(&licenses.allow)
            .collect();
        let allowed = |required: &LicenseReq| {
            let required = required.to_string();
            here.contains(&&required).then_some(required)
        };
        if expression.evaluate(|required| allowed(required).is_some()) {
            used.extend(expression.requirements().filter_map(|it| allowed(&it.req)));
        } else {
            refused.push(format!("{name} {version}: {license} is not allowed"));
        }
    }
    for idle in policy
        .licenses
        .allow
        .iter()
        .filter(|it| !used.contains(*it))
    {
        refused.push(format!("deny.toml allows {idle}, which no dependency has"));
    }
    Ok(refused)
}

/// A bill of materials in CycloneDX 1.6.
pub async fn bill() -> Result<Value> {
    let all = of_the_programs().await?;
    let reference = |it: &Dependency| format!("pkg:cargo/{}@{}", it.name, it.version);
    let component = |it: &Dependency, kind: &str| {
        let mut component = json!({
            "type": kind,
            "bom-ref": reference(it),
            "name": it.name,
            "version": it.version,
        });
        if it.source.is_some() {
            component["purl"] = reference(it).into();
        }
        if let Some(license) = &it.license {
            // A valid SPDX expression has OR instead of a slash.
            let expression = license.replace(" / ", " OR ").replace('/', " OR ");
            component["licenses"] = json!([{"expression": expression}]);
        }
        if let Some(description) = &it.description {
            component["description"] = description.trim().into();
        }
        if let Some(repository) = &it.repository {
            component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
        }
        component
    };
    let components = all.values().map(|(it, _)| {
        let kind = if PROGRAMS.contains(&it.name.as_str()) && it.source.is_none() {
            "application"
        } else {
            "library"
        };
        component(it, kind)
    });
    let edges = all.values().map(|(it, needed)| {
        let needed = needed.iter().filter_map(|id| all.get(id));
        let needed: BTreeSet<_> = needed.map(|(it, _)| reference(it)).collect();
        json!({"ref": reference(it), "dependsOn": needed})
    });
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {
            "type": "application",
            "name": "kubevirt-operator",
            "version": env!("CARGO_PKG_VERSION"),
            "description": format!("{} and {}", Binary::Webhook.name(), Binary::Controller.name()),
        }},
        "components": components.collect::<Vec<_>>(),
        "dependencies": edges.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_dependency_has_an_allowed_licence() {
        let refused = refused().await.unwrap();
        assert!(refused.is_empty(), "{refused:#?}");
    }

    #[tokio::test]
    async fn the_bill_of_materials_names_every_dependency() {
        let bill = bill().await.unwrap();
        let lock = fs::read_to_string(paths::repository().join("Cargo.lock")).unwrap();
        let components = bill["components"].as_array().unwrap();
        let references: BTreeSet<_> = components
            .iter()
            .map(|it| &it["bom-ref"])
            .map(Value::to_string)
            .collect();
        assert_eq!(references.len(), components.len(), "each once");
        for component in components {
            let (name, version) = (
                component["name"].as_str().unwrap(),
                component["version"].as_str().unwrap(),
            );
            let locked = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            assert!(lock.contains(&locked), "{name} {version}");
            assert!(component["licenses"][0]["expression"].is_string(), "{name}");
        }
        for name in ["webhook", "controller", "rustls", "kube", "tokio", "ring"] {
            assert!(components.iter().any(|it| it["name"] == name), "{name}");
        }
        // Crates that only tests use are no part of the programs.
        assert!(
            !components
                .iter()
                .any(|it| it["name"] == "proptest" || it["name"] == "lab")
        );
        let edges = bill["dependencies"].as_array().unwrap();
        assert_eq!(edges.len(), components.len());
        for needed in edges
            .iter()
            .flat_map(|edge| edge["dependsOn"].as_array().unwrap())
        {
            assert!(references.contains(&needed.to_string()), "{needed}");
        }
    }
}
