//! The watches: what is known of the cluster, and which Machine an event is about.
//!
//! ```text
//! Machine ───────────────▶ itself
//!    └───────────────────▶ other Machines that share an address with it
//! VM, VMI, claim, Secret ▶ the Machine on its label (a VM also: the Machine of its name; a claim
//! and DataVolume           and DataVolume also: those that have a disk whose claim would be called so)
//! NetworkConfiguration ──▶ Machines of the namespace that name it
//! attachment ────────────▶ Machines of the namespace with a network that stands for it
//! Secret of a user ──────▶ Machines that refer to it
//! StorageClass, template ▶ Machines that name it
//! ```
//! The watches run on every replica; only the one that acts takes the triggers.

mod follow;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use runtime::checks::Check;
use runtime::cluster::Cluster;
use runtime::outage::{Outage, RetryDelay};
use runtime::tasks::Tasks;

pub use self::follow::failed;
use crate::address_index::AddressIndex;
use crate::cache::{Cache, Change};
use crate::machine::{CachedMachine, Machine};
use crate::network_usage::Marked;
use crate::objects::{Meta, Network, StorageClass, Template};
use crate::queue::FairQueue;
use crate::secrets::{self, Versions};

/// Everything that is known of the cluster. Clones share it.
#[derive(Clone, Debug)]
pub struct Caches {
    pub machines: Store<CachedMachine>,
    pub address_index: AddressIndex,
    /// Of the Secrets of users.
    pub versions: Versions,
    pub networks: Cache<Network>,
    pub classes: Cache<StorageClass>,
    pub templates: Cache<Template>,
}

/// Machines that something happened to.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    /// They get a pass.
    pub queue: FairQueue,
    taken: Arc<AtomicBool>,
    /// Where networks may have to be held or let go.
    pub networks: Marked,
}

impl Triggers {
    pub fn send(&self, machines: impl IntoIterator<Item = ObjectRef<CachedMachine>>) {
        // A replica that only waits has no use for them, and they would pile up.
        if self.taken.load(Ordering::Acquire) {
            machines
                .into_iter()
                .for_each(|machine| self.queue.enqueue(machine));
        }
    }

    /// From now on triggers are taken. Every Machine and every network is one, for what happened
    /// before.
    pub fn take_from_now_on(&self, caches: &Caches) {
        self.taken.store(true, Ordering::Release);
        self.send(every(&caches.machines, |_| true));
        self.networks.mark_all(&caches.networks);
    }
}

pub fn every(
    machines: &Store<CachedMachine>,
    concerned: impl Fn(&CachedMachine) -> bool,
) -> Vec<ObjectRef<CachedMachine>> {
    let found = machines.state_filter(concerned);
    found
        .iter()
        .map(|machine| ObjectRef::from_obj(&**machine))
        .collect()
}

/// A page of objects as they are sent takes twenty times the memory of what is kept of them.
const PAGE: u32 = 100;

/// What a watch is started with: a list in pages.
pub fn in_pages() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// The watches that run, and what they fill.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct Watches<'a> {
    pub(crate) client: &'a Client,
    pub(crate) tasks: &'a mut Tasks,
    pub triggers: Triggers,
    pub caches: Caches,
}

impl<'a> Watches<'a> {
    /// Starts the watches of the kinds that every backend needs. Backends add theirs with
    /// [`kind`](Self::kind).
    pub fn start(client: &'a Client, cluster: Cluster, tasks: &'a mut Tasks) -> Self {
        let triggers = Triggers::default();
        let (machines, writer) = store();
        let caches = Caches {
            machines,
            address_index: AddressIndex::default(),
            versions: Versions::default(),
            networks: Cache::default(),
            classes: Cache::default(),
            templates: Cache::default(),
        };

        let (sender, api) = (triggers.clone(), Api::<CachedMachine>::all(client.clone()));
        let (address_index, networks) = (caches.address_index.clone(), caches.networks.clone());
        tasks.spawn("watch of machines", async move {
            // Part of the addresses that Machines are given.
            let cluster = cluster.uid().await;
            let mut writer = writer;
            let stream = watcher::watcher(api, in_pages()).backoff(RetryDelay::default());
            let mut stream = std::pin::pin!(stream);
            let mut outage = Outage::default();
            while let Some(event) = stream.next().await {
                if let Ok(event) = &event {
                    // Rows before the store: whoever waits for that one finds them, too. Both before anybody
                    // is told: a pass that began earlier would not see what it is about.
                    let concerned = address_index.take(event, &cluster);
                    writer.apply_watcher_event(event);
                    sender.send(concerned);
                }
                match event {
                    Ok(Event::Apply(machine) | Event::Delete(machine)) => {
                        outage.succeeded();
                        sender.networks.mark(machine.namespace());
                        sender.send([ObjectRef::from_obj(&machine)]);
                    }
                    Ok(Event::InitApply(machine)) => {
                        outage.succeeded();
                        sender.send([ObjectRef::from_obj(&machine)]);
                    }
                    // Machines that are not in the new list are gone without a word.
                    Ok(Event::InitDone) => sender.networks.mark_all(&networks),
                    Ok(Event::Init) => {}
                    Err(error) => failed(&mut outage, "watch of machines", &error),
                }
            }
            Ok::<_, Infallible>(())
        });

        let versions = (caches.machines.clone(), caches.versions.clone());
        secrets::watch(client, tasks, triggers.clone(), versions.0, versions.1);
        let mut watches = Self {
            client,
            tasks,
            triggers,
            caches,
        };
        watches.networks();
        watches.classes_and_templates();
        watches
    }

    /// The caches that are filled, and where events are reported.
    pub fn into_parts(self) -> (Caches, Triggers) {
        (self.caches, self.triggers)
    }

    fn networks(&mut self) {
        let networks = self.triggers.networks.clone();
        self.kind(
            "watch of networks",
            in_pages(),
            &self.caches.networks.clone(),
            move |change, machines| {
                let Some(network) = either(change) else {
                    return vec![];
                };
                networks.mark(network.namespace());
                every(machines, |machine| {
                    machine.namespace() == network.namespace()
                        && machine.uses_network(network.name())
                })
            },
        );
    }

    fn classes_and_templates(&mut self) {
        self.kind(
            "watch of storage classes",
            in_pages(),
            &self.caches.classes.clone(),
            |change, machines| {
                let Some(class) = either(change) else {
                    return vec![];
                };
                every(machines, |machine| machine.uses_class(class.name()))
            },
        );
        self.kind(
            "watch of templates",
            in_pages(),
            &self.caches.templates.clone(),
            |change, machines| {
                let Some(template) = either(change) else {
                    return vec![];
                };
                every(machines, |machine| machine.uses_template(template.name()))
            },
        );
    }
}

/// The object as it is now, or as it was before it went.
pub fn either<K>(change: &Change<K>) -> Option<&Arc<K>> {
    change.new.as_ref().or(change.old.as_ref())
}

/// The Machine that is named on the object's label, before and after the change.
pub fn by_label<K: Meta>(change: &Change<K>) -> Vec<ObjectRef<CachedMachine>> {
    [&change.old, &change.new]
        .into_iter()
        .flatten()
        .filter_map(|object| Some(ObjectRef::new(object.machine()?).within(object.namespace())))
        .collect()
}

/// The Machine of the object's name.
pub fn by_name<K: Meta>(change: &Change<K>) -> Vec<ObjectRef<CachedMachine>> {
    either(change)
        .map(|object| ObjectRef::new(object.name()).within(object.namespace()))
        .into_iter()
        .collect()
}

impl Caches {
    /// Other Machines that have an address of this one on the same network.
    pub fn conflicts(&self, machine: &Machine, cluster: &str) -> Vec<Arc<Machine>> {
        let names = self.address_index.conflicts(machine, cluster).into_iter();
        let conflicts = names.filter_map(|name| {
            let key = ObjectRef::new(&name).within(machine.namespace());
            Some(Arc::new(self.machines.get(&key)?.open()))
        });
        conflicts.collect()
    }

    /// Waits until every kind has been listed, or is known not to be served; says on `synced` what
    /// it waits for. For one caller only: a store wakes the last one that waits for it, no other.
    pub async fn known(&self, synced: &Check) {
        let waits = |kind: &str| synced.missing(format!("no list of {kind} yet"));
        waits("Machines");
        // The Machines' own task keeps their writer for as long as the process runs.
        let _ = self.machines.wait_until_ready().await;
        waits("NetworkConfigurations");
        self.networks.known().await;
        waits("StorageClasses");
        self.classes.known().await;
        waits("MachineTemplates");
        self.templates.known().await;
    }
}
