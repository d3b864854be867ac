//! The rows that the watches keep up to date.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use common::catalog::{
    Catalog, ClaimHolder, ClaimUser, Claims, Counted, HostRow, ImageRow, KubevirtRow, MachineName,
    Machines, NetworkRow, NodeNeed, QuotaRequest, VmSchema,
};
use common::catalog::{Labels, OtherCard, Policy, StorageClassRow, TemplateRow};
use common::catalog::{claim_holder, has_claim, policies_of, usage_beside};
use common::mac::Mac;
use tokio::time::Instant;

use super::admitted::Admitted;
use super::rows::{
    Classes, Hosts, Images, Installation, Namespaces, Networks, Nodes, Policies, PriorityClasses,
    Schema, Templates,
};
use super::table::Table;

/// One table for each watched kind.
#[derive(Debug)]
pub struct Cache {
    /// `MachineTemplate`s.
    pub templates: Arc<Table<Templates>>,
    /// `MachineImage`s.
    pub images: Arc<Table<Images>>,
    /// StorageClasses.
    pub classes: Arc<Table<Classes>>,
    /// `NetworkConfiguration`s.
    pub networks: Arc<Table<Networks>>,
    /// Machines.
    pub machines: Arc<Table<Machines>>,
    /// PersistentVolumeClaims.
    pub claims: Arc<Table<Claims>>,
    /// `LibvirtHost`s.
    pub hosts: Arc<Table<Hosts>>,
    /// `MachinePolicy`s.
    pub policies: Arc<Table<Policies>>,
    /// The `KubeVirt` object, if KubeVirt is installed.
    pub kubevirt: Arc<Table<Installation>>,
    /// The schema of VirtualMachines, if KubeVirt is installed.
    pub vm_schema: Arc<Table<Schema>>,
    /// Nodes, unless the role does not permit to read them.
    pub nodes: Arc<Table<Nodes>>,
    /// PriorityClasses, unless the role does not permit to read them.
    pub priority_classes: Arc<Table<PriorityClasses>>,
    /// Labels of namespaces.
    pub namespaces: Arc<Table<Namespaces>>,
    /// Machines that were admitted a moment ago.
    pub admitted: Admitted,
    /// Uid of the cluster. Set before the first Machine is added, because derived MAC addresses
    /// depend on it.
    pub cluster: OnceLock<Arc<str>>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            templates: Arc::new(Table::new("machinetemplates")),
            images: Arc::new(Table::new("machineimages")),
            classes: Arc::new(Table::new("storageclasses")),
            networks: Arc::new(Table::new("networkconfigurations")),
            machines: Arc::new(Table::new("machines")),
            claims: Arc::new(Table::new("persistentvolumeclaims")),
            hosts: Arc::new(Table::new("libvirthosts")),
            policies: Arc::new(Table::new("machinepolicies")),
            kubevirt: Arc::new(Table::new("kubevirts")),
            vm_schema: Arc::new(Table::new("virtualmachines")),
            nodes: Arc::new(Table::new("nodes")),
            priority_classes: Arc::new(Table::new("priorityclasses")),
            namespaces: Arc::new(Table::new("namespaces")),
            admitted: Admitted::default(),
            cluster: OnceLock::new(),
        }
    }
}

impl Cache {
    /// Whether every kind was listed once, apart from those that a cluster may not have or that a role of an earlier
    /// release does not permit to read. Before that, an object that is not in the cache may exist.
    pub fn is_complete(&self) -> bool {
        self.templates.is_listed()
            && self.images.is_listed()
            && self.classes.is_listed()
            && self.networks.is_listed()
            && self.machines.is_listed()
            && self.claims.is_listed()
            && self.hosts.is_listed()
            && self.policies.is_listed()
            && self.namespaces.is_listed()
    }

    /// The policies that hold for a namespace with these labels.
    pub(super) fn policies_with(&self, labels: Option<&Labels>) -> Option<Vec<Arc<Policy>>> {
        policies_of(self.policies.read().values(), labels)
    }
}

impl Catalog for Cache {
    fn template(&self, name: &str) -> Option<Arc<TemplateRow>> {
        self.templates.read().get(name).cloned()
    }

    fn template_names(&self) -> Vec<String> {
        self.templates.read().keys().cloned().collect()
    }

    fn image(&self, name: &str) -> Option<Arc<ImageRow>> {
        self.images.read().get(name).cloned()
    }

    fn image_names(&self) -> Vec<String> {
        self.images.read().keys().cloned().collect()
    }

    fn storage_class(&self, name: &str) -> Option<StorageClassRow> {
        self.classes.read().get(name)
    }

    fn storage_class_names(&self) -> Vec<String> {
        self.classes.read().names().cloned().collect()
    }

    fn default_storage_class(&self) -> Option<String> {
        self.classes.read().default().cloned()
    }

    fn network(&self, namespace: &str, name: &str) -> Option<NetworkRow> {
        self.networks.read().get(namespace)?.get(name).cloned()
    }

    fn network_names(&self, namespace: &str) -> Vec<String> {
        let networks = self.networks.read();
        let names = networks.get(namespace).into_iter().flat_map(HashMap::keys);
        names.cloned().collect()
    }

    fn hosts(&self) -> Vec<Arc<HostRow>> {
        self.hosts.read().values().cloned().collect()
    }

    fn kubevirt(&self) -> Option<Arc<KubevirtRow>> {
        self.kubevirt.read().clone()
    }

    fn vm_schema(&self) -> Option<Arc<VmSchema>> {
        self.vm_schema.read().clone()
    }

    fn priority_classes(&self) -> Option<Vec<String>> {
        let classes = &self.priority_classes;
        let is_known = classes.is_listed();
        is_known.then(|| classes.read().iter().cloned().collect())
    }

    fn is_offered_by_nodes(&self, need: NodeNeed<'_>) -> Option<bool> {
        let nodes = self.nodes.read();
        (!nodes.is_empty()).then(|| nodes.values().any(|node| node.offers(need)))
    }

    fn derived_mac(&self, machine: MachineName<'_>, nic: &str) -> Mac {
        let cluster = self.cluster.get().map_or("", |uid| uid);
        Mac::derived(cluster, machine.namespace, machine.name, nic)
    }

    fn others_with_mac(&self, machine: MachineName<'_>, mac: Mac) -> Vec<OtherCard> {
        self.machines.read().owned_others_with_mac(machine, mac)
    }

    fn others_with_address(&self, machine: MachineName<'_>, address: IpAddr) -> Vec<OtherCard> {
        self.machines
            .read()
            .owned_others_with_address(machine, address)
    }

    fn claim_holder(&self, machine: MachineName<'_>, disk: &str) -> Option<ClaimHolder> {
        claim_holder(&self.machines.read(), &self.claims.read(), machine, disk)
    }

    fn has_claim(&self, namespace: &str, claim: &str) -> bool {
        has_claim(&self.machines.read(), &self.claims.read(), namespace, claim)
    }

    fn claim_users(&self, machine: MachineName<'_>, claim: &str) -> Vec<ClaimUser> {
        self.machines.read().claim_users(machine, claim)
    }

    fn is_shared_claim(&self, namespace: &str, claim: &str) -> Option<bool> {
        self.claims.read().is_shared(namespace, claim)
    }

    fn policies(&self, namespace: &str) -> Option<Vec<Arc<Policy>>> {
        self.policies_with(self.namespaces.read().get(namespace))
    }
    fn usage_beside(&self, request: &QuotaRequest<'_>) -> Counted {
        let (machines, claims, hosts) =
            (self.machines.read(), self.claims.read(), self.hosts.read());
        let hosts = hosts.values().map(|host| &host.kept);
        let admitted = self
            .admitted
            .beyond(request.machine, &machines, Instant::now());
        let counted = usage_beside(&machines, &claims, hosts, request);
        Counted {
            others: counted.others.plus(admitted),
            ..counted
        }
    }
}
