//! The cluster of all reviews, and the webhook that answers them.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use common::admission::{ObjectKind, Settings, Stage};
use common::catalog::Labels;
use common::violation::Reference;
use futures::future::{BoxFuture, ready};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt as _;
use webhook::body::BodyBudget;
use webhook::catalog::{Cache, Found, Host, LiveRow, Lookup, MachineEntry};
use webhook::handler::Handler;
use webhook::router::router;
use webhook::watch::WatchSink;

use crate::reviews::{ReviewContext, with_block};

/// Uid of the cluster.
const CLUSTER: &str = "cluster";

/// The objects of the cluster by kind, as its API server lists them.
static OBJECTS: &str = include_str!("cluster.json");

/// The catalog.
pub(crate) static CACHE: LazyLock<Arc<Cache>> = LazyLock::new(|| {
    let cache = Arc::new(rows());
    let machines = objects::<Value>("machines");
    let machines = machines.iter().map(|machine| {
        let context = ReviewContext {
            kind: ObjectKind::Machine,
            namespace: "default",
            old: None,
            cache: &cache,
        };
        let verdict = context.review(Stage::Mutate, machine);
        let stored = with_block(machine, verdict.block.as_deref());
        MachineEntry::parse(&serde_json::from_value(stored).unwrap(), CLUSTER)
    });
    list(&cache.machines, machines.collect());
    cache
});

fn rows() -> Cache {
    let cache = Cache::default();
    list(&cache.templates, objects("templates"));
    list(&cache.images, objects("images"));
    list(&cache.classes, objects("classes"));
    list(&cache.networks, objects("networks"));
    list::<Host, _>(&cache.hosts, objects("hosts"));
    list(&cache.claims, objects("claims"));
    list(&cache.policies, objects("policies"));
    list(&cache.namespaces, objects("namespaces"));
    cache.cluster.get_or_init(|| CLUSTER.into());
    cache
}

fn objects<T: DeserializeOwned>(kind: &str) -> Vec<T> {
    let mut all: Value = serde_json::from_str(OBJECTS).unwrap();
    serde_json::from_value(all[kind].take()).unwrap()
}

/// Fills rows with a complete list of objects.
fn list<K, R: WatchSink<K>>(rows: &Arc<R>, objects: Vec<K>) {
    let mut listing = R::Listing::default();
    for object in objects {
        R::list(&mut listing, object);
    }
    rows.reset(listing);
}

/// A live read finds no object that the watches have not reported, except the namespace: the API server refuses
/// objects in a namespace that does not exist.
struct NoLiveObjects;

impl Lookup for NoLiveObjects {
    fn find<'a>(&'a self, _: &'a str, wanted: &'a Reference) -> BoxFuture<'a, Found> {
        let is_namespace = *wanted == Reference::Namespace;
        let found = is_namespace.then(|| LiveRow::Namespace(Labels::default()));
        Box::pin(ready(Ok(found)))
    }
}

static WEBHOOK: LazyLock<(Runtime, Router)> = LazyLock::new(|| {
    let reviewer = Handler {
        cache: CACHE.clone(),
        lookup: Box::new(NoLiveObjects),
        settings: Settings::default(),
        budget: BodyBudget::default(),
    };
    let runtime = Builder::new_current_thread().enable_time().build();
    (runtime.unwrap(), router(&Arc::new(reviewer)))
});

/// Sends a body to the webhook.
pub(crate) fn post(path: &str, body: &[u8]) -> (StatusCode, Value) {
    let (runtime, router) = &*WEBHOOK;
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_vec()));
    let response = runtime.block_on(router.clone().oneshot(request.unwrap()));
    let response = response.unwrap();
    let status = response.status();
    let body = runtime.block_on(response.into_body().collect());
    let body = body.unwrap().to_bytes();
    let answer = match status {
        StatusCode::OK => serde_json::from_slice(&body).unwrap(),
        _ => json!(String::from_utf8_lossy(&body)),
    };
    (status, answer)
}
