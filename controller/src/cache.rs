//! Objects of one kind as a watch tells them, found by name or by the Machine they are for.
//!
//! A watch that starts over lists everything again; what is missing in the new list is gone, and
//! no event ever says so. So a list is collected beside the old content and compared with it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::objects::Meta;

/// What is known of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not listed yet.
    Starting,
    /// Listed, and followed since.
    Listed,
    /// The API server does not serve the kind: its CRD is not installed.
    Absent,
}

/// Objects of one kind. Clones share them.
#[derive(Debug)]
pub(crate) struct Cache<K> {
    inner: Arc<RwLock<Inner<K>>>,
    state: watch::Sender<State>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            state: self.state.clone(),
        }
    }
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self {
            inner: Arc::default(),
            state: watch::Sender::new(State::Starting),
        }
    }
}

#[derive(Debug)]
struct Inner<K> {
    content: Content<K>,
    listing: Content<K>,
}

impl<K> Default for Inner<K> {
    fn default() -> Self {
        Self {
            content: Content::default(),
            listing: Content::default(),
        }
    }
}

/// `namespace/name`, or `/name` of an object without a namespace.
type Key = String;

fn key(namespace: &str, name: &str) -> Key {
    [namespace, "/", name].concat()
}

#[derive(Debug)]
struct Content<K> {
    objects: HashMap<Key, Arc<K>>,
    /// Names of the objects whose label names a Machine.
    of_machine: HashMap<Key, BTreeSet<String>>,
}

impl<K> Default for Content<K> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            of_machine: HashMap::new(),
        }
    }
}

impl<K: Meta> Content<K> {
    fn insert(&mut self, object: Arc<K>) -> Option<Arc<K>> {
        let old = self.remove(object.namespace(), object.name());
        if let Some(machine) = object.machine() {
            self.of_machine
                .entry(key(object.namespace(), machine))
                .or_default()
                .insert(object.name().to_owned());
        }
        let key = key(object.namespace(), object.name());
        self.objects.insert(key, object);
        old
    }

    fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let old = self.objects.remove(&key(namespace, name))?;
        if let Some(machine) = old.machine() {
            let machine = key(namespace, machine);
            if let Some(names) = self.of_machine.get_mut(&machine) {
                names.remove(name);
                if names.is_empty() {
                    self.of_machine.remove(&machine);
                }
            }
        }
        Some(old)
    }
}

/// What an event did to an object.
#[derive(Debug)]
pub(crate) struct Change<K> {
    pub(crate) old: Option<Arc<K>>,
    pub(crate) new: Option<Arc<K>>,
}

impl<K: Meta> Cache<K> {
    fn read(&self) -> RwLockReadGuard<'_, Inner<K>> {
        // Every write leaves the content whole, even one that panicked before it began.
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<K>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over an event; returns what it changed.
    pub(crate) fn take(&self, event: Event<K>) -> Vec<Change<K>> {
        let mut inner = self.write();
        match event {
            Event::Init => {
                inner.listing = Content::default();
                Vec::new()
            }
            Event::InitApply(object) => {
                inner.listing.insert(Arc::new(object));
                Vec::new()
            }
            Event::InitDone => {
                let listing = std::mem::take(&mut inner.listing);
                let old = std::mem::replace(&mut inner.content, listing);
                self.state.send_replace(State::Listed);
                differences(old, &inner.content)
            }
            Event::Apply(object) => {
                let new = Arc::new(object);
                let old = inner.content.insert(new.clone());
                vec![Change {
                    old,
                    new: Some(new),
                }]
            }
            Event::Delete(object) => {
                let old = inner.content.remove(object.namespace(), object.name());
                vec![Change {
                    old: old.or_else(|| Some(Arc::new(object))),
                    new: None,
                }]
            }
        }
    }

    /// The API server does not serve the kind, so there are no objects of it. Tells whether this
    /// is news.
    pub(crate) fn is_absent_now(&self) -> bool {
        self.write().content = Content::default();
        self.state.send_replace(State::Absent) != State::Absent
    }

    pub(crate) fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Waits until the kind has been listed, or is known not to be served.
    pub(crate) async fn known(&self) {
        let mut states = self.state.subscribe();
        // The sender is ours: it lives as long as this borrow.
        let _ = states.wait_for(|state| *state != State::Starting).await;
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read()
            .content
            .objects
            .get(&key(namespace, name))
            .cloned()
    }

    /// The objects whose label names this Machine, by name.
    pub(crate) fn of_machine(&self, namespace: &str, machine: &str) -> Vec<Arc<K>> {
        let inner = self.read();
        let content = &inner.content;
        content
            .of_machine
            .get(&key(namespace, machine))
            .into_iter()
            .flatten()
            .filter_map(|name| content.objects.get(&key(namespace, name)).cloned())
            .collect()
    }

    /// Looks at every object.
    pub(crate) fn for_each(&self, mut look: impl FnMut(&Arc<K>)) {
        self.read().content.objects.values().for_each(&mut look);
    }
}

fn differences<K: Meta>(mut old: Content<K>, new: &Content<K>) -> Vec<Change<K>> {
    let mut changes: Vec<_> = new
        .objects
        .iter()
        .filter_map(|(key, object)| {
            let before = old.objects.remove(key);
            let same = before.as_ref().is_some_and(|before| {
                before.meta().resource_version == object.meta().resource_version
            });
            (!same).then(|| Change {
                old: before,
                new: Some(object.clone()),
            })
        })
        .collect();
    changes.extend(old.objects.into_values().map(|gone| Change {
        old: Some(gone),
        new: None,
    }));
    changes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::Claim;

    fn claim(name: &str, machine: Option<&str>, version: &str) -> Claim {
        let labels = machine.map(|machine| json!({"vitistack.io/machine": machine}));
        serde_json::from_value(json!({"metadata": {
            "name": name, "namespace": "prod", "labels": labels, "resourceVersion": version,
        }}))
        .unwrap()
    }

    fn names(cache: &Cache<Claim>, machine: &str) -> Vec<String> {
        let claims = cache.of_machine("prod", machine);
        claims.iter().map(|claim| claim.name().to_owned()).collect()
    }

    fn list(cache: &Cache<Claim>, claims: Vec<Claim>) -> Vec<(String, bool)> {
        assert!(cache.take(Event::Init).is_empty());
        for claim in claims {
            assert!(cache.take(Event::InitApply(claim)).is_empty());
        }
        let mut changes: Vec<_> = cache
            .take(Event::InitDone)
            .into_iter()
            .map(|change| {
                let gone = change.new.is_none();
                (change.new.or(change.old).unwrap().name().to_owned(), gone)
            })
            .collect();
        changes.sort();
        changes
    }

    #[test]
    fn objects_are_found_by_their_machine() {
        let cache = Cache::default();
        assert_eq!(cache.state(), State::Starting);
        list(
            &cache,
            vec![
                claim("web-root", Some("web"), "1"),
                claim("other", None, "1"),
            ],
        );
        assert_eq!(cache.state(), State::Listed);
        cache.take(Event::Apply(claim("web-data", Some("web"), "2")));
        assert_eq!(names(&cache, "web"), ["web-data", "web-root"]);
        assert!(cache.get("prod", "other").is_some());
        assert!(cache.get("", "other").is_none());

        cache.take(Event::Apply(claim("web-data", Some("db"), "3")));
        assert_eq!(names(&cache, "web"), ["web-root"]);
        assert_eq!(names(&cache, "db"), ["web-data"]);
        cache.take(Event::Delete(claim("web-data", None, "3")));
        assert!(names(&cache, "db").is_empty());
    }

    #[test]
    fn a_new_list_tells_what_changed_and_what_is_gone() {
        let cache = Cache::default();
        let first = vec![
            claim("a", None, "1"),
            claim("b", None, "1"),
            claim("c", None, "1"),
        ];
        assert_eq!(list(&cache, first).len(), 3);
        let second = vec![
            claim("a", None, "1"),
            claim("b", None, "2"),
            claim("d", None, "3"),
        ];
        let expected = [("b", false), ("c", true), ("d", false)];
        assert_eq!(
            list(&cache, second),
            expected.map(|(name, gone)| (name.to_owned(), gone))
        );
    }

    #[test]
    fn a_kind_that_is_not_served_has_no_objects() {
        let cache = Cache::default();
        list(&cache, vec![claim("a", None, "1")]);
        assert!(cache.is_absent_now());
        assert!(!cache.is_absent_now());
        assert!(cache.get("prod", "a").is_none());
        list(&cache, vec![]);
        assert_eq!(cache.state(), State::Listed);
    }
}
