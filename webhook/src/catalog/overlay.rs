//! The cache with the live reads of one review.
//!
//! They are not added to the cache, which only the watches change
//! (`an_overlay_adds_live_rows_without_changing_the_cache` in `tests.rs`).

use std::net::IpAddr;
use std::sync::Arc;

use common::catalog::{
    Catalog, ClaimHolder, ClaimUser, Counted, HostRow, ImageRow, KubevirtRow, MachineName,
    NetworkRow, NodeNeed, QuotaRequest, VmSchema,
};
use common::catalog::{Labels, OtherCard, Policy, StorageClassRow, TemplateRow};
use common::mac::Mac;

use super::cache::Cache;

/// What a live read found.
#[derive(Debug, Clone)]
pub enum LiveRow {
    /// The template of this name.
    Template(String, Arc<TemplateRow>),
    /// The image of this name.
    Image(String, Arc<ImageRow>),
    /// The storage class of this name.
    StorageClass(String, StorageClassRow),
    /// The PriorityClass of this name.
    PriorityClass(String),
    /// The network of this namespace and name.
    Network(String, String, NetworkRow),
    /// All hosts.
    Hosts(Vec<Arc<HostRow>>),
    /// Labels of the namespace of the reviewed object.
    Namespace(Labels),
}

/// The cache, and what was read live for one review.
#[derive(Debug)]
pub struct Overlay<'a> {
    cache: &'a Cache,
    live: Vec<LiveRow>,
}

impl<'a> Overlay<'a> {
    /// The cache alone.
    pub fn new(cache: &'a Cache) -> Self {
        Self {
            cache,
            live: Vec::new(),
        }
    }

    /// Adds what was read live.
    pub fn extend(&mut self, live: Vec<LiveRow>) {
        self.live.extend(live);
    }
}

impl Catalog for Overlay<'_> {
    fn template(&self, name: &str) -> Option<Arc<TemplateRow>> {
        self.cache.template(name).or_else(|| {
            self.live.iter().find_map(|live| match live {
                LiveRow::Template(of, row) if of == name => Some(row.clone()),
                _ => None,
            })
        })
    }

    fn template_names(&self) -> Vec<String> {
        self.cache.template_names()
    }

    fn image(&self, name: &str) -> Option<Arc<ImageRow>> {
        self.cache.image(name).or_else(|| {
            self.live.iter().find_map(|live| match live {
                LiveRow::Image(of, row) if of == name => Some(row.clone()),
                _ => None,
            })
        })
    }

    fn image_names(&self) -> Vec<String> {
        self.cache.image_names()
    }

    fn storage_class(&self, name: &str) -> Option<StorageClassRow> {
        self.cache.storage_class(name).or_else(|| {
            self.live.iter().find_map(|live| match live {
                LiveRow::StorageClass(of, row) if of == name => Some(*row),
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
            self.live.iter().find_map(|live| match live {
                LiveRow::Network(within, of, row) if (&**within, &**of) == (namespace, name) => {
                    Some(row.clone())
                }
                _ => None,
            })
        })
    }

    fn network_names(&self, namespace: &str) -> Vec<String> {
        self.cache.network_names(namespace)
    }

    fn hosts(&self) -> Vec<Arc<HostRow>> {
        let live = self.live.iter().find_map(|live| match live {
            LiveRow::Hosts(hosts) => Some(hosts.clone()),
            _ => None,
        });
        live.unwrap_or_else(|| self.cache.hosts())
    }

    fn kubevirt(&self) -> Option<Arc<KubevirtRow>> {
        self.cache.kubevirt()
    }

    fn vm_schema(&self) -> Option<Arc<VmSchema>> {
        self.cache.vm_schema()
    }

    fn priority_classes(&self) -> Option<Vec<String>> {
        let mut names = self.cache.priority_classes()?;
        names.extend(self.live.iter().filter_map(|live| match live {
            LiveRow::PriorityClass(name) => Some(name.clone()),
            _ => None,
        }));
        Some(names)
    }

    fn is_offered_by_nodes(&self, need: NodeNeed<'_>) -> Option<bool> {
        self.cache.is_offered_by_nodes(need)
    }

    fn derived_mac(&self, machine: MachineName<'_>, nic: &str) -> Mac {
        self.cache.derived_mac(machine, nic)
    }

    fn others_with_mac(&self, machine: MachineName<'_>, mac: Mac) -> Vec<OtherCard> {
        self.cache.others_with_mac(machine, mac)
    }

    fn others_with_address(&self, machine: MachineName<'_>, address: IpAddr) -> Vec<OtherCard> {
        self.cache.others_with_address(machine, address)
    }

    fn claim_holder(&self, machine: MachineName<'_>, disk: &str) -> Option<ClaimHolder> {
        self.cache.claim_holder(machine, disk)
    }

    fn has_claim(&self, namespace: &str, claim: &str) -> bool {
        self.cache.has_claim(namespace, claim)
    }

    fn claim_users(&self, machine: MachineName<'_>, claim: &str) -> Vec<ClaimUser> {
        self.cache.claim_users(machine, claim)
    }

    fn is_shared_claim(&self, namespace: &str, claim: &str) -> Option<bool> {
        self.cache.is_shared_claim(namespace, claim)
    }

    fn policies(&self, namespace: &str) -> Option<Vec<Arc<Policy>>> {
        self.cache.policies(namespace).or_else(|| {
            let labels = self.live.iter().find_map(|live| match live {
                LiveRow::Namespace(labels) => Some(labels),
                _ => None,
            });
            self.cache.policies_with(labels)
        })
    }
    fn usage_beside(&self, request: &QuotaRequest<'_>) -> Counted {
        self.cache.usage_beside(request)
    }
}
