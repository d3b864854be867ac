//! A webhook whose cache has read a small cluster.

use std::sync::Arc;

use axum::Router;
use common::admission::Settings;
use common::api::{MachineImage, MachinePolicy, MachineTemplate};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use serde_json::json;
use webhook::body::BodyBudget;
use webhook::catalog::{Cache, Claim, Host, Lookup, MachineEntry, Network};
use webhook::handler::Handler;
use webhook::router::router;
use webhook::watch::WatchSink;

/// The cache of a cluster with one storage class and nothing else.
pub(crate) fn cache() -> Cache {
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {
            "name": "standard",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "x",
    }))
    .unwrap();
    let cache = Cache::default();
    list::<MachineTemplate, _>(&cache.templates, vec![]);
    list::<MachineImage, _>(&cache.images, vec![]);
    list::<Network, _>(&cache.networks, vec![]);
    list::<Host, _>(&cache.hosts, vec![]);
    list::<Claim, _>(&cache.claims, vec![]);
    list::<MachineEntry, _>(&cache.machines, vec![]);
    list::<MachinePolicy, _>(&cache.policies, vec![]);
    list::<PartialObjectMeta<Namespace>, _>(&cache.namespaces, vec![]);
    list(&cache.classes, vec![class]);
    cache
}

/// Replaces the rows by a complete list.
fn list<K, R: WatchSink<K>>(rows: &Arc<R>, objects: Vec<K>) {
    let mut listing = R::Listing::default();
    for object in objects {
        R::list(&mut listing, object);
    }
    rows.reset(listing);
}

/// A webhook with this cache and this lookup.
pub(crate) fn app_with(cache: Cache, lookup: impl Lookup + 'static) -> Router {
    router(&Arc::new(Handler {
        cache: Arc::new(cache),
        lookup: Box::new(lookup),
        settings: Settings::default(),
        budget: BodyBudget::default(),
    }))
}
