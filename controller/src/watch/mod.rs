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

use common::names;
use common::render::kubevirt::attachment_name;
use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use runtime::checks::Check;
use runtime::cluster::Cluster;
use runtime::outage::{Outage, RetryDelay};
use runtime::tasks::Tasks;

use self::follow::Watch;
pub(crate) use self::follow::failed;
use crate::cache::{Cache, Change};
use crate::data_volume::DataVolume;
use crate::libvirt::hosts::Hosts;
use crate::machine::{Machine, Stored};
use crate::metrics;
use crate::neighbours::Neighbours;
use crate::networks::Marked;
use crate::objects::{
    Attachment, Claim, Instance, LibvirtHost, Meta, Network, Secret, StorageClass, Template,
    VirtualMachine,
};
use crate::secrets::{self, Versions};
use crate::turns::Turns;

/// Everything that is known of the cluster. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    pub(crate) machines: Store<Stored>,
    pub(crate) neighbours: Neighbours,
    pub(crate) vms: Cache<VirtualMachine>,
    pub(crate) instances: Cache<Instance>,
    pub(crate) claims: Cache<Claim>,
    pub(crate) data_volumes: Cache<DataVolume>,
    pub(crate) secrets: Cache<Secret>,
    /// Of the Secrets of users.
    pub(crate) versions: Versions,
    pub(crate) networks: Cache<Network>,
    pub(crate) attachments: Cache<Attachment>,
    pub(crate) classes: Cache<StorageClass>,
    pub(crate) templates: Cache<Template>,
    pub(crate) hosts: Cache<LibvirtHost>,
}

/// Machines that something happened to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Triggers {
    /// They get a pass.
    pub(crate) turns: Turns,
    taken: Arc<AtomicBool>,
    /// Where networks may have to be held or let go.
    pub(crate) networks: Marked,
}

impl Triggers {
    pub(crate) fn send(&self, machines: impl IntoIterator<Item = ObjectRef<Stored>>) {
        // A replica that only waits has no use for them, and they would pile up.
        if self.taken.load(Ordering::Acquire) {
            machines
                .into_iter()
                .for_each(|machine| self.turns.wanted(machine));
        }
    }

    /// From now on triggers are taken. Every Machine and every network is one, for what happened
    /// before.
    pub(crate) fn take_from_now_on(&self, caches: &Caches) {
        self.taken.store(true, Ordering::Release);
        self.send(every(&caches.machines, |_| true));
        self.networks.mark_all(&caches.networks);
    }
}

pub(crate) fn every(
    machines: &Store<Stored>,
    concerned: impl Fn(&Stored) -> bool,
) -> Vec<ObjectRef<Stored>> {
    let found = machines.state_filter(concerned);
    found
        .iter()
        .map(|machine| ObjectRef::from_obj(&**machine))
        .collect()
}

/// A page of objects as they are sent takes twenty times the memory of what is kept of them.
const PAGE: u32 = 100;

/// What a watch is started with: a list in pages.
pub(crate) fn in_pages() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Starts every watch.
pub(crate) fn start(
    client: &Client,
    cluster: Cluster,
    hosts: &Hosts,
    tasks: &mut Tasks,
) -> (Caches, Triggers) {
    let triggers = Triggers::default();
    let (machines, writer) = store();
    let caches = Caches {
        machines,
        neighbours: Neighbours::default(),
        vms: Cache::default(),
        instances: Cache::default(),
        claims: Cache::default(),
        data_volumes: Cache::default(),
        secrets: Cache::default(),
        versions: Versions::default(),
        networks: Cache::default(),
        attachments: Cache::default(),
        classes: Cache::default(),
        templates: Cache::default(),
        hosts: Cache::default(),
    };

    let (sender, api) = (triggers.clone(), Api::<Stored>::all(client.clone()));
    let (neighbours, networks) = (caches.neighbours.clone(), caches.networks.clone());
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
                let concerned = neighbours.take(event, &cluster);
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

    let watch = Watch {
        client,
        tasks,
        triggers: &triggers,
        machines: &caches.machines,
    };
    watch_kinds(watch, &caches, hosts);
    let (machines, versions) = (caches.machines.clone(), caches.versions.clone());
    secrets::watch(client, tasks, triggers.clone(), machines, versions);
    (caches, triggers)
}

fn watch_guests(watch: &mut Watch<'_>, caches: &Caches) {
    let everything = in_pages;
    let networks = watch.triggers.networks.clone();
    watch.kind(
        "watch of virtual machines",
        everything(),
        &caches.vms,
        move |change, _| {
            networks.attached(change, |vm| &vm.spec.template.spec);
            by_name(change)
        },
    );
    let networks = watch.triggers.networks.clone();
    watch.kind(
        "watch of instances",
        everything(),
        &caches.instances,
        move |change, _| {
            networks.attached(change, |instance| &instance.spec);
            by_name(change)
        },
    );
}

fn watch_kinds(mut watch: Watch<'_>, caches: &Caches, hosts: &Hosts) {
    watch_guests(&mut watch, caches);
    watch_hosts(&mut watch, caches, hosts);
    let ours = in_pages().labels(&format!(
        "{}={}",
        names::LABEL_MANAGED_BY,
        names::MANAGED_BY
    ));
    let everything = in_pages;
    let neighbours = caches.neighbours.clone();
    watch.kind(
        "watch of claims",
        everything(),
        &caches.claims,
        move |change, _| {
            metrics::claim_changed(change);
            with_claim(change, &neighbours)
        },
    );
    let neighbours = caches.neighbours.clone();
    watch.kind(
        "watch of data volumes",
        everything(),
        &caches.data_volumes,
        move |change, _| with_claim(change, &neighbours),
    );
    watch.kind("watch of secrets", ours, &caches.secrets, |change, _| {
        by_label(change)
    });
    let networks = watch.triggers.networks.clone();
    watch.kind(
        "watch of networks",
        everything(),
        &caches.networks,
        move |change, machines| {
            let Some(network) = either(change) else {
                return vec![];
            };
            networks.mark(network.namespace());
            every(machines, |machine| {
                machine.namespace() == network.namespace() && machine.uses_network(network.name())
            })
        },
    );
    let networks = caches.networks.clone();
    watch.kind(
        "watch of attachments",
        everything(),
        &caches.attachments,
        move |change, machines| {
            let Some(attachment) = either(change) else {
                return vec![];
            };
            let (namespace, name) = (attachment.namespace(), attachment.name());
            every(machines, |machine| {
                machine.namespace() == namespace
                    && machine
                        .networks()
                        .filter_map(|network| networks.get(namespace, network))
                        .any(|network| attachment_name(network.name(), &network.spec) == name)
            })
        },
    );
    watch.kind(
        "watch of storage classes",
        everything(),
        &caches.classes,
        |change, machines| {
            let Some(class) = either(change) else {
                return vec![];
            };
            every(machines, |machine| machine.uses_class(class.name()))
        },
    );
    watch.kind(
        "watch of templates",
        everything(),
        &caches.templates,
        |change, machines| {
            let Some(template) = either(change) else {
                return vec![];
            };
            every(machines, |machine| machine.uses_template(template.name()))
        },
    );
}

fn watch_hosts(watch: &mut Watch<'_>, caches: &Caches, hosts: &Hosts) {
    let hosts = hosts.clone();
    watch.kind(
        "watch of libvirt hosts",
        in_pages(),
        &caches.hosts,
        move |change, machines| {
            hosts.changed();
            // Its status changes with every guest, and concerns nobody here.
            let spec = |host: &Option<Arc<LibvirtHost>>| {
                host.as_ref()
                    .map(|host| (host.spec.clone(), host.metadata.labels.clone()))
            };
            let Some(host) = either(change).filter(|_| spec(&change.old) != spec(&change.new))
            else {
                return vec![];
            };
            every(machines, |machine| {
                let place = machine.place.as_ref();
                place.is_some_and(|place| {
                    place.host.as_deref().is_none_or(|name| name == host.name())
                })
            })
        },
    );
}

fn either<K>(change: &Change<K>) -> Option<&Arc<K>> {
    change.new.as_ref().or(change.old.as_ref())
}

fn by_label<K: Meta>(change: &Change<K>) -> Vec<ObjectRef<Stored>> {
    [&change.old, &change.new]
        .into_iter()
        .flatten()
        .filter_map(|object| Some(ObjectRef::new(object.machine()?).within(object.namespace())))
        .collect()
}

/// The Machine on the label, and those that have a disk whose claim would have the object's name.
fn with_claim<K: Meta>(change: &Change<K>, neighbours: &Neighbours) -> Vec<ObjectRef<Stored>> {
    let mut machines = by_label(change);
    if let Some(object) = either(change) {
        machines.extend(neighbours.with_claim(object.namespace(), object.name()));
    }
    machines
}

fn by_name<K: Meta>(change: &Change<K>) -> Vec<ObjectRef<Stored>> {
    either(change)
        .map(|object| ObjectRef::new(object.name()).within(object.namespace()))
        .into_iter()
        .collect()
}

impl Caches {
    /// Other Machines that have an address of this one on the same network.
    pub(crate) fn rivals(&self, machine: &Machine, cluster: &str) -> Vec<Arc<Machine>> {
        let names = self.neighbours.rivals(machine, cluster).into_iter();
        let rivals = names.filter_map(|name| {
            let key = ObjectRef::new(&name).within(machine.namespace());
            Some(Arc::new(self.machines.get(&key)?.open()))
        });
        rivals.collect()
    }

    /// Waits until every kind has been listed, or is known not to be served; says on `synced` what
    /// it waits for. For one caller only: a store wakes the last one that waits for it, no other.
    pub(crate) async fn known(&self, synced: &Check) {
        let waits = |kind: &str| synced.missing(format!("no list of {kind} yet"));
        waits("Machines");
        // The Machines' own task keeps their writer for as long as the process runs.
        let _ = self.machines.wait_until_ready().await;
        waits("VirtualMachines");
        self.vms.known().await;
        waits("VirtualMachineInstances");
        self.instances.known().await;
        waits("PersistentVolumeClaims");
        self.claims.known().await;
        waits("DataVolumes");
        self.data_volumes.known().await;
        waits("Secrets");
        self.secrets.known().await;
        waits("NetworkConfigurations");
        self.networks.known().await;
        waits("NetworkAttachmentDefinitions");
        self.attachments.known().await;
        waits("StorageClasses");
        self.classes.known().await;
        waits("MachineTemplates");
        self.templates.known().await;
        waits("LibvirtHosts");
        self.hosts.known().await;
        synced.met();
    }
}
