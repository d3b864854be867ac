//! What all parts of the simulator share: the client, the scenarios, and how a part reads, writes and retries.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    runtime::{controller::Action, reflector::Store},
};
use serde_json::Value;

use super::{
    hotplug::Gate,
    kinds::{INSTANCE, Kind},
    scenario::{Scenario, Scenarios},
};

/// Interval between attempts after a failed write, such as a conflict or an unreachable API server.
const RETRY: Duration = Duration::from_millis(200);

/// Pause after the first failed start, in milliseconds, so that tests do not wait for minutes. KubeVirt's is 10 s.
const START_PAUSE: u64 = 1000;

/// State that all parts of the simulator share.
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) scenarios: Scenarios,
    /// The port of virt-api's admission while it does not answer.
    pub(super) admission: Mutex<Option<TcpListener>>,
    /// Pause after the first failed start, in milliseconds.
    pub(super) start_pause: AtomicU64,
    /// Whether volumes are plugged into running guests.
    pub(super) plugs_volumes: AtomicBool,
    /// Whether guests get the size of volumes that have grown.
    pub(super) expands_disks: AtomicBool,
    /// Size of each disk that is a file, in bytes, by uid of its claim.
    pub(super) file_sizes: Mutex<BTreeMap<String, u64>>,
    /// The claims of the cluster, from the watch of [`claims`](super::storage::claims).
    pub(super) claims: OnceLock<Store<PersistentVolumeClaim>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("scenarios", &self.scenarios)
            .finish_non_exhaustive()
    }
}

impl Context {
    pub(super) fn new(client: Client, scenario: Scenario) -> Self {
        Self {
            client,
            scenarios: Scenarios::new(scenario),
            admission: Mutex::default(),
            start_pause: AtomicU64::new(START_PAUSE),
            plugs_volumes: AtomicBool::new(true),
            expands_disks: AtomicBool::new(true),
            file_sizes: Mutex::default(),
            claims: OnceLock::new(),
        }
    }

    pub(super) fn instances(&self, namespace: &str) -> Api<DynamicObject> {
        self.api(&INSTANCE, namespace)
    }

    pub(super) fn api(&self, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind.resource())
    }

    pub(super) fn all(&self, kind: &Kind) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &kind.resource())
    }

    pub(super) fn hotplug(&self) -> Gate {
        if self.plugs_volumes.load(Ordering::Relaxed) {
            Gate::Enabled
        } else {
            Gate::Disabled
        }
    }

    /// Whether the kind is installed.
    pub(super) async fn has(&self, kind: &Kind) -> bool {
        let one = ListParams::default().limit(1);
        self.all(kind).list(&one).await.is_ok()
    }
}

/// Runs a controller until its stream ends; the controller retries failures.
pub(super) async fn drain<T>(stream: impl Stream<Item = T>) {
    let mut stream = pin!(stream);
    while stream.next().await.is_some() {}
}

/// Retries every failure after the same short time.
pub(super) fn retry<K, E>(_: Arc<K>, _: &E, _: Arc<Context>) -> Action {
    Action::requeue(RETRY)
}

pub(super) async fn merge(
    api: &Api<DynamicObject>,
    name: &str,
    patch: &Value,
) -> Result<(), kube::Error> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(drop)
}

/// Whole seconds since an object was created, or since its deletion was requested.
pub(super) fn age(time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>) -> Duration {
    let now = k8s_openapi::jiff::Timestamp::now();
    time.and_then(|time| Duration::try_from(now.duration_since(time.0)).ok())
        .unwrap_or_default()
}
