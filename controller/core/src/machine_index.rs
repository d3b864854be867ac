//! Machines by uid, and by the LibvirtHost that they are bound to.
//!
//! The store of Machines finds them by name only. Without this index, a question about one host reads all Machines.
//! `candidates` of controller/libvirt, which places a Machine, asks every host, under one lock.
//!
//! Reason: with the index, a placement of one of 10,000 Machines on 100 hosts takes 7 ms (`costs.rs` of controller/libvirt).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::watcher::Event;

use crate::machine::{CachedMachine, HostBinding};
use crate::objects::Meta as _;

/// The Machines of the last list and of the events since. Clones share the content.
#[derive(Clone, Debug, Default)]
pub struct MachineIndex(Arc<RwLock<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// What readers see.
    content: Content,
    /// The list that is being received; replaces `content` when it is complete.
    listing: Content,
}

/// What the index has of a Machine.
#[derive(Debug)]
pub struct IndexedMachine {
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// Set for Machines of the libvirt backend.
    pub binding: Option<Arc<HostBinding>>,
}

impl IndexedMachine {
    fn host(&self) -> Option<&str> {
        self.binding.as_ref()?.host.as_deref()
    }
}

/// Namespace and name of a Machine.
type Name = (Box<str>, Box<str>);

#[derive(Debug, Default)]
struct Content {
    machines: HashMap<Name, Arc<IndexedMachine>>,
    of_uid: HashMap<Box<str>, Arc<IndexedMachine>>,
    /// The Machines whose status names a host; no map is empty.
    on_host: HashMap<Box<str>, BTreeMap<Name, Arc<IndexedMachine>>>,
}

impl Content {
    fn insert(&mut self, machine: &CachedMachine) {
        self.remove(machine);
        let name = name_of(machine);
        let (namespace, machine_name) = name.clone();
        let indexed = Arc::new(IndexedMachine {
            namespace,
            name: machine_name,
            uid: machine.uid().into(),
            binding: machine.binding.clone(),
        });
        if let Some(host) = indexed.host() {
            let here = self.on_host.entry(host.into()).or_default();
            here.insert(name.clone(), indexed.clone());
        }
        self.of_uid.insert(indexed.uid.clone(), indexed.clone());
        self.machines.insert(name, indexed);
    }

    fn remove(&mut self, machine: &CachedMachine) {
        let name = name_of(machine);
        let Some(indexed) = self.machines.remove(&name) else {
            return;
        };
        self.of_uid.remove(&indexed.uid);
        if let Some(host) = indexed.host()
            && let Some(here) = self.on_host.get_mut(host)
        {
            here.remove(&name);
            if here.is_empty() {
                self.on_host.remove(host);
            }
        }
    }
}

fn name_of(machine: &CachedMachine) -> Name {
    (machine.namespace().into(), machine.name().into())
}

impl MachineIndex {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        // No statement under this lock leaves the maps inconsistent for readers, so a poisoned lock is safe to use.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an event of the watch.
    pub fn apply(&self, event: &Event<CachedMachine>) {
        let inner = &mut *self.write();
        match event {
            Event::Init => inner.listing = Content::default(),
            Event::InitApply(machine) => inner.listing.insert(machine),
            Event::InitDone => inner.content = std::mem::take(&mut inner.listing),
            Event::Apply(machine) => inner.content.insert(machine),
            Event::Delete(machine) => inner.content.remove(machine),
        }
    }

    /// Whether a Machine has this uid.
    pub fn contains(&self, uid: &str) -> bool {
        self.read().content.of_uid.contains_key(uid)
    }

    /// The uids of all Machines, in no order.
    pub fn uids(&self) -> Vec<Box<str>> {
        self.read().content.of_uid.keys().cloned().collect()
    }

    /// The Machine with this uid.
    pub fn of_uid(&self, uid: &str) -> Option<Arc<IndexedMachine>> {
        self.read().content.of_uid.get(uid).cloned()
    }

    /// The Machines whose status names this LibvirtHost, sorted by namespace and name.
    pub fn on_host(&self, host: &str) -> Vec<Arc<IndexedMachine>> {
        let inner = self.read();
        let here = inner.content.on_host.get(host).into_iter();
        here.flat_map(BTreeMap::values).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn machine(name: &str, uid: &str, host: Option<&str>) -> CachedMachine {
        let mut block = fixtures::block();
        block.backend = common::api::choice::Backend::Libvirt;
        fixtures::cached(name, uid, block, host)
    }

    fn names(index: &MachineIndex, host: &str) -> Vec<Box<str>> {
        let machines = index.on_host(host).into_iter();
        machines.map(|machine| machine.name.clone()).collect()
    }

    #[test]
    fn a_machine_is_found_on_its_host_only_and_by_its_present_uid_only() {
        let index = MachineIndex::default();
        for name in ["web", "db"] {
            index.apply(&Event::Apply(machine(name, name, Some("alpha"))));
        }
        assert_eq!(names(&index, "alpha"), ["db", "web"].map(Box::from));
        index.apply(&Event::Apply(machine("web", "web", Some("beta"))));
        assert_eq!(names(&index, "alpha"), [Box::from("db")]);
        assert_eq!(names(&index, "beta"), [Box::from("web")]);

        // Deleted and created again while the watch was interrupted.
        index.apply(&Event::Apply(machine("web", "new", None)));
        assert!(names(&index, "beta").is_empty());
        assert!(!index.contains("web") && index.contains("new"));
        assert_eq!(&*index.of_uid("new").unwrap().name, "web");
        index.apply(&Event::Delete(machine("web", "new", None)));
        assert!(!index.contains("new"));
    }

    #[test]
    fn a_list_replaces_everything_once_it_is_complete() {
        let index = MachineIndex::default();
        index.apply(&Event::Apply(machine("old", "old", Some("alpha"))));
        index.apply(&Event::Init);
        index.apply(&Event::InitApply(machine("new", "new", Some("alpha"))));
        assert_eq!(names(&index, "alpha"), [Box::from("old")]);
        index.apply(&Event::InitDone);
        assert_eq!(names(&index, "alpha"), [Box::from("new")]);
        assert!(!index.contains("old"));
        index.apply(&Event::Delete(machine("new", "new", None)));
        assert!(index.read().content.on_host.is_empty());
    }
}
