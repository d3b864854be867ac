//! Triggers: watches report here which Machines and which namespaces need a pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::runtime::reflector::ObjectRef;

use crate::caches::{Caches, machines_where};
use crate::machine::CachedMachine;
use crate::network_usage::NamespaceQueue;
use crate::queue::FairQueue;

/// Where watches report changes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    /// Machines that need a pass.
    pub queue: FairQueue,
    /// Namespaces in which a NetworkConfiguration may need its in-use finalizer added or removed.
    pub network_namespaces: NamespaceQueue,
    /// False until this replica holds the Lease for the first time.
    active: Arc<AtomicBool>,
}

impl Triggers {
    /// Queues Machines for a pass. Drops them while this replica has never held the Lease: nothing takes them from
    /// the queue then, and it would grow to the size of the fleet.
    pub fn send(&self, machines: impl IntoIterator<Item = ObjectRef<CachedMachine>>) {
        if self.active.load(Ordering::Acquire) {
            machines
                .into_iter()
                .for_each(|machine| self.queue.enqueue(machine));
        }
    }

    /// Accepts triggers from now on, and queues every Machine and every namespace with a network, which covers what
    /// was dropped before.
    pub fn activate(&self, caches: &Caches) {
        self.active.store(true, Ordering::Release);
        self.send(machines_where(&caches.machines, |_| true));
        self.network_namespaces.push_all(&caches.networks);
    }
}
