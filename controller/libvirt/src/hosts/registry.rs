//! The hosts that are polled: the last snapshot of each, and the connections to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use common::api::libvirt_host::HostResources;
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::machine::NO_RESOURCES;
use controller_core::objects::Meta as _;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};
use uuid::Uuid;

use crate::access::{AccessError, Connector, Host, Worker};
use crate::capacity::{foreign, sum};
use crate::images::fetches::Fetches;
use crate::libvirt_host::LibvirtHost;
use crate::placement::Candidate;
use crate::snapshot::Snapshot;

/// Why a host that was just added has no snapshot.
pub(crate) const NOT_POLLED: &str = "it was not polled yet";

/// Held while a Machine is placed: the next placement counts it.
pub(crate) type PlacementLock = OwnedMutexGuard<()>;

/// The hosts that are polled. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Hosts(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Opens connections to hosts.
    connector: Arc<dyn Connector>,
    /// By name of the LibvirtHost.
    connected: RwLock<BTreeMap<String, Arc<ConnectedHost>>>,
    /// Held while a Machine is placed, so that the next placement counts it.
    placement: Arc<AsyncMutex<()>>,
    /// Host and size of Machines that were bound, by uid, until the cache has their `status.host`.
    reserved: Mutex<HashMap<String, (String, HostResources)>>,
    /// Wakes the poller when a LibvirtHost was added, changed or removed.
    changed: Notify,
}

/// A host that is polled.
pub(crate) struct ConnectedHost {
    /// Name of the LibvirtHost.
    pub(crate) name: String,
    /// Connections for polls, observations and actions that take seconds at most.
    pub(crate) host: Host,
    /// Connection for copies of images, which take minutes.
    pub(crate) copies: Worker,
    /// Fetches of images that are under way or failed.
    pub(crate) fetches: Fetches,
    snapshot: RwLock<Result<Arc<Snapshot>, String>>,
    /// Wakes the poller before its next poll, after a change on the host.
    pub(crate) wake: Notify,
}

impl std::fmt::Debug for ConnectedHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectedHost")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl ConnectedHost {
    pub(super) fn new(name: &str, host: Host) -> Self {
        Self {
            name: name.to_owned(),
            copies: host.transfer(),
            host,
            fetches: Fetches::default(),
            snapshot: RwLock::new(Err(NOT_POLLED.into())),
            wake: Notify::new(),
        }
    }

    /// Cancels every job that waits for a connection of this host.
    fn close(&self) {
        self.host.close();
        self.copies.close();
    }

    /// Fails once the host was removed, or is reached over other connections.
    pub(crate) fn check_open(&self) -> Result<(), AccessError> {
        self.host.check_open()
    }

    /// The last poll, or why the host cannot be reached.
    pub(crate) fn snapshot(&self) -> Result<Arc<Snapshot>, String> {
        self.snapshot
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn set_snapshot(&self, snapshot: Result<Arc<Snapshot>, String>) {
        *self
            .snapshot
            .write()
            .unwrap_or_else(PoisonError::into_inner) = snapshot;
    }
}

impl Hosts {
    pub(crate) fn new(connector: Arc<dyn Connector>) -> Self {
        Self(Arc::new(Inner {
            connector,
            connected: RwLock::default(),
            placement: Arc::default(),
            reserved: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Reports that a LibvirtHost was added, changed or removed.
    pub(crate) fn changed(&self) {
        self.0.changed.notify_one();
    }

    /// The host of this name, if it is polled.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<ConnectedHost>> {
        let connected = self
            .0
            .connected
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        connected.get(name).cloned()
    }

    /// Reaches a host over these connections from now on; jobs that wait for the old ones are cancelled.
    pub(super) fn insert(&self, host: Arc<ConnectedHost>) {
        let mut connected = self
            .0
            .connected
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = connected.insert(host.name.clone(), host) {
            old.close();
        }
    }

    /// Removes a host: jobs that wait for its connections are cancelled.
    pub(super) fn remove(&self, name: &str) {
        let mut connected = self
            .0
            .connected
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = connected.remove(name) {
            old.close();
        }
    }

    /// What opens connections to hosts.
    pub(super) fn connector(&self) -> Arc<dyn Connector> {
        self.0.connector.clone()
    }

    /// Waits until a LibvirtHost was added, changed or removed since the last call.
    pub(super) async fn wait_for_change(&self) {
        self.0.changed.notified().await;
    }

    fn all(&self) -> Vec<Arc<ConnectedHost>> {
        let connected = self
            .0
            .connected
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        connected.values().cloned().collect()
    }

    /// The host that has a domain of this uuid with our metadata of this Machine. A Machine whose status was
    /// lost is bound to it again; on another host it would become a second guest with the same identity.
    pub(crate) fn with_domain(&self, uuid: Uuid, machine_uid: &str) -> Option<String> {
        let is_here = |host: &Arc<ConnectedHost>| {
            host.snapshot().is_ok_and(|snapshot| {
                let metadata = snapshot.domain(uuid).and_then(|it| it.metadata.as_ref());
                metadata.is_some_and(|metadata| metadata.uid == machine_uid)
            })
        };
        self.all()
            .iter()
            .find(|host| is_here(host))
            .map(|host| host.name.clone())
    }

    /// The hosts to choose from, and the lock under which a Machine is placed.
    pub(crate) async fn candidates(
        &self,
        caches: &Caches,
        objects: &Cache<LibvirtHost>,
    ) -> (PlacementLock, Vec<Candidate>) {
        let lock = self.0.placement.clone().lock_owned().await;
        let mut allocated = self.allocated(caches);
        let candidate = |host: LibvirtHost| {
            let connected = self.get(host.name());
            let snapshot = connected.map_or_else(|| Err(NOT_POLLED.into()), |it| it.snapshot());
            let ours = allocated.remove(host.name()).unwrap_or(NO_RESOURCES);
            let foreign = snapshot.as_ref().map_or(NO_RESOURCES, |it| foreign(it));
            Candidate {
                name: host.name().to_owned(),
                labels: host.metadata.labels.clone().unwrap_or_default(),
                spec: host.spec.clone(),
                allocated: sum(ours, foreign),
                snapshot,
            }
        };
        let hosts = objects.all().into_iter().filter(|host| !host.is_deleting());
        let hosts = hosts.map(candidate).collect();
        (lock, hosts)
    }

    /// What the Machines bound to each host need together.
    pub(crate) fn allocated(&self, caches: &Caches) -> BTreeMap<String, HostResources> {
        let mut all: BTreeMap<String, HostResources> = BTreeMap::new();
        let mut reserved = self.reserved();
        for machine in caches.machines.state() {
            let Some(place) = &machine.binding else {
                continue;
            };
            let uid = machine.uid();
            let host = match &place.host {
                Some(host) => {
                    reserved.remove(uid);
                    host.to_string()
                }
                None => match reserved.get(uid) {
                    Some((host, _)) => host.clone(),
                    None => continue,
                },
            };
            let entry = all.entry(host).or_insert(NO_RESOURCES);
            *entry = sum(*entry, place.requested);
        }
        all
    }

    fn reserved(&self) -> MutexGuard<'_, HashMap<String, (String, HostResources)>> {
        // The map is whole after each statement.
        self.0
            .reserved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a Machine that was just bound to a host.
    pub(crate) fn reserve(&self, uid: &str, host: &str, needs: HostResources) {
        self.reserved()
            .insert(uid.to_owned(), (host.to_owned(), needs));
    }
}
