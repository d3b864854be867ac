//! The rows of each kind, and the index that finds them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use common::api::choice::TemplateSource;
use common::api::{MachineImage, MachinePolicy, MachineTemplate};
use common::catalog::{
    Claims, HostRow, ImageRow, KubevirtRow, Labels, MachineName, MachineRow, Machines, NetworkRow,
    NodeRow, Policy, StorageClassRow, TemplateRow, VmSchema,
};
use common::mac::Mac;
use common::names;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::{DynamicObject, PartialObjectMeta};
use serde_json::Value;

use super::claim::Claim;
use super::host::Host;
use super::machine::{Machine, Spec};
use super::network::Network;
use super::node::Node;
use super::table::RowSet;
use crate::crd::{Crd, Version};

/// Templates by name.
pub(super) type Templates = HashMap<String, Arc<TemplateRow>>;

/// Images by name.
pub(super) type Images = HashMap<String, Arc<ImageRow>>;

/// Networks by namespace and name.
pub(super) type Networks = HashMap<String, HashMap<String, NetworkRow>>;

/// libvirt hosts by name.
pub(super) type Hosts = BTreeMap<String, Arc<HostRow>>;

/// Policies by name.
pub(super) type Policies = BTreeMap<String, Arc<Policy>>;

/// Labels of namespaces by name.
pub(super) type Namespaces = HashMap<String, Labels>;

/// The `KubeVirt` object, of which a cluster has one at most.
pub(super) type Installation = Option<Arc<KubevirtRow>>;

/// The schema of VirtualMachines.
pub(super) type Schema = Option<Arc<VmSchema>>;

/// Nodes by name.
pub(super) type Nodes = HashMap<String, NodeRow>;

/// Names of PriorityClasses.
pub(super) type PriorityClasses = BTreeSet<String>;

/// Storage classes by name.
#[derive(Debug, Default)]
pub struct Classes {
    rows: HashMap<String, Class>,
    /// Name of the default class. Stored, because every Machine that names no class needs it.
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
        let annotation = |key: &str| class.annotations().get(key).map(String::as_str);
        Self {
            row: class_row(class),
            default: names::is_default_class(annotation),
            created: class.creation_timestamp().map(|time| time.0),
        }
    }
}

impl Classes {
    pub(super) fn get(&self, name: &str) -> Option<StorageClassRow> {
        self.rows.get(name).map(|class| class.row)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.rows.keys()
    }

    pub(super) fn default(&self) -> Option<&String> {
        self.default.as_ref()
    }

    /// The newest of the marked classes, then the first by name: the choice that Kubernetes makes.
    fn choose_default(&mut self) {
        let marked = self.rows.iter().filter(|(_, class)| class.default);
        self.default = marked
            .max_by(|(name_a, a), (name_b, b)| {
                a.created.cmp(&b.created).then_with(|| name_b.cmp(name_a))
            })
            .map(|(name, _)| name.clone());
    }
}

/// Makes the row of a template.
pub fn template_row(template: MachineTemplate) -> TemplateRow {
    TemplateRow {
        source: TemplateSource::MachineTemplate,
        deprecated: template.spec.deprecated.clone(),
        content: Arc::new(template.spec.into()),
    }
}

/// Makes the row of a storage class.
pub(super) fn class_row(class: &StorageClass) -> StorageClassRow {
    StorageClassRow {
        allows_expansion: class.allow_volume_expansion.unwrap_or(false),
    }
}

impl RowSet<MachineTemplate> for Templates {
    fn insert(&mut self, template: MachineTemplate) {
        let name = template.name_any();
        Self::insert(self, name, Arc::new(template_row(template)));
    }

    fn remove(&mut self, template: MachineTemplate) {
        Self::remove(self, &template.name_any());
    }

    fn count(&self) -> usize {
        self.len()
    }
}

/// Makes the row of an image; `None` for one that was written without admission and cannot be used.
pub(super) fn image_row(image: &MachineImage) -> Option<ImageRow> {
    ImageRow::new(&image.name_any(), &image.spec)
}

impl RowSet<MachineImage> for Images {
    fn insert(&mut self, image: MachineImage) {
        let name = image.name_any();
        match image_row(&image) {
            Some(row) => Self::insert(self, name, Arc::new(row)),
            None => Self::remove(self, &name),
        };
    }

    fn remove(&mut self, image: MachineImage) {
        Self::remove(self, &image.name_any());
    }

    fn count(&self) -> usize {
        self.len()
    }
}

impl RowSet<StorageClass> for Classes {
    fn insert(&mut self, class: StorageClass) {
        self.rows.insert(class.name_any(), Class::parse(&class));
        self.choose_default();
    }

    fn remove(&mut self, class: StorageClass) {
        self.rows.remove(&class.name_any());
        self.choose_default();
    }

    fn count(&self) -> usize {
        self.rows.len()
    }
}

impl RowSet<Network> for Networks {
    fn insert(&mut self, network: Network) {
        let rows = self.entry(network.namespace().unwrap_or_default());
        rows.or_default()
            .insert(network.name_any(), network.spec.into());
    }

    fn remove(&mut self, network: Network) {
        let namespace = network.namespace().unwrap_or_default();
        if let Some(rows) = self.get_mut(&namespace) {
            rows.remove(&network.name_any());
            if rows.is_empty() {
                Self::remove(self, &namespace);
            }
        }
    }

    fn count(&self) -> usize {
        self.values().map(HashMap::len).sum()
    }
}

impl RowSet<Host> for Hosts {
    fn insert(&mut self, host: Host) {
        let name = host.name_any();
        match host.row() {
            Some(row) => Self::insert(self, name, row),
            None => Self::remove(self, &name),
        };
    }

    fn remove(&mut self, host: Host) {
        Self::remove(self, &host.name_any());
    }

    fn count(&self) -> usize {
        self.len()
    }
}

impl RowSet<MachinePolicy> for Policies {
    fn insert(&mut self, policy: MachinePolicy) {
        let name = policy.name_any();
        match Policy::new(name.clone(), policy.spec) {
            Some(row) => Self::insert(self, name, Arc::new(row)),
            None => Self::remove(self, &name),
        };
    }

    fn remove(&mut self, policy: MachinePolicy) {
        Self::remove(self, &policy.name_any());
    }

    fn count(&self) -> usize {
        self.len()
    }
}

impl RowSet<DynamicObject> for Installation {
    fn insert(&mut self, object: DynamicObject) {
        let (spec, status) = (&object.data["spec"], &object.data["status"]);
        *self = Some(Arc::new(KubevirtRow::new(spec, status)));
    }

    fn remove(&mut self, _: DynamicObject) {
        *self = None;
    }

    fn count(&self) -> usize {
        usize::from(self.is_some())
    }
}

impl RowSet<Crd<Value>> for Schema {
    fn insert(&mut self, crd: Crd<Value>) {
        let versions = crd.into_versions().into_iter();
        let mut stored = versions.filter(|version| version.served && version.storage);
        let schema = stored.find_map(Version::into_schema);
        *self = schema.map(|schema| Arc::new(VmSchema::new(schema)));
    }

    fn remove(&mut self, _: Crd<Value>) {
        *self = None;
    }

    fn count(&self) -> usize {
        usize::from(self.is_some())
    }
}

impl RowSet<Node> for Nodes {
    fn insert(&mut self, node: Node) {
        Self::insert(self, node.name_any(), node.row());
    }

    fn remove(&mut self, node: Node) {
        Self::remove(self, &node.name_any());
    }

    fn count(&self) -> usize {
        self.len()
    }
}

impl RowSet<PartialObjectMeta<PriorityClass>> for PriorityClasses {
    fn insert(&mut self, class: PartialObjectMeta<PriorityClass>) {
        Self::insert(self, class.name_any());
    }

    fn remove(&mut self, class: PartialObjectMeta<PriorityClass>) {
        Self::remove(self, &class.name_any());
    }

    fn count(&self) -> usize {
        self.len()
    }
}

impl RowSet<PartialObjectMeta<Namespace>> for Namespaces {
    fn insert(&mut self, namespace: PartialObjectMeta<Namespace>) {
        let name = namespace.name_any();
        Self::insert(self, name, namespace.metadata.labels.unwrap_or_default());
    }

    fn remove(&mut self, namespace: PartialObjectMeta<Namespace>) {
        Self::remove(self, &namespace.name_any());
    }

    fn count(&self) -> usize {
        self.len()
    }
}

impl RowSet<Claim> for Claims {
    fn insert(&mut self, claim: Claim) {
        if claim.metadata.deletion_timestamp.is_some() {
            // A claim that is being deleted occupies no name: the controller waits until it is gone.
            return RowSet::remove(self, claim);
        }
        let namespace = claim.namespace().unwrap_or_default();
        let label = |key: &str| claim.labels().get(key).map(String::as_str);
        let storage = claim.storage;
        let name = claim.name_any();
        Self::insert(
            self,
            &namespace,
            &name,
            label,
            storage.size,
            storage.is_shared,
        );
    }

    fn remove(&mut self, claim: Claim) {
        let namespace = claim.namespace().unwrap_or_default();
        Self::remove(self, &namespace, &claim.name_any());
    }

    fn count(&self) -> usize {
        self.len()
    }
}

/// A Machine reduced to what the rules read of other Machines.
#[derive(Debug, Clone)]
pub struct MachineEntry {
    namespace: String,
    name: String,
    row: MachineRow,
}

impl MachineEntry {
    /// Makes the entry of a Machine. MAC addresses that it does not set are derived from the uid of the
    /// cluster.
    pub fn parse(machine: &Machine, cluster: &str) -> Self {
        let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
        let derived = |nic: &str| Mac::derived(cluster, &namespace, &name, nic);
        let row = match &machine.spec {
            Spec::Readable(block) => {
                let row = MachineRow::of(block, derived).keeping(block, machine.volumes());
                row.with_allocated(block, machine.allocated())
                    .running(block, machine.pending())
            }
            Spec::Unreadable(row) => row.clone(),
        };
        Self {
            namespace,
            name,
            row,
        }
    }
}

impl RowSet<MachineEntry> for Machines {
    fn insert(&mut self, entry: MachineEntry) {
        let (namespace, name) = (&entry.namespace, &entry.name);
        Self::insert(self, MachineName { namespace, name }, entry.row);
    }

    fn remove(&mut self, entry: MachineEntry) {
        let (namespace, name) = (&entry.namespace, &entry.name);
        Self::remove(self, MachineName { namespace, name });
    }

    fn count(&self) -> usize {
        self.len()
    }
}
