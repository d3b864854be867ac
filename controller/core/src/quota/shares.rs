//! What quotas are decided by, beside the Machines themselves: kept disks, what was granted, and who is held.
//!
//! A grant is recorded because the status shows later than the decision that a Machine has started
//! (`a_machine_that_was_granted_its_share_keeps_it_before_its_status_shows_that_it_started` in `tests.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use common::api::libvirt_host::LibvirtHostStatus;
use common::api::normalized::Normalized;
use common::catalog::{Claims, KeptByNamespace, Usage, kept_by_namespace};
use kube::runtime::reflector::ObjectRef;

use crate::machine::CachedMachine;
use crate::objects::Meta;

/// What is kept, what Machines were granted, and which are held. Clones share the content.
#[derive(Clone, Debug, Default)]
pub struct Quotas(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    kept: RwLock<Kept>,
    shares: Mutex<Shares>,
}

/// Disks that no Machine has any more. The backends report them.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) claims: Claims,
    /// By name of the LibvirtHost.
    pub(crate) hosts: BTreeMap<String, KeptByNamespace>,
}

#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// By uid what a Machine was granted: more is not carried out while others have the rest of the quota. A Machine that
    /// had started before this process gets what it asks for then.
    pub(crate) granted: HashMap<Box<str>, Grant>,
    /// Namespaces and names of the Machines that are held.
    pub(crate) held: BTreeMap<Box<str>, BTreeSet<Box<str>>>,
}

/// What a Machine was granted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grant {
    pub(crate) usage: Usage,
    /// Names of its disks.
    pub(crate) disks: Box<[Box<str>]>,
}

impl Grant {
    /// What a block asks for.
    pub(crate) fn of(block: &Normalized) -> Self {
        let disks = block.disks.iter().map(|disk| Box::from(disk.name.as_str()));
        Self {
            usage: Usage::of(block),
            disks: disks.collect(),
        }
    }
}

impl Shares {
    pub(crate) fn hold(&mut self, machine: &impl Meta) {
        let names = self.held.entry(machine.namespace().into()).or_default();
        names.insert(machine.name().into());
    }

    /// A Machine without a quota.
    pub(crate) fn remove(&mut self, machine: &impl Meta) {
        self.granted.remove(machine.uid());
        self.release(machine);
    }

    pub(crate) fn release(&mut self, machine: &impl Meta) {
        if let Some(names) = self.held.get_mut(machine.namespace()) {
            names.remove(machine.name());
            if names.is_empty() {
                self.held.remove(machine.namespace());
            }
        }
    }
}

impl Quotas {
    pub(crate) fn kept(&self) -> RwLockReadGuard<'_, Kept> {
        // No statement under this lock leaves the maps inconsistent, so a poisoned lock is safe to use.
        self.0.kept.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept_mut(&self) -> RwLockWriteGuard<'_, Kept> {
        self.0.kept.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shares(&self) -> MutexGuard<'_, Shares> {
        // As above.
        self.0.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim was created or changed. `size`: requested bytes. Whether several nodes can write to it does not count.
    pub fn claim_changed(&self, claim: &impl Meta, size: u64) {
        let kept = &mut self.kept_mut().claims;
        if claim.is_deleting() {
            kept.remove(claim.namespace(), claim.name());
        } else {
            kept.insert(
                claim.namespace(),
                claim.name(),
                |key| claim.label(key),
                size,
                false,
            );
        }
    }

    /// A claim was deleted.
    pub fn claim_deleted(&self, claim: &impl Meta) {
        let kept = &mut self.kept_mut().claims;
        kept.remove(claim.namespace(), claim.name());
    }

    /// The status of a LibvirtHost, which lists volumes of deleted Machines; an empty one if it was deleted. Returns whether
    /// that is less than before in some namespace.
    pub fn host_changed(&self, host: &str, status: &LibvirtHostStatus) -> bool {
        let new = kept_by_namespace(status);
        let hosts = &mut self.kept_mut().hosts;
        let old = if new.is_empty() {
            hosts.remove(host)
        } else {
            hosts.insert(host.to_owned(), new.clone())
        };
        let less =
            |(namespace, size): (&String, &u64)| new.get(namespace).is_none_or(|it| it < size);
        old.unwrap_or_default().iter().any(less)
    }

    /// Removes what Machines were granted: another replica may have granted more meanwhile.
    pub fn remove_grants(&self) {
        self.shares().granted.clear();
    }

    /// The held Machines of a namespace.
    pub fn held_in(&self, namespace: &str) -> Vec<ObjectRef<CachedMachine>> {
        let shares = self.shares();
        let names = shares.held.get(namespace).into_iter().flatten();
        names
            .map(|name| ObjectRef::new(name).within(namespace))
            .collect()
    }

    /// The held Machines of all namespaces.
    pub fn held(&self) -> Vec<ObjectRef<CachedMachine>> {
        let shares = self.shares();
        let all = shares.held.iter();
        let all =
            all.flat_map(|(namespace, names)| names.iter().map(move |name| (namespace, name)));
        all.map(|(namespace, name)| ObjectRef::new(name).within(namespace))
            .collect()
    }

    /// A Machine was deleted.
    pub(crate) fn machine_deleted(&self, machine: &impl Meta) {
        self.shares().remove(machine);
    }

    /// Removes Machines that no longer exist: a watch that was interrupted reports no deletion. `exists`: whether a Machine
    /// has this uid.
    pub(super) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.shares().granted.retain(|uid, _| exists(uid));
    }
}
