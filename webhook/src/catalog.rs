//! What the rules may ask about the cluster, in memory.
//!
//! ```text
//!  watches ──▶ Cache (small parsed rows) ◀── Overlay (this review's live reads) ◀── rules
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use common::api::choice::TemplateSource;
use common::api::{MachineTemplate, NetworkConfiguration};
use common::catalog::{Catalog, StorageClassRow, TemplateRow};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::PartialObjectMeta;

use crate::watch::Rows;

/// Marks the class of claims that name none; the second form is older and still honoured.
const DEFAULT_CLASS_ANNOTATIONS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// Names of networks, by namespace.
type Networks = HashMap<String, HashSet<String>>;

/// The rows that watches keep up to date.
#[derive(Debug, Default)]
pub struct Cache {
    templates: Table<HashMap<String, Arc<TemplateRow>>>,
    classes: Table<Classes>,
    networks: Table<Networks>,
}

impl Cache {
    /// Whether every kind was listed once. Before that, what is missing here proves nothing.
    pub fn is_complete(&self) -> bool {
        let listed = [
            &self.templates.listed,
            &self.classes.listed,
            &self.networks.listed,
        ];
        listed.iter().all(|listed| listed.load(Ordering::Acquire))
    }
}

/// The rows of one kind.
///
/// They stay whole when a thread dies with the lock: every change is a single insertion, removal or
/// exchange.
#[derive(Debug, Default)]
struct Table<T> {
    rows: RwLock<T>,
    listed: AtomicBool,
}

impl<T> Table<T> {
    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, rows: T) {
        *self.write() = rows;
        self.listed.store(true, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct Classes {
    rows: HashMap<String, Class>,
    /// Kept, because every Machine that names no class asks for it.
    default: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Class {
    row: StorageClassRow,
    default: bool,
    created: Option<Timestamp>,
}

impl Class {
    fn parse(class: &StorageClass) -> Self {
        let marked = |name: &&str| class.annotations().get(*name).is_some_and(|v| v == "true");
        Self {
            row: class_row(class),
            default: DEFAULT_CLASS_ANNOTATIONS.iter().any(marked),
            created: class.creation_timestamp().map(|time| time.0),
        }
    }
}

impl Classes {
    /// The newest of those marked, then the first by name: as Kubernetes itself chooses.
    fn choose_default(&mut self) {
        let marked = self.rows.iter().filter(|(_, class)| class.default);
        self.default = marked
            .max_by(|(name_a, a), (name_b, b)| {
                a.created.cmp(&b.created).then_with(|| name_b.cmp(name_a))
            })
            .map(|(name, _)| name.clone());
    }
}

/// The row of a template.
pub fn template_row(template: MachineTemplate) -> TemplateRow {
    TemplateRow {
        source: TemplateSource::MachineTemplate,
        deprecated: template.spec.deprecated.clone(),
        content: template.spec.into(),
    }
}

/// The row of a storage class.
pub fn class_row(class: &StorageClass) -> StorageClassRow {
    StorageClassRow {
        allows_expansion: class.allow_volume_expansion.unwrap_or(false),
    }
}

impl Rows<MachineTemplate> for Cache {
    fn reset(&self, all: Vec<MachineTemplate>) {
        let row =
            |template: MachineTemplate| (template.name_any(), Arc::new(template_row(template)));
        self.templates.replace(all.into_iter().map(row).collect());
    }

    fn apply(&self, template: MachineTemplate) {
        let (name, row) = (template.name_any(), Arc::new(template_row(template)));
        self.templates.write().insert(name, row);
    }

    fn delete(&self, template: MachineTemplate) {
        self.templates.write().remove(&template.name_any());
    }
}

impl Rows<StorageClass> for Cache {
    fn reset(&self, all: Vec<StorageClass>) {
        let rows = all
            .iter()
            .map(|class| (class.name_any(), Class::parse(class)))
            .collect();
        let mut classes = Classes {
            rows,
            default: None,
        };
        classes.choose_default();
        self.classes.replace(classes);
    }

    fn apply(&self, class: StorageClass) {
        let mut classes = self.classes.write();
        classes.rows.insert(class.name_any(), Class::parse(&class));
        classes.choose_default();
    }

    fn delete(&self, class: StorageClass) {
        let mut classes = self.classes.write();
        classes.rows.remove(&class.name_any());
        classes.choose_default();
    }
}

impl Rows<PartialObjectMeta<NetworkConfiguration>> for Cache {
    fn reset(&self, all: Vec<PartialObjectMeta<NetworkConfiguration>>) {
        let mut networks = Networks::new();
        for network in all {
            let namespace = network.namespace().unwrap_or_default();
            networks
                .entry(namespace)
                .or_default()
                .insert(network.name_any());
        }
        self.networks.replace(networks);
    }

    fn apply(&self, network: PartialObjectMeta<NetworkConfiguration>) {
        let namespace = network.namespace().unwrap_or_default();
        self.networks
            .write()
            .entry(namespace)
            .or_default()
            .insert(network.name_any());
    }

    fn delete(&self, network: PartialObjectMeta<NetworkConfiguration>) {
        let namespace = network.namespace().unwrap_or_default();
        let mut networks = self.networks.write();
        if let Some(names) = networks.get_mut(&namespace) {
            names.remove(&network.name_any());
            if names.is_empty() {
                networks.remove(&namespace);
            }
        }
    }
}

impl Catalog for Cache {
    fn template(&self, name: &str) -> Option<Arc<TemplateRow>> {
        self.templates.read().get(name).cloned()
    }

    fn template_names(&self) -> Vec<String> {
        self.templates.read().keys().cloned().collect()
    }

    fn storage_class(&self, name: &str) -> Option<StorageClassRow> {
        self.classes.read().rows.get(name).map(|class| class.row)
    }

    fn storage_class_names(&self) -> Vec<String> {
        self.classes.read().rows.keys().cloned().collect()
    }

    fn default_storage_class(&self) -> Option<String> {
        self.classes.read().default.clone()
    }

    fn has_network(&self, namespace: &str, name: &str) -> bool {
        self.networks
            .read()
            .get(namespace)
            .is_some_and(|names| names.contains(name))
    }

    fn network_names(&self, namespace: &str) -> Vec<String> {
        let networks = self.networks.read();
        networks
            .get(namespace)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }
}

/// What a live read found.
#[derive(Debug, Clone)]
pub enum Found {
    /// A template.
    Template(String, Arc<TemplateRow>),
    /// A storage class.
    StorageClass(String, StorageClassRow),
    /// A network of the namespace under review.
    Network(String),
}

/// The cache, and what was found beside it for one review.
#[derive(Debug)]
pub struct Overlay<'a> {
    cache: &'a Cache,
    found: Vec<Found>,
}

impl<'a> Overlay<'a> {
    /// Nothing was found yet.
    pub fn new(cache: &'a Cache) -> Self {
        Self {
            cache,
            found: Vec::new(),
        }
    }

    /// Adds what was found.
    pub fn extend(&mut self, found: Vec<Found>) {
        self.found.extend(found);
    }
}

impl Catalog for Overlay<'_> {
    fn template(&self, name: &str) -> Option<Arc<TemplateRow>> {
        self.cache.template(name).or_else(|| {
            self.found.iter().find_map(|found| match found {
                Found::Template(known, row) if known == name => Some(row.clone()),
                _ => None,
            })
        })
    }

    fn template_names(&self) -> Vec<String> {
        self.cache.template_names()
    }

    fn storage_class(&self, name: &str) -> Option<StorageClassRow> {
        self.cache.storage_class(name).or_else(|| {
            self.found.iter().find_map(|found| match found {
                Found::StorageClass(known, row) if known == name => Some(*row),
                _ => None,
            })
        })
    }

    fn storage_class_names(&self) -> Vec<String> {
        self.cache.storage_class_names()
    }

    fn default_storage_class(&self) -> Option<String> {
        self.cache.default_storage_class()
    }

    fn has_network(&self, namespace: &str, name: &str) -> bool {
        self.cache.has_network(namespace, name)
            || self
                .found
                .iter()
                .any(|found| matches!(found, Found::Network(known) if known == name))
    }

    fn network_names(&self, namespace: &str) -> Vec<String> {
        self.cache.network_names(namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn class(name: &str, default: bool, created: &str) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "creationTimestamp": created,
                "annotations": {"storageclass.kubernetes.io/is-default-class": default.to_string()},
            },
            "provisioner": "x",
            "allowVolumeExpansion": true,
        }))
        .unwrap()
    }

    fn network(namespace: &str, name: &str) -> PartialObjectMeta<NetworkConfiguration> {
        serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name}})).unwrap()
    }

    fn template(name: &str, deprecated: Option<&str>) -> MachineTemplate {
        serde_json::from_value(json!({
            "apiVersion": "vitistack.io/v1alpha1",
            "kind": "MachineTemplate",
            "metadata": {"name": name},
            "spec": {"deprecated": deprecated, "bootOrder": ["disk"]},
        }))
        .unwrap()
    }

    #[test]
    fn the_newest_default_class_wins_then_the_first_by_name() {
        let cache = Cache::default();
        assert_eq!(cache.default_storage_class(), None);
        cache.reset(vec![
            class("old", true, "2024-01-01T00:00:00Z"),
            class("plain", false, "2026-01-01T00:00:00Z"),
        ]);
        assert_eq!(cache.default_storage_class().as_deref(), Some("old"));
        cache.apply(class("new-b", true, "2025-01-01T00:00:00Z"));
        cache.apply(class("new-a", true, "2025-01-01T00:00:00Z"));
        assert_eq!(cache.default_storage_class().as_deref(), Some("new-a"));
        cache.delete(class("new-a", true, "2025-01-01T00:00:00Z"));
        assert_eq!(cache.default_storage_class().as_deref(), Some("new-b"));
        cache.apply(class("new-b", false, "2025-01-01T00:00:00Z"));
        assert_eq!(cache.default_storage_class().as_deref(), Some("old"));
        assert!(cache.storage_class("plain").unwrap().allows_expansion);
    }

    #[test]
    fn a_relist_forgets_what_was_deleted_meanwhile() {
        let cache = Cache::default();
        cache.apply(network("a", "one"));
        cache.apply(network("b", "one"));
        assert!(cache.has_network("a", "one") && !cache.has_network("c", "one"));
        cache.reset(vec![network("b", "two")]);
        assert!(!cache.has_network("a", "one") && !cache.has_network("b", "one"));
        assert_eq!(cache.network_names("b"), ["two"]);
        cache.delete(network("b", "two"));
        assert!(cache.network_names("b").is_empty());

        cache.apply(template("web", Some("use app")));
        assert_eq!(
            cache.template("web").unwrap().deprecated.as_deref(),
            Some("use app")
        );
        cache.reset(Vec::<MachineTemplate>::new());
        assert!(cache.template("web").is_none() && cache.template_names().is_empty());
    }

    #[test]
    fn complete_is_what_was_listed_even_if_there_was_nothing() {
        let cache = Cache::default();
        cache.apply(template("web", None));
        cache.reset(Vec::<MachineTemplate>::new());
        cache.reset(Vec::<StorageClass>::new());
        assert!(!cache.is_complete());
        cache.reset(Vec::<PartialObjectMeta<NetworkConfiguration>>::new());
        assert!(cache.is_complete());
    }

    #[test]
    fn an_overlay_adds_to_the_cache_and_leaves_it_as_it_is() {
        let cache = Cache::default();
        cache.apply(template("web", None));
        let mut overlay = Overlay::new(&cache);
        let row = Arc::new(template_row(template("late", None)));
        overlay.extend(vec![
            Found::Template("late".into(), row),
            Found::StorageClass("fast".into(), StorageClassRow::default()),
            Found::Network("prod".into()),
        ]);
        assert!(overlay.template("web").is_some() && overlay.template("late").is_some());
        assert!(overlay.storage_class("fast").is_some() && overlay.has_network("any", "prod"));
        assert!(cache.template("late").is_none() && !cache.has_network("any", "prod"));
    }
}
