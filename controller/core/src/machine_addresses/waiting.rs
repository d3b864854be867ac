//! The Machines that wait until an address is released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use kube::runtime::reflector::ObjectRef;

use crate::machine::{CachedMachine, Machine};
use crate::objects::Meta as _;

/// Segments on which Machines wait for an address, by namespace and name of the Machine.
type Segments = BTreeMap<(String, String), BTreeSet<String>>;

/// Machines that wait for an address. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Waiting(Arc<Mutex<Segments>>);

impl Waiting {
    fn with<T>(&self, change: impl FnOnce(&mut Segments) -> T) -> T {
        // No statement under this lock leaves the map inconsistent, so a poisoned lock is safe to use.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the segments on which a Machine waits.
    pub(super) fn set(&self, machine: &Machine, segments: BTreeSet<String>) {
        let key = (machine.namespace().to_owned(), machine.name().to_owned());
        self.with(|waiting| {
            if segments.is_empty() {
                waiting.remove(&key);
            } else {
                waiting.insert(key, segments);
            }
        });
    }

    /// The Machines that wait for an address of a segment.
    pub(crate) fn on(&self, segment: &str) -> Vec<ObjectRef<CachedMachine>> {
        self.with(|waiting| {
            let all = waiting.iter();
            let waiting = all.filter(|(_, segments)| segments.contains(segment));
            let machines =
                waiting.map(|((namespace, name), _)| ObjectRef::new(name).within(namespace));
            machines.collect()
        })
    }
}
