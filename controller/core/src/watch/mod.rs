//! The watches, and which Machines an event concerns.
//!
//! ```text
//! Machine ──────────────▶ itself, other Machines that share an address or a claim with it, and held Machines of its
//!                         namespace if it uses less of the quota
//! NetworkConfiguration ─▶ Machines of the namespace that name it
//! Secret of a user ─────▶ Machines that refer to it
//! StorageClass, image, template ▶ Machines that name it
//! MachineAddress ───────▶ the Machine that it names; once it is released, those that wait for an address
//! policy, namespace ────▶ Machines whose quota may have changed
//! ```
//! Backends add watches of their own kinds with [`Watches::spawn`]. The watches run on every replica; triggers are
//! dropped until the replica holds the Lease.

mod follow;
mod secrets;

use std::convert::Infallible;
use std::sync::Arc;

use common::catalog::Usage;
use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use runtime::cluster::Cluster;
use runtime::outage::{Outage, RetryDelay};
use runtime::tasks::Tasks;

use self::follow::log_failure;
pub use self::follow::watch_config;
use crate::cache::{Cache, Change};
use crate::caches::{Caches, machines_where};
use crate::machine::CachedMachine;
use crate::objects::{Cacheable, Image, Meta, Network};
use crate::quota::objects::{Namespace, PolicyObject};
use crate::triggers::Triggers;

/// Starts watches as tasks, each of which fills a cache.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct Watches<'a> {
    client: &'a Client,
    tasks: &'a mut Tasks,
    /// Where the watches report changes.
    pub triggers: Triggers,
    /// What the watches fill.
    pub caches: Caches,
}

impl<'a> Watches<'a> {
    /// Starts the watches of the kinds that every backend needs.
    pub fn start(client: &'a Client, cluster: Cluster, tasks: &'a mut Tasks) -> Self {
        let (machines, writer) = store();
        let mut watches = Self {
            client,
            tasks,
            triggers: Triggers::default(),
            caches: Caches::new(machines),
        };
        watches.spawn_machines(writer, cluster);
        let (triggers, caches) = (watches.triggers.clone(), watches.caches.clone());
        let secrets = secrets::watch(client.clone(), triggers, caches);
        watches.tasks.spawn(secrets::NAME, secrets);
        watches.spawn_networks();
        watches.spawn_addresses();
        watches.spawn_classes_images_and_templates();
        watches.spawn_policies_and_namespaces();
        watches
    }

    /// The caches that are filled, and where changes are reported.
    pub fn into_parts(self) -> (Caches, Triggers) {
        (self.caches, self.triggers)
    }

    /// Starts the watch of one kind, which fills `cache`. `concerned` returns the Machines that get a pass for a
    /// change. Every Machine gets one when the API server begins or ends to serve the kind.
    pub fn spawn<K>(
        &mut self,
        name: &'static str,
        config: watcher::Config,
        cache: &Cache<K>,
        concerned: impl Fn(&Change<K>, &Store<CachedMachine>) -> Vec<ObjectRef<CachedMachine>>
        + Send
        + Sync
        + 'static,
    ) where
        K: Cacheable + Clone + std::fmt::Debug + Send + Sync + 'static,
    {
        let api = Api::<K>::all(self.client.clone());
        let cache = cache.clone();
        let triggers = self.triggers.clone();
        let machines = self.caches.machines.clone();
        self.tasks.spawn(name, async move {
            let changed = |change: &Change<K>| triggers.send(concerned(change, &machines));
            let availability_changed = || triggers.send(machines_where(&machines, |_| true));
            follow::follow(name, api, config, cache, changed, availability_changed).await
        });
    }

    fn spawn_machines(&mut self, mut writer: Writer<CachedMachine>, cluster: Cluster) {
        const NAME: &str = "watch of machines";
        let api = Api::<CachedMachine>::all(self.client.clone());
        let (triggers, caches) = (self.triggers.clone(), self.caches.clone());
        self.tasks.spawn(NAME, async move {
            // Derived MAC addresses contain the uid of the cluster, and the address index holds them.
            let cluster = cluster.uid().await;
            let stream = watcher::watcher(api, watch_config()).backoff(RetryDelay::default());
            let mut stream = std::pin::pin!(stream);
            let mut outage = Outage::default();
            while let Some(event) = stream.next().await {
                let mut networks_changed = false;
                if let Ok(event) = &event {
                    networks_changed = changes_networks(event, &caches);
                    let used = usage_in_namespace_of(event, &caches);
                    // The caches before the triggers: a pass that starts earlier would not see the change.
                    let concerned = caches.apply(event, &mut writer, &cluster);
                    triggers.send(concerned);
                    if let Event::Delete(machine) = event {
                        caches.quotas.machine_deleted(machine);
                    }
                    if let (Event::Apply(machine) | Event::Delete(machine), Some(used)) =
                        (event, used)
                        && caches
                            .address_index
                            .usage(machine.namespace())
                            .is_less_in_part(used)
                    {
                        triggers.send(caches.quotas.held_in(machine.namespace()));
                    }
                }
                match event {
                    Ok(Event::Apply(machine) | Event::Delete(machine)) => {
                        outage.succeeded();
                        if networks_changed {
                            triggers.network_namespaces.push(machine.namespace());
                        }
                        triggers.send([ObjectRef::from_obj(&machine)]);
                    }
                    // The store has the objects of a list only once it is complete: a pass before would see the old one.
                    Ok(Event::InitApply(_)) => outage.succeeded(),
                    // Machines that are missing in the new list were deleted, and no event reports that.
                    Ok(Event::InitDone) => {
                        caches.machines_listed.send_replace(true);
                        triggers.send(machines_where(&caches.machines, |_| true));
                        triggers.network_namespaces.push_all(&caches.networks);
                    }
                    Ok(Event::Init) => {}
                    Err(error) => log_failure(&mut outage, NAME, &error),
                }
            }
            Ok::<_, Infallible>(())
        });
    }

    /// A MachinePolicy or a namespace that changes can hold Machines, or release them.
    fn spawn_policies_and_namespaces(&mut self) {
        self.spawn(
            "watch of policies",
            watch_config(),
            &self.caches.policies.clone(),
            |change, machines| {
                // A change of the status alone, which the controller writes, triggers no pass.
                let decides = |policy: &Option<Arc<PolicyObject>>| {
                    let spec = policy.as_ref().map(|policy| policy.spec.clone())?;
                    Some((spec.namespace_selector, spec.quota))
                };
                if decides(&change.old) == decides(&change.new) {
                    return vec![];
                }
                machines_where(machines, |_| true)
            },
        );
        let policies = self.caches.policies.clone();
        self.spawn(
            "watch of namespaces",
            watch_config(),
            &self.caches.namespaces.clone(),
            move |change, machines| {
                let labels =
                    |namespace: &Option<Arc<Namespace>>| Some(namespace.as_ref()?.labels());
                let mut is_governed = false;
                policies.for_each_summary(|_, _| is_governed = true);
                match &change.new {
                    Some(new) if is_governed && labels(&change.old) != labels(&change.new) => {
                        machines_where(machines, |machine| machine.namespace() == new.name())
                    }
                    _ => vec![],
                }
            },
        );
    }

    fn spawn_networks(&mut self) {
        let namespaces = self.triggers.network_namespaces.clone();
        self.spawn(
            "watch of networks",
            watch_config(),
            &self.caches.networks.clone(),
            move |change, machines| {
                let Some(network) = change.object() else {
                    return vec![];
                };
                namespaces.push(network.namespace());
                // A change of the status alone, which the controller writes, triggers no pass.
                let decides = |network: &Option<Arc<Network>>| {
                    let network = network.as_ref()?;
                    Some((network.uid().to_owned(), network.spec.clone()))
                };
                if decides(&change.old) == decides(&change.new) {
                    return vec![];
                }
                machines_where(machines, |machine| {
                    machine.namespace() == network.namespace()
                        && machine.uses_network(network.name())
                })
            },
        );
    }

    fn spawn_addresses(&mut self) {
        let waiting = self.caches.waiting_for_address.clone();
        self.spawn(
            "watch of machine addresses",
            watch_config(),
            &self.caches.addresses.clone(),
            move |change, _| {
                let holder = change.object().map(|address| {
                    let holder = &address.spec.machine_ref;
                    ObjectRef::new(&holder.name).within(&holder.namespace)
                });
                let mut concerned: Vec<_> = holder.into_iter().collect();
                if let (Some(old), None) = (change.object(), &change.new) {
                    concerned.extend(waiting.on(&old.spec.segment));
                }
                concerned
            },
        );
    }

    fn spawn_classes_images_and_templates(&mut self) {
        self.spawn(
            "watch of storage classes",
            watch_config(),
            &self.caches.classes.clone(),
            |change, machines| {
                let Some(class) = change.object() else {
                    return vec![];
                };
                machines_where(machines, |machine| machine.uses_class(class.name()))
            },
        );
        self.spawn(
            "watch of images",
            watch_config(),
            &self.caches.images.clone(),
            |change, machines| {
                // A change of the status alone, which the controller writes, triggers no pass.
                let spec = |image: &Option<Arc<Image>>| Some(image.as_ref()?.spec.clone());
                if spec(&change.old) == spec(&change.new) {
                    return vec![];
                }
                let Some(image) = change.object() else {
                    return vec![];
                };
                machines_where(machines, |machine| machine.uses_image(image.name()))
            },
        );
        self.spawn(
            "watch of templates",
            watch_config(),
            &self.caches.templates.clone(),
            |change, machines| {
                let Some(template) = change.object() else {
                    return vec![];
                };
                machines_where(machines, |machine| {
                    machine.uses_template(template.name())
                        || machine.errors.contain("TemplateNotFound")
                })
            },
        );
    }
}

/// Whether the event changes which networks a Machine names. Most events are changes of a status, which do not.
fn changes_networks(event: &Event<CachedMachine>, caches: &Caches) -> bool {
    match event {
        Event::Apply(machine) => {
            let before = caches.machines.get(&ObjectRef::from_obj(machine));
            let before = before.iter().flat_map(|before| before.networks());
            !before.eq(machine.networks())
        }
        Event::Delete(machine) => machine.networks().next().is_some(),
        Event::Init | Event::InitApply(_) | Event::InitDone => false,
    }
}

/// What the Machines of the event's namespace use of its quota, before the event.
fn usage_in_namespace_of(event: &Event<CachedMachine>, caches: &Caches) -> Option<Usage> {
    match event {
        Event::Apply(machine) | Event::Delete(machine) => {
            Some(caches.address_index.usage(machine.namespace()))
        }
        Event::Init | Event::InitApply(_) | Event::InitDone => None,
    }
}

/// The Machine by which the cache finds the object, before and after the change.
pub fn machine_by_label<K: Cacheable>(change: &Change<K>) -> Vec<ObjectRef<CachedMachine>> {
    [&change.old, &change.new]
        .into_iter()
        .flatten()
        .filter_map(|object| {
            let machine = object.indexed_machine()?;
            Some(ObjectRef::new(machine).within(object.namespace()))
        })
        .collect()
}

/// The Machine with the object's name.
pub fn machine_by_name<K: Meta>(change: &Change<K>) -> Vec<ObjectRef<CachedMachine>> {
    change
        .object()
        .map(|object| ObjectRef::new(object.name()).within(object.namespace()))
        .into_iter()
        .collect()
}
