//! The hosts that are polled: the last snapshot of each, and the connections to it.

mod room;

pub(crate) use room::Asking;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use common::api::libvirt_host::HostResources;
use controller_core::cache::Cache;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, watch};

use super::connected::{ConnectedHost, NOT_POLLED};
use super::host_lookup::may_have_domain;
use crate::access::Connector;
use crate::libvirt_host::LibvirtHost;

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
    /// The hosts that a poll has answered or failed on.
    polled: watch::Sender<BTreeSet<String>>,
}

impl Hosts {
    pub(crate) fn new(connector: Arc<dyn Connector>) -> Self {
        Self(Arc::new(Inner {
            connector,
            connected: RwLock::default(),
            placement: Arc::default(),
            reserved: Mutex::default(),
            changed: Notify::new(),
            polled: watch::Sender::default(),
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

    /// Records that a host was polled, successfully or not.
    pub(super) fn was_polled(&self, name: &str) {
        let insert = |polled: &mut BTreeSet<String>| polled.insert(name.to_owned());
        self.0.polled.send_if_modified(insert);
    }

    /// Waits until each of these hosts was polled once, successfully or not.
    pub(crate) async fn wait_until_polled(&self, names: &BTreeSet<String>) {
        let mut polled = self.0.polled.subscribe();
        // The sender is not dropped before `self`.
        let _ = polled.wait_for(|polled| polled.is_superset(names)).await;
    }

    pub(super) fn all(&self) -> Vec<Arc<ConnectedHost>> {
        let connected = self
            .0
            .connected
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        connected.values().cloned().collect()
    }

    /// The host of a Machine: the one that has its [domain](Self::location), by the last poll that it answered; else the
    /// one that this process bound it to; else `hint`, the host in its status. On any other host the Machine would become a
    /// second guest with the same identity.
    pub(crate) fn host_of(&self, uid: &str, hint: Option<&str>) -> Option<String> {
        let shown = self.location(uid, hint).map(|it| it.host);
        self.shown_or_known(shown, uid, hint)
    }

    /// As [`Self::host_of`], of a Machine whose domain is on the host `shown`.
    pub(super) fn shown_or_known(
        &self,
        shown: Option<String>,
        uid: &str,
        hint: Option<&str>,
    ) -> Option<String> {
        shown.or_else(|| {
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
            Some(from) => {
                let shown = self.location(uid, hint).map(|it| it.host);
                shown.or_else(|| Some(from.to_owned()))
            }
            None => self.host_of(uid, hint),
        }
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

    fn reserved(&self) -> MutexGuard<'_, HashMap<String, (String, HostResources)>> {
        // The map is whole after each statement.
        self.0
            .reserved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
