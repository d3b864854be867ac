//! Machines by uid, and by the LibvirtHost that they are bound to.
//!
//! The store of Machines finds them by name only. A question about one host or one uid that went through all of them would
//! cost each host more with every Machine of the others. `candidates` of controller/libvirt, which places a Machine, asks
//! every host, under one lock.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::address_index::key;
use crate::machine::CachedMachine;
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

/// Namespace and name of a Machine.
type Name = (Box<str>, Box<str>);

#[derive(Debug, Default)]
struct Content {
    /// Uid and host of each Machine.
    machines: HashMap<Name, (Box<str>, Option<Box<str>>)>,
    of_uid: HashMap<Box<str>, Name>,
    /// The Machines whose status names a host; no set is empty.
    on_host: HashMap<Box<str>, BTreeSet<Name>>,
}

impl Content {
    fn insert(&mut self, machine: &CachedMachine) {
        self.remove(machine);
        let name = name_of(machine);
        let host: Option<Box<str>> = machine.host().map(Box::from);
        if let Some(host) = &host {
            let here = self.on_host.entry(host.clone()).or_default();
            here.insert(name.clone());
        }
        self.of_uid.insert(machine.uid().into(), name.clone());
        self.machines.insert(name, (machine.uid().into(), host));
    }

    fn remove(&mut self, machine: &CachedMachine) {
        let name = name_of(machine);
        let Some((uid, host)) = self.machines.remove(&name) else {
            return;
        };
        self.of_uid.remove(&uid);
        if let Some(host) = host
            && let Some(here) = self.on_host.get_mut(&host)
        {
            here.remove(&name);
            if here.is_empty() {
                self.on_host.remove(&host);
            }
        }
    }
}

fn name_of(machine: &CachedMachine) -> Name {
    let key = key(machine);
    (key.namespace.into(), key.name.into())
}

fn reference((namespace, name): &Name) -> ObjectRef<CachedMachine> {
    ObjectRef::new(name).within(namespace)
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
    pub fn of_uid(&self, uid: &str) -> Option<ObjectRef<CachedMachine>> {
        self.read().content.of_uid.get(uid).map(reference)
    }

    /// The Machines whose status names this LibvirtHost, sorted by namespace and name.
    pub fn on_host(&self, host: &str) -> Vec<ObjectRef<CachedMachine>> {
        let inner = self.read();
        let here = inner.content.on_host.get(host).into_iter();
        here.flatten().map(reference).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn machine(name: &str, uid: &str, host: Option<&str>) -> CachedMachine {
        let mut block = fixtures::block();
        block.backend = common::api::choice::Backend::Libvirt;
        let mut machine = fixtures::machine(block);
        machine.metadata.name = Some(name.into());
        machine.metadata.uid = Some(uid.into());
        machine.status.host = host.map(Into::into);
        CachedMachine::from(machine)
    }

    fn names(index: &MachineIndex, host: &str) -> Vec<String> {
        let machines = index.on_host(host).into_iter();
        machines.map(|machine| machine.name).collect()
    }

    #[test]
    fn a_machine_is_found_on_its_host_only_and_by_its_present_uid_only() {
        let index = MachineIndex::default();
        for name in ["web", "db"] {
            index.apply(&Event::Apply(machine(name, name, Some("alpha"))));
        }
        assert_eq!(names(&index, "alpha"), ["db", "web"]);
        index.apply(&Event::Apply(machine("web", "web", Some("beta"))));
        assert_eq!(names(&index, "alpha"), ["db"]);
        assert_eq!(names(&index, "beta"), ["web"]);

        // Deleted and created again while the watch was interrupted.
        index.apply(&Event::Apply(machine("web", "new", None)));
        assert_eq!(names(&index, "beta"), [""; 0]);
        assert!(!index.contains("web") && index.contains("new"));
        assert_eq!(index.of_uid("new").unwrap().name, "web");
        index.apply(&Event::Delete(machine("web", "new", None)));
        assert!(!index.contains("new"));
    }

    #[test]
    fn a_list_replaces_everything_once_it_is_complete() {
        let index = MachineIndex::default();
        index.apply(&Event::Apply(machine("old", "old", Some("alpha"))));
        index.apply(&Event::Init);
        index.apply(&Event::InitApply(machine("new", "new", Some("alpha"))));
        assert_eq!(names(&index, "alpha"), ["old"]);
        index.apply(&Event::InitDone);
        assert_eq!(names(&index, "alpha"), ["new"]);
        assert!(!index.contains("old"));
        index.apply(&Event::Delete(machine("new", "new", None)));
        assert!(index.read().content.on_host.is_empty());
    }
}
