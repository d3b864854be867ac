//! A webhook that has read a small cluster.

use std::sync::Arc;

use axum::Router;
use common::admission::Settings;
use common::api::{MachineTemplate, NetworkConfiguration};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::PartialObjectMeta;
use serde_json::json;
use webhook::body::Budget;
use webhook::catalog::{Cache, Host, Neighbour};
use webhook::handler::Reviewer;
use webhook::lookup::Lookup;
use webhook::router::router;
use webhook::watch::Rows;

/// A cluster with nothing but a storage class.
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
    list::<NetworkConfiguration, _>(&cache.networks, vec![]);
    list::<Host, _>(&cache.hosts, vec![]);
    list::<PartialObjectMeta<PersistentVolumeClaim>, _>(&cache.claims, vec![]);
    list::<Neighbour, _>(&cache.machines, vec![]);
    list(&cache.classes, vec![class]);
    cache
}

/// What a complete list makes of these rows.
fn list<K, R: Rows<K>>(rows: &Arc<R>, objects: Vec<K>) {
    let mut listing = R::Listing::default();
    for object in objects {
        R::list(&mut listing, object);
    }
    rows.reset(listing);
}

/// A webhook that knows this, and looks up the rest.
pub(crate) fn app_with(cache: Cache, lookup: impl Lookup + 'static) -> Router {
    router(&Arc::new(Reviewer {
        cache: Arc::new(cache),
        lookup: Box::new(lookup),
        settings: Settings::default(),
        budget: Budget::default(),
    }))
}
