//! The tables of the rules' cases (`common/tests/cases`), as an API server sees them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::paths;

#[path = "../../common/tests/cases/long_texts.rs"]
mod long_texts;

use long_texts::spell_out;

/// A line of a table, as far as it can be sent to an API server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    /// What it is about.
    pub name: String,
    /// The object's kind.
    #[serde(default = "machine")]
    pub kind: String,
    /// The object's spec.
    #[serde(default)]
    pub spec: Value,
    /// The object's metadata, over those of every object.
    #[serde(default)]
    pub metadata: Value,
    /// What is stored.
    pub old: Option<Old>,
    /// Why the object is refused, every line of it.
    #[serde(default)]
    pub refuses: Vec<String>,
    /// The rules' warnings of an object that is accepted.
    #[serde(default)]
    pub warns: Vec<String>,
    /// What else an accepted object's user is told, if it matters.
    pub notes: Option<Vec<String>>,
    /// The cluster's catalog.
    #[serde(default = "default")]
    pub catalog: String,
    text: Option<String>,
    only: Option<String>,
    block: Option<Value>,
    earlier: Option<String>,
    settings: Option<Value>,
    earlier_settings: Option<Value>,
}

/// What is stored when an update comes.
#[derive(Debug, Deserialize)]
pub struct Old {
    /// Whether it got past the webhook.
    #[serde(default)]
    pub bypassed: bool,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    metadata: Value,
    block: Option<Value>,
}

fn machine() -> String {
    "Machine".to_owned()
}

fn default() -> String {
    "default".to_owned()
}

impl Case {
    /// Whether it can be sent at all: it is an object, and what it says is about more than one stage
    /// of a review. What got past a webhook got past older CRDs.
    pub fn can_be_sent(&self) -> bool {
        let bypassed = self.old.as_ref().is_some_and(|old| old.bypassed);
        self.text.is_none() && self.only.is_none() && !bypassed
    }

    /// Whether it is about a cluster as it is, with the default settings, and about no block that
    /// somebody wrote.
    pub fn is_plain(&self) -> bool {
        let old_block = self.old.as_ref().and_then(|old| old.block.as_ref());
        let special = [&self.block, &self.settings, &self.earlier_settings];
        self.can_be_sent()
            && self.earlier.is_none()
            && old_block.is_none()
            && special.iter().all(|it| it.is_none())
    }

    /// The object under review.
    pub fn object(&self) -> Value {
        object(&self.kind, &self.metadata, &self.spec)
    }

    /// The object that is stored.
    pub fn old_object(&self) -> Option<Value> {
        let old = self.old.as_ref()?;
        Some(object(&self.kind, &old.metadata, &old.spec))
    }
}

/// Whether objects of the kind have no namespace.
pub fn is_of_the_cluster(kind: &str) -> bool {
    ["MachineTemplate", "LibvirtHost"].contains(&kind)
}

/// The cases of a family of rules.
pub fn table(family: &str) -> Result<Vec<Case>> {
    read(family)
}

/// What a cluster of the cases has, as far as an API server can be given it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Catalog {
    /// Templates by name.
    pub templates: BTreeMap<String, CatalogTemplate>,
    /// Storage classes.
    pub storage_classes: Vec<String>,
    /// The default one.
    pub default_storage_class: Option<String>,
    /// NetworkConfigurations of the namespace, on the bridge `br0`.
    pub networks: Vec<String>,
    /// LibvirtHosts by name.
    #[serde(default)]
    pub hosts: BTreeMap<String, CatalogHost>,
}

/// A LibvirtHost of a catalog.
#[derive(Debug, Deserialize)]
pub struct CatalogHost {
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its spec.
    pub spec: Value,
}

/// A template of a catalog.
#[derive(Debug, Deserialize)]
pub struct CatalogTemplate {
    /// Why it should not be used any more.
    pub deprecated: Option<String>,
    /// What it brings.
    pub content: Value,
}

/// A catalog of the cases.
pub fn catalog(name: &str) -> Result<Catalog> {
    let mut catalogs: BTreeMap<String, Catalog> = read("catalogs")?;
    catalogs
        .remove(name)
        .with_context(|| format!("no catalog {name}"))
}

fn read<T: DeserializeOwned>(table: &str) -> Result<T> {
    let path = paths::repository().join(format!("common/tests/cases/{table}.yaml"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
}

fn object(kind: &str, metadata: &Value, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": spec,
    });
    for (key, value) in metadata.as_object().into_iter().flatten() {
        object["metadata"][key] = value.clone();
    }
    spell_out(&mut object);
    object
}
