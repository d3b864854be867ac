//! What rules may ask about the cluster. The webhook answers from watches, tests and the command
//! line from plain maps.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::api::choice::TemplateSource;
use crate::api::machine::{Cpu, Disk, Memory, Resources};
use crate::api::template::TemplateContent;
use crate::names;

/// What is known of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateRow {
    /// Where it came from.
    pub source: TemplateSource,
    /// What Machines take over from it.
    pub content: TemplateContent,
    /// Why it should no longer be used.
    pub deprecated: Option<String>,
}

/// What is known of a storage class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageClassRow {
    /// Whether its claims can grow.
    pub allows_expansion: bool,
}

/// What rules may ask. Answers are immediate: whoever implements this looks nothing up.
pub trait Catalog {
    /// The `MachineTemplate` of this name. Built-in templates are not asked for.
    fn template(&self, name: &str) -> Option<Arc<TemplateRow>>;
    /// Names of all `MachineTemplate`s, in any order. Asked only when one is missing.
    fn template_names(&self) -> Vec<String>;
    /// The storage class of this name.
    fn storage_class(&self, name: &str) -> Option<StorageClassRow>;
    /// Names of all storage classes, in any order. Asked only when one is missing.
    fn storage_class_names(&self) -> Vec<String>;
    /// The cluster's default storage class; the newest if several are marked, as Kubernetes does.
    fn default_storage_class(&self) -> Option<String>;
    /// Whether the namespace has a `NetworkConfiguration` of this name.
    fn has_network(&self, namespace: &str, name: &str) -> bool;
    /// Names of the namespace's `NetworkConfiguration`s, in any order. Asked only when one is
    /// missing.
    fn network_names(&self, namespace: &str) -> Vec<String>;
}

/// A catalog in memory.
#[derive(Clone, Debug, Default)]
pub struct StaticCatalog {
    /// `MachineTemplate`s by name.
    pub templates: BTreeMap<String, Arc<TemplateRow>>,
    /// Storage classes by name.
    pub storage_classes: BTreeMap<String, StorageClassRow>,
    /// The default storage class.
    pub default_storage_class: Option<String>,
    /// Names of `NetworkConfiguration`s by namespace.
    pub networks: BTreeMap<String, Vec<String>>,
}

impl Catalog for StaticCatalog {
    fn template(&self, name: &str) -> Option<Arc<TemplateRow>> {
        self.templates.get(name).cloned()
    }

    fn template_names(&self) -> Vec<String> {
        self.templates.keys().cloned().collect()
    }

    fn storage_class(&self, name: &str) -> Option<StorageClassRow> {
        self.storage_classes.get(name).copied()
    }

    fn storage_class_names(&self) -> Vec<String> {
        self.storage_classes.keys().cloned().collect()
    }

    fn default_storage_class(&self) -> Option<String> {
        self.default_storage_class.clone()
    }

    fn has_network(&self, namespace: &str, name: &str) -> bool {
        self.networks
            .get(namespace)
            .is_some_and(|names| names.iter().any(|known| known == name))
    }

    fn network_names(&self, namespace: &str) -> Vec<String> {
        self.networks.get(namespace).cloned().unwrap_or_default()
    }
}

/// The templates that exist without any object: name, cores, memory, size of the root disk.
/// Numbers of the product's reference.
const BUILT_IN: [(&str, i64, &str, &str); 3] = [
    ("small", 1, "2Gi", "20Gi"),
    ("medium", 2, "4Gi", "40Gi"),
    ("large", 4, "8Gi", "80Gi"),
];

static BUILT_IN_ROWS: LazyLock<BTreeMap<&'static str, Arc<TemplateRow>>> = LazyLock::new(|| {
    BUILT_IN
        .into_iter()
        .map(|(name, cores, memory, root)| (name, Arc::new(built_in_row(cores, memory, root))))
        .collect()
});

fn built_in_row(cores: i64, memory: &str, root: &str) -> TemplateRow {
    TemplateRow {
        source: TemplateSource::BuiltIn,
        deprecated: None,
        content: TemplateContent {
            resources: Some(Resources {
                cpu: Some(Cpu {
                    cores: Some(cores),
                    threads: Some(1),
                    sockets: Some(1),
                    max_sockets: None,
                }),
                memory: Some(Memory {
                    size: Some(memory.to_owned()),
                    max_size: None,
                }),
            }),
            disks: Some(vec![Disk {
                name: Some("root".to_owned()),
                size: Some(root.to_owned()),
                storage_class: Some(names::DEFAULT_STORAGE_CLASS.to_owned()),
                ..Disk::default()
            }]),
            ..TemplateContent::default()
        },
    }
}

/// The built-in template of this name.
pub fn built_in(name: &str) -> Option<Arc<TemplateRow>> {
    BUILT_IN_ROWS.get(name).cloned()
}

/// Names of the built-in templates.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.into_iter().map(|(name, ..)| name)
}
