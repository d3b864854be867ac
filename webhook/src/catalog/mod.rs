//! What the rules may ask about the cluster, in memory.
//!
//! ```text
//!  watches ──▶ Cache (small parsed rows) ◀── Overlay (this review's live reads) ◀── rules
//! ```

mod host;
mod machine;
mod rows;
mod table;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use common::catalog::{Catalog, ClaimHolder, Claims, HostRow, MachineName, Machines, NetworkRow};
use common::catalog::{StorageClassRow, TemplateRow, claim_holder, has_claim};
use common::mac::Mac;

pub use self::host::Host;
pub use self::machine::Machine;
pub use self::rows::{Classes, Hosts, Neighbour, Networks, Templates};
pub use self::rows::{class_row, network_row, template_row};
pub use self::table::{Content, Table};

/// The rows that watches keep up to date.
#[derive(Debug)]
pub struct Cache {
    /// `MachineTemplate`s.
    pub templates: Arc<Table<Templates>>,
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
    /// Uid of the cluster, known before any Machine is.
    pub cluster: OnceLock<Arc<str>>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            templates: Arc::new(Table::new("machinetemplates")),
            classes: Arc::new(Table::new("storageclasses")),
            networks: Arc::new(Table::new("networkconfigurations")),
            machines: Arc::new(Table::new("machines")),
            claims: Arc::new(Table::new("persistentvolumeclaims")),
            hosts: Arc::new(Table::new("libvirthosts")),
            cluster: OnceLock::new(),
        }
    }
}

impl Cache {
    /// Whether every kind was listed once. Before that, what is missing here proves nothing.
    pub fn is_complete(&self) -> bool {
        self.templates.is_listed()
            && self.classes.is_listed()
            && self.networks.is_listed()
            && self.machines.is_listed()
            && self.claims.is_listed()
            && self.hosts.is_listed()
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

    fn derived_mac(&self, machine: MachineName<'_>, nic: &str) -> Mac {
        let cluster = self.cluster.get().map_or("", |uid| uid);
        Mac::derived(cluster, machine.namespace, machine.name, nic)
    }

    fn other_with_mac(&self, machine: MachineName<'_>, network: &str, mac: Mac) -> Option<String> {
        let machines = self.machines.read();
        let other = machines.others_with_mac(machine, network, mac).next();
        other.map(str::to_owned)
    }

    fn claim_holder(&self, machine: MachineName<'_>, disk: &str) -> Option<ClaimHolder> {
        claim_holder(&self.machines.read(), &self.claims.read(), machine, disk)
    }

    fn has_claim(&self, namespace: &str, claim: &str) -> bool {
        has_claim(&self.machines.read(), &self.claims.read(), namespace, claim)
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
    Network(String, NetworkRow),
    /// Every host there is now.
    Hosts(Vec<Arc<HostRow>>),
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

    fn network(&self, namespace: &str, name: &str) -> Option<NetworkRow> {
        self.cache.network(namespace, name).or_else(|| {
            self.found.iter().find_map(|found| match found {
                Found::Network(known, row) if known == name => Some(row.clone()),
                _ => None,
            })
        })
    }

    fn network_names(&self, namespace: &str) -> Vec<String> {
        self.cache.network_names(namespace)
    }

    fn hosts(&self) -> Vec<Arc<HostRow>> {
        let found = self.found.iter().find_map(|found| match found {
            Found::Hosts(hosts) => Some(hosts.clone()),
            _ => None,
        });
        found.unwrap_or_else(|| self.cache.hosts())
    }

    fn derived_mac(&self, machine: MachineName<'_>, nic: &str) -> Mac {
        self.cache.derived_mac(machine, nic)
    }

    fn other_with_mac(&self, machine: MachineName<'_>, network: &str, mac: Mac) -> Option<String> {
        self.cache.other_with_mac(machine, network, mac)
    }

    fn claim_holder(&self, machine: MachineName<'_>, disk: &str) -> Option<ClaimHolder> {
        self.cache.claim_holder(machine, disk)
    }

    fn has_claim(&self, namespace: &str, claim: &str) -> bool {
        self.cache.has_claim(namespace, claim)
    }
}

#[cfg(test)]
mod tests;
