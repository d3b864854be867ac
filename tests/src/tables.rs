//! The tables of cases of the rules (`common/tests/cases`), as objects for an API server.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use common::admission::{ObjectKind, Request, Settings, Stage, review};
use common::api::choice::{Backend, Choice as _, ReclaimPolicy};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::paths;

#[path = "../../common/tests/cases/clusters.rs"]
mod clusters;
#[path = "../../common/tests/cases/long_texts.rs"]
mod long_texts;

use long_texts::spell_out;

/// A case of a table, as far as it can be sent to an API server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// The object's kind.
    #[serde(default = "machine")]
    pub kind: String,
    /// The object's spec.
    #[serde(default)]
    pub spec: Value,
    /// Metadata of the object, merged over the defaults.
    #[serde(default)]
    pub metadata: Value,
    /// The stored object of an update.
    pub old: Option<Old>,
    /// All violations for which the object is refused.
    #[serde(default)]
    pub refuses: Vec<String>,
    /// All warnings of rules about an accepted object.
    #[serde(default)]
    pub warns: Vec<String>,
    /// All warnings without a rule; not compared if absent.
    pub notes: Option<Vec<String>>,
    /// Name of the catalog.
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

/// The stored object of an update.
#[derive(Debug, Deserialize)]
pub struct Old {
    /// Whether it was stored without a review.
    #[serde(default)]
    pub bypassed: bool,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    metadata: Value,
    #[serde(default, deserialize_with = "present")]
    block: Option<Value>,
    /// The `status` of a Machine.
    pub status: Option<Value>,
}

/// A null in the table is a value: it removes the block.
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
    /// Whether the case can be sent to an API server: it has an object and is about both stages of a review.
    /// The CRDs may refuse an object that was stored without a review, so such cases are left out.
    pub fn can_be_sent(&self) -> bool {
        let bypassed = self.old.as_ref().is_some_and(|old| old.bypassed);
        self.text.is_none() && self.only.is_none() && !bypassed
    }

    /// Whether the case needs no earlier catalog, no special settings and no edited block.
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

    /// The stored object without a block.
    pub fn old_object(&self) -> Option<Value> {
        let old = self.old.as_ref()?;
        Some(object(&self.kind, &old.metadata, &old.spec))
    }

    /// The stored object with the block that the webhook wrote.
    pub fn old_with_block(&self) -> Result<Option<Value>> {
        let (Some(old), Some(mut object)) = (&self.old, self.old_object()) else {
            return Ok(None);
        };
        self.write_block(&mut object)?;
        change_block(&mut object, old.block.as_ref());
        Ok(Some(object))
    }

    /// The object under review with its block: the stored one, as after an edit or a patch, or that of a
    /// backup.
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

    /// Writes the block that the webhook wrote with the earlier catalog and settings.
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
        let policy = settings.and_then(|settings| settings["defaultReclaimPolicy"].as_str());
        let mut settings = Settings::default();
        if let Some(policy) = policy.and_then(ReclaimPolicy::parse) {
            settings.default_reclaim_policy = policy;
        }
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

/// Applies the changes of a case to the block; null removes it.
fn change_block(object: &mut Value, changes: Option<&Value>) {
    let Some(changes) = changes else { return };
    json_patch::merge(&mut object["spec"], &json!({ "normalized": changes }));
}

/// Whether objects of the kind have no namespace.
pub fn is_cluster_scoped(kind: &str) -> bool {
    [
        "MachineTemplate",
        "LibvirtHost",
        "MachinePolicy",
        "MachineImage",
    ]
    .contains(&kind)
}

/// The cases of a family of rules.
pub fn table(family: &str) -> Result<Vec<Case>> {
    read(family)
}

/// The objects of a catalog that can be created in an API server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Catalog {
    /// Templates by name.
    pub templates: BTreeMap<String, CatalogTemplate>,
    /// Names of storage classes.
    pub storage_classes: Vec<String>,
    /// Name of the default storage class.
    pub default_storage_class: Option<String>,
    /// NetworkConfigurations of the namespace, on the bridge `br0`.
    pub networks: Vec<String>,
    /// Bridge and VLAN of other networks by name.
    #[serde(default)]
    pub segments: BTreeMap<String, (Option<String>, Option<u16>)>,
    /// LibvirtHosts by name.
    #[serde(default)]
    pub hosts: BTreeMap<String, CatalogHost>,
    /// Specs of MachineImages by name.
    #[serde(default)]
    pub images: BTreeMap<String, Value>,
}

/// A LibvirtHost of a catalog.
#[derive(Debug, Deserialize)]
pub struct CatalogHost {
    /// `metadata.labels`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// `spec`.
    pub spec: Value,
}

/// A template of a catalog.
#[derive(Debug, Deserialize)]
pub struct CatalogTemplate {
    /// Why not to use it any more.
    pub deprecated: Option<String>,
    /// The fields that it sets.
    pub content: Value,
}

/// The catalog of this name.
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
