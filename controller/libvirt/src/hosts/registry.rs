//! The hosts that are polled: the last snapshot of each, and the connections to it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use common::api::libvirt_host::HostResources;
use common::render::libvirt::domain_uuid;
use controller_core::cache::Cache;
use controller_core::caches::Caches;
use controller_core::machine::{CachedMachine, HostBinding, Machine, NO_RESOURCES};
use controller_core::objects::Meta as _;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};

use super::host_lookup::may_have_domain;
use crate::access::{AccessError, Connector, Host, Worker};
use crate::capacity::{
    BoundMachine, allocatable, allocated, beside_dedicated, fits, granted, less, size_in, smaller,
};
use crate::groups::Member;
use crate::hardware::{Cpus, cpus_left, devices_left};
use crate::images::fetches::Fetches;
use crate::libvirt_host::LibvirtHost;
use crate::placement::Candidate;
use crate::reservations::Reservations;
use crate::snapshot::{DomainSummary, Snapshot};

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
    /// Host and size that are reserved for Machines, by uid, until a poll of the host shows that they have it.
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
    /// Connection for what the poller does beside its polls, which takes minutes: sweeps of images, removals of what deleted
    /// Machines left.
    pub(crate) background: Worker,
    /// Connection for readiness probes.
    pub(crate) agents: Worker,
    /// Fetches of images that are under way or failed.
    pub(crate) fetches: Fetches,
    /// Copies of images to disks that are under way or failed, by [`copy_name`](crate::images::names::copy_name). They are
    /// queued round-robin over namespaces, as fetches are.
    pub(crate) copies: Fetches,
    /// Room that its jobs are about to take.
    pub(crate) reservations: Reservations,
    polled: RwLock<Polled>,
    /// Wakes the poller before its next poll, after a change on the host.
    pub(crate) wake: Notify,
}

/// What the polls of a host showed.
struct Polled {
    /// The last snapshot, however long ago the host answered.
    last: Option<Arc<Snapshot>>,
    /// Why the last poll failed, or there was none yet.
    failure: Option<String>,
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
            background: host.transfer(),
            agents: host.agents(),
            host,
            fetches: Fetches::default(),
            copies: Fetches::default(),
            reservations: Reservations::default(),
            polled: RwLock::new(Polled {
                last: None,
                failure: Some(NOT_POLLED.to_owned()),
            }),
            wake: Notify::new(),
        }
    }

    /// Cancels every job that waits for a connection of this host.
    fn close(&self) {
        self.host.close();
        self.background.close();
        self.agents.close();
    }

    /// Fails once the host was removed, or is reached over other connections.
    pub(crate) fn check_open(&self) -> Result<(), AccessError> {
        self.host.check_open()
    }

    /// The last poll, or why the host cannot be reached.
    pub(crate) fn snapshot(&self) -> Result<Arc<Snapshot>, String> {
        let polled = self.polled.read().unwrap_or_else(PoisonError::into_inner);
        match (&polled.failure, &polled.last) {
            (None, Some(last)) => Ok(last.clone()),
            (failure, _) => Err(failure.clone().unwrap_or_else(|| NOT_POLLED.to_owned())),
        }
    }

    /// The last poll that the host answered, however long ago.
    pub(crate) fn last_snapshot(&self) -> Option<Arc<Snapshot>> {
        let polled = self.polled.read().unwrap_or_else(PoisonError::into_inner);
        polled.last.clone()
    }

    pub(super) fn set_snapshot(&self, snapshot: Result<Arc<Snapshot>, String>) {
        let mut polled = self.polled.write().unwrap_or_else(PoisonError::into_inner);
        match snapshot {
            Ok(snapshot) => {
                *polled = Polled {
                    last: Some(snapshot),
                    failure: None,
                }
            }
            Err(failure) => polled.failure = Some(failure),
        }
    }

    /// Takes over what the polls over other connections showed, until there is one over these.
    fn keep_last_snapshot(&self, old: &Self) {
        let mut polled = self.polled.write().unwrap_or_else(PoisonError::into_inner);
        polled.last = polled.last.take().or_else(|| old.last_snapshot());
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
        if let Some(old) = connected.remove(&host.name) {
            old.close();
            host.keep_last_snapshot(&old);
        }
        connected.insert(host.name.clone(), host);
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

    /// The host of a Machine: the one that has a domain of its uuid with our metadata of it, by the last poll that it
    /// answered; else the one that this process bound it to; else `hint`, the host in its status. On any other host
    /// the Machine would become a second guest with the same identity.
    pub(crate) fn host_of(&self, uid: &str, hint: Option<&str>) -> Option<String> {
        self.shown_on(uid, hint).or_else(|| {
            let reserved = self.reserved().get(uid).map(|(host, _)| host.clone());
            let reserved = reserved.filter(|name| self.get(name).is_some());
            reserved.or_else(|| hint.map(ToOwned::to_owned))
        })
    }

    /// The host of a Machine. One that is deleted while it is moved, and that no host shows, has its volumes where they
    /// were made: on the host that it leaves.
    pub(crate) fn host_of_machine(&self, machine: &Machine) -> Option<String> {
        let (uid, hint) = (machine.uid(), machine.status.host.as_deref());
        match machine.leaves_host().filter(|_| machine.is_deleting()) {
            Some(from) => self.shown_on(uid, hint).or_else(|| Some(from.to_owned())),
            None => self.host_of(uid, hint),
        }
    }

    /// The host that has a domain of this Machine, by the last poll that it answered; of several `hint`.
    pub(crate) fn shown_on(&self, uid: &str, hint: Option<&str>) -> Option<String> {
        let domain = domain_uuid(uid);
        let is_here = |host: &&Arc<ConnectedHost>| {
            host.last_snapshot().is_some_and(|snapshot| {
                let metadata = snapshot.domain(domain).and_then(|it| it.metadata.as_ref());
                metadata.is_some_and(|metadata| metadata.uid == uid)
            })
        };
        let all = self.all();
        let shows = || all.iter().filter(is_here);
        let hinted = shows().find(|host| Some(host.name.as_str()) == hint);
        let host = hinted.or_else(|| shows().next())?;
        Some(host.name.clone())
    }

    /// The hosts of which nothing is known and that may have the domain of a Machine, each with why nothing is known. No
    /// guest of the Machine may be made on another host meanwhile.
    pub(crate) fn possible_hosts(
        &self,
        machine: &Machine,
        objects: &Cache<LibvirtHost>,
    ) -> Vec<(String, String)> {
        let created = machine.metadata.creation_timestamp.as_ref().map(|at| at.0);
        let all = objects.all().into_iter();
        let possible = all.filter_map(|object| {
            let connected = self.get(object.name());
            let is_known = connected
                .as_ref()
                .is_some_and(|it| it.last_snapshot().is_some());
            if is_known || !may_have_domain(&object, created) {
                return None;
            }
            let why = connected.and_then(|it| it.snapshot().err());
            let why = why.unwrap_or_else(|| NOT_POLLED.to_owned());
            Some((object.name().to_owned(), why))
        });
        possible.collect()
    }

    /// The hosts to choose from, and the lock under which a Machine is placed.
    pub(crate) async fn candidates(
        &self,
        caches: &Caches,
        objects: &Cache<LibvirtHost>,
    ) -> (PlacementLock, Vec<Candidate>) {
        let lock = self.0.placement.clone().lock_owned().await;
        let candidate = |host: LibvirtHost| {
            let connected = self.get(host.name());
            let snapshot = connected.map_or_else(|| Err(NOT_POLLED.into()), |it| it.snapshot());
            let allocated = snapshot.as_ref().map_or(NO_RESOURCES, |snapshot| {
                self.allocated(&host, snapshot, caches, None)
            });
            let devices_left = snapshot.as_ref().map_or_else(
                |_| BTreeMap::new(),
                |snapshot| self.devices_left(&host, snapshot, caches),
            );
            let cpus_left = snapshot.as_ref().map_or(0, |snapshot| {
                let reserved = self.reserved();
                cpus_left_on(&reserved, &host, snapshot, caches)
            });
            Candidate {
                cpus_left,
                devices_left,
                groups: self.groups(host.name(), caches),
                name: host.name().to_owned(),
                labels: host.metadata.labels.clone().unwrap_or_default(),
                spec: host.spec.clone(),
                allocated,
                snapshot,
            }
        };
        let hosts = objects.all().into_iter().filter(|host| !host.is_deleting());
        let hosts = hosts.map(candidate).collect();
        (lock, hosts)
    }

    /// The groups of the Machines on a host, those included that the API server does not show there yet.
    fn groups(&self, host: &str, caches: &Caches) -> Vec<Member> {
        let reserved = self.reserved();
        let machines = caches.machines.state();
        let members = bound_to(&reserved, host, &machines).filter_map(|(machine, place, _)| {
            Some(Member {
                namespace: machine.namespace().to_owned(),
                name: machine.name().to_owned(),
                group: place.group.clone()?,
            })
        });
        members.collect()
    }

    /// How many devices of each name are left on a host.
    fn devices_left(
        &self,
        host: &LibvirtHost,
        snapshot: &Snapshot,
        caches: &Caches,
    ) -> BTreeMap<String, usize> {
        if host.spec.devices.as_ref().is_none_or(Vec::is_empty) {
            return BTreeMap::new();
        }
        let reserved = self.reserved();
        let machines = caches.machines.state();
        let bound = bound_to(&reserved, host.name(), &machines);
        let bound = bound.map(|(machine, place, _)| (machine.uid(), &place.devices));
        let bound: Vec<_> = bound.collect();
        devices_left(&host.spec, &snapshot.hardware, &bound)
    }

    /// What is allocated on a host, without what `except`, the uid of a Machine, has there.
    pub(crate) fn allocated(
        &self,
        host: &LibvirtHost,
        snapshot: &Snapshot,
        caches: &Caches,
        except: Option<&str>,
    ) -> HostResources {
        let reserved = self.reserved();
        allocated_on(&reserved, host, snapshot, caches, except)
    }

    /// How much a Machine may have on its host, which `asks` for more than it `has`. What fits is reserved for it, and
    /// counts from now on.
    pub(crate) fn room(
        &self,
        host: &LibvirtHost,
        snapshot: &Snapshot,
        caches: &Caches,
        uid: &str,
        (asks, has): (HostResources, HostResources),
        is_dedicated: bool,
    ) -> HostResources {
        // Two Machines that grow at the same time must not both get what is left.
        let mut reserved = self.reserved();
        let others = allocated_on(&reserved, host, snapshot, caches, Some(uid));
        let cpus_left = cpus_left_on(&reserved, host, snapshot, caches);
        let others = beside_dedicated(others, cpus_left, is_dedicated);
        let most = less(allocatable(&host.spec, &snapshot.info), others);
        let size = granted(asks, has, most);
        reserved.insert(uid.to_owned(), (host.name().to_owned(), size));
        most
    }

    fn reserved(&self) -> MutexGuard<'_, HashMap<String, (String, HostResources)>> {
        // The map is whole after each statement.
        self.0
            .reserved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a Machine on a host that does not show it yet.
    pub(crate) fn reserve(&self, uid: &str, host: &str, size: HostResources) {
        self.reserved()
            .insert(uid.to_owned(), (host.to_owned(), size));
    }

    /// Reduces what is reserved for a Machine to what it requests now.
    pub(crate) fn reduce_reservation(&self, uid: &str, asks: HostResources) {
        if let Some((_, size)) = self.reserved().get_mut(uid) {
            *size = smaller(*size, asks);
        }
    }

    /// Releases what is reserved for a Machine on another host than the one that has it: its move there was given up.
    pub(crate) fn release_reservation_elsewhere(&self, uid: &str, host: &str) {
        let mut reserved = self.reserved();
        if reserved.get(uid).is_some_and(|(other, _)| other != host) {
            reserved.remove(uid);
        }
    }

    /// Removes reservations that a poll of the host confirms, and those of Machines that are gone.
    pub(crate) fn remove_confirmed_reservations(
        &self,
        host: &str,
        snapshot: &Snapshot,
        caches: &Caches,
    ) {
        let mut reserved = self.reserved();
        if reserved.is_empty() {
            return;
        }
        let machines = caches.machines.state();
        let machine_uids: HashSet<_> = machines.iter().map(|machine| machine.uid()).collect();
        let kept = snapshot.domains.iter().filter_map(|it| {
            let (name, size) = reserved.get(&it.metadata.as_ref()?.uid)?;
            let is_kept = name == host && fits(*size, size_in(it));
            is_kept.then(|| it.metadata.as_ref().map(|metadata| metadata.uid.clone()))?
        });
        let kept: HashSet<String> = kept.collect();
        reserved.retain(|uid, _| machine_uids.contains(uid.as_str()) && !kept.contains(uid));
    }
}

/// The Machines that are bound to a host, each with what is reserved for it there. A reservation is newer than the status in the
/// cache.
fn bound_to<'m>(
    reserved: &'m HashMap<String, (String, HostResources)>,
    host: &'m str,
    machines: &'m [Arc<CachedMachine>],
) -> impl Iterator<Item = (&'m CachedMachine, &'m HostBinding, Option<HostResources>)> {
    machines.iter().filter_map(move |machine| {
        let place = machine.binding.as_ref()?;
        let reserved = reserved.get(machine.uid());
        let here = reserved.map_or(place.host.as_deref(), |(name, _)| Some(name));
        let size = reserved.map(|(_, size)| *size);
        (here == Some(host)).then_some((&**machine, &**place, size))
    })
}

/// How many dedicated CPUs are left on a host.
fn cpus_left_on(
    reserved: &HashMap<String, (String, HostResources)>,
    host: &LibvirtHost,
    snapshot: &Snapshot,
    caches: &Caches,
) -> u32 {
    let cpus = Cpus::of(&host.spec, snapshot.info.cpus);
    if cpus.dedicated.is_empty() {
        return 0;
    }
    let machines = caches.machines.state();
    let bound = bound_to(reserved, host.name(), &machines);
    let bound = bound.map(|(machine, place, _)| (machine.uid(), place.dedicated_cpus));
    cpus_left(&cpus, &snapshot.hardware, bound)
}

/// What is allocated on a host, without what `except`, the uid of a Machine, has there.
fn allocated_on(
    reserved: &HashMap<String, (String, HostResources)>,
    host: &LibvirtHost,
    snapshot: &Snapshot,
    caches: &Caches,
    except: Option<&str>,
) -> HostResources {
    let machines = caches.machines.state();
    let bound = bound_to(reserved, host.name(), &machines);
    let bound = bound.map(|(machine, place, reserved)| BoundMachine {
        uid: machine.uid(),
        requested: place.requested,
        reserved,
    });
    let bound: Vec<_> = bound
        .filter(|machine| Some(machine.uid) != except)
        .collect();
    let most = allocatable(&host.spec, &snapshot.info);
    let is_other = |it: &&DomainSummary| {
        let metadata = it.metadata.as_ref();
        except.is_none() || metadata.map(|metadata| metadata.uid.as_str()) != except
    };
    let others = snapshot.domains.iter().filter(is_other);
    allocated(others, &bound, most)
}

#[cfg(test)]
mod tests;
