//! The tables of the rules' cases (`common/tests/cases`), as an API server sees them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use common::admission::{ObjectKind, Request, Settings, Stage, review};
use common::api::choice::{Backend, Choice as _};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::paths;

#[path = "../../common/tests/cases/clusters.rs"]
mod clusters;
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
    #[serde(default, deserialize_with = "present")]
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
    #[serde(default, deserialize_with = "present")]
    block: Option<Value>,
}

/// A null that is written is a value: it takes the block away.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
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

    /// The stored object with the block that a webhook had written.
    pub fn old_with_block(&self) -> Result<Option<Value>> {
        let (Some(old), Some(mut object)) = (&self.old, self.old_object()) else {
            return Ok(None);
        };
        self.write_block(&mut object)?;
        change_block(&mut object, old.block.as_ref());
        Ok(Some(object))
    }

    /// The object under review with the block that it comes with: the stored one, as an edit or a patch
    /// leaves it, or the one of a backup.
    pub fn object_with_block(&self, old: Option<&Value>) -> Result<Value> {
        let mut object = self.object();
        if let Some(block) = old.and_then(|old| old["spec"].get("normalized")) {
            object["spec"]["normalized"] = block.clone();
        } else if old.is_none() && self.block.is_some() {
            self.write_block(&mut object)?;
        }
        change_block(&mut object, self.block.as_ref());
        Ok(object)
    }

    /// Does what a webhook did under the earlier catalog and settings.
    fn write_block(&self, object: &mut Value) -> Result<()> {
        if self.kind != machine() {
            return Ok(());
        }
        let path = paths::repository().join("common/tests/cases/catalogs.yaml");
        let catalogs = clusters::catalogs(&std::fs::read_to_string(path)?)?;
        let catalog = self.earlier.as_ref().unwrap_or(&self.catalog);
        let catalog = catalogs.get(catalog).context("no such catalog")?;
        let settings = self.earlier_settings.as_ref().or(self.settings.as_ref());
        let backend = settings.and_then(|settings| settings["defaultBackend"].as_str());
        let mut settings = Settings::default();
        if let Some(backend) = backend.and_then(Backend::parse) {
            settings.default_backend = backend;
        }
        let request = Request {
            kind: ObjectKind::Machine,
            stage: Stage::Mutate,
            namespace: "default",
            object: &object.to_string(),
            old: None,
        };
        let verdict = review(&request, catalog, &settings);
        let block = verdict
            .block
            .with_context(|| format!("{}: no block", self.name))?;
        object["spec"]["normalized"] = serde_json::from_str(&block)?;
        Ok(())
    }
}

/// Changes what a case changes of a block; null takes it away.
fn change_block(object: &mut Value, changes: Option<&Value>) {
    let Some(changes) = changes else { return };
    json_patch::merge(&mut object["spec"], &json!({ "normalized": changes }));
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
