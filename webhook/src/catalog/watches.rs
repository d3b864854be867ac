//! Starts the watches that feed the cache.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use common::api::{MachineImage, MachinePolicy, MachineTemplate};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use runtime::checks::Checks;
use runtime::cluster::Cluster;
use runtime::tasks::Tasks;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::sleep;

use super::cache::Cache;
use super::claim::Claim;
use super::host::Host;
use super::machine::Machine;
use super::network::Network;
use super::node::Node;
use super::rows::MachineEntry;
use crate::crd::Crd;
use crate::watch::{WatchSink, follow, map_event};

/// Objects per page of a list. etcd stores up to 1.5 MiB of one, and a tenant can fill as many as it may create; a page is in
/// memory twice, as the body of the response and as its text: 60 MiB. Three lists of kinds that tenants create run at the
/// same time when the webhook starts: Machines, claims and networks. That is 180 MiB at most, of the 512 MiB that the
/// webhook has as installed; what is decoded of the metadata is small: see [`runtime::metadata`]. A list of 10,000 objects
/// takes 500 requests of 2 to 5 ms, once in each start.
const PAGE_SIZE: u32 = 20;

/// Name of the CRD of VirtualMachines.
const VM_CRD: &str = "virtualmachines.kubevirt.io";

/// Time between two questions whether the cluster has a kind, which is installed rarely.
const SERVED_INTERVAL: Duration = Duration::from_secs(30);

/// Starts a watch for each kind that the rules may read. Returns the cache that they fill.
pub fn start(tasks: &mut Tasks, client: &Client, ready: &Checks) -> Arc<Cache> {
    // Only the metadata: the labels of a namespace say which policies hold.
    type NamespaceLabels = PartialObjectMeta<Namespace>;
    let cache = Arc::new(Cache::default());
    let mut watches = Watches {
        tasks,
        client,
        ready,
    };
    watches.start::<MachineTemplate, _>("machinetemplates", &cache.templates);
    watches.start::<MachineImage, _>("machineimages", &cache.images);
    watches.start::<StorageClass, _>("storageclasses", &cache.classes);
    watches.start::<Network, _>("networkconfigurations", &cache.networks);
    watches.start::<Host, _>("libvirthosts", &cache.hosts);
    watches.start::<Claim, _>("persistentvolumeclaims", &cache.claims);
    watches.start::<MachinePolicy, _>("machinepolicies", &cache.policies);
    watches.start::<NamespaceLabels, _>("namespaces", &cache.namespaces);
    watches.start_machines(&cache);
    watches.start_kubevirt(&cache);
    let classes = Api::<PartialObjectMeta<PriorityClass>>::all(client.clone());
    let all = in_pages;
    watches.start_if_served("priorityclasses", classes, all(), &cache.priority_classes);
    let nodes = Api::<Node>::all(client.clone());
    watches.start_if_served("nodes", nodes, all(), &cache.nodes);
    let crds = Api::<Crd<Value>>::all(client.clone());
    // With this selector, a role that is limited to the object's name is sufficient.
    let of_vms = all().fields(&format!("metadata.name={VM_CRD}"));
    watches.start_if_served("virtualmachines", crds, of_vms, &cache.vm_schema);
    cache
}

struct Watches<'a> {
    tasks: &'a mut Tasks,
    client: &'a Client,
    ready: &'a Checks,
}

impl Watches<'_> {
    /// Starts a watch on all objects of a kind.
    fn start<K, S>(&mut self, what: &'static str, sink: &Arc<S>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
        S: WatchSink<K> + 'static,
    {
        let events = watcher(Api::all(self.client.clone()), in_pages());
        let synced = self.ready.register(what);
        self.tasks
            .spawn(what, follow(events, sink.clone(), what, synced));
    }

    /// Starts the watch on Machines, once the cluster's uid is known: derived MAC addresses depend
    /// on it.
    fn start_machines(&mut self, cache: &Arc<Cache>) {
        let (cache, client) = (cache.clone(), self.client.clone());
        let cluster = Cluster::new(client.clone(), self.ready.register("cluster"));
        let synced = self.ready.register("machines");
        self.tasks.spawn("machines", async move {
            let uid = cluster.uid().await;
            let uid = cache.cluster.get_or_init(|| uid);
            let events = watcher(Api::<Machine>::all(client), in_pages());
            let parse = |machine| MachineEntry::parse(&machine, uid);
            let events = events.map_ok(|event| map_event(event, parse));
            follow(events, cache.machines.clone(), "machines", synced).await
        });
    }

    /// Starts the watch on the `KubeVirt` object, which a cluster may not have.
    fn start_kubevirt(&mut self, cache: &Arc<Cache>) {
        let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "KubeVirt");
        let kind = ApiResource::from_gvk_with_plural(&kind, "kubevirts");
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &kind);
        self.start_if_served("kubevirts", api, in_pages(), &cache.kubevirt);
    }

    /// Starts a watch that nothing waits for: a cluster may not have the kind, and a role of an earlier release does not
    /// permit to read it.
    fn start_if_served<K, S>(
        &mut self,
        what: &'static str,
        api: Api<K>,
        config: watcher::Config,
        sink: &Arc<S>,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        S: WatchSink<K> + 'static,
    {
        let sink = sink.clone();
        self.tasks.spawn(what, async move {
            until_served(&api, &config).await;
            let events = watcher(api, config);
            let synced = Checks::default().register(what);
            follow(events, sink, what, synced).await
        });
    }
}

/// Waits until the cluster serves a kind and the role permits to list it.
async fn until_served<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, config: &watcher::Config) {
    let one = ListParams {
        field_selector: config.field_selector.clone(),
        ..ListParams::default().limit(1)
    };
    while api.list(&one).await.is_err() {
        sleep(SERVED_INTERVAL).await;
    }
}

fn in_pages() -> watcher::Config {
    watcher::Config::default().page_size(PAGE_SIZE)
}
