//! Objects of one kind as a watch tells them, found by name or by the Machine they are for.
//!
//! They are packed at rest; what is asked of all of them at once stays beside that.
//!
//! A watch that starts over lists everything again; what is missing in the new list is gone, and
//! no event ever says so. So a list is collected beside the old content and compared with it.

pub mod compressed;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::watcher::Event;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use self::compressed::Compressed;
use crate::objects::{Meta, prune};

/// An object that can be kept.
pub trait Kept: Meta + Serialize + DeserializeOwned {
    /// What is asked of all objects of the kind at once.
    type Summary: std::fmt::Debug + Send + Sync;

    fn summary(&self) -> Self::Summary;

    /// Drops what no one reads.
    fn prune(&mut self) {
        prune(self.meta_mut());
    }
}

/// What is known of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not listed yet.
    Starting,
    /// Listed, and followed since.
    Listed,
    /// The API server does not serve the kind: its CRD is not installed.
    Absent,
}

/// Objects of one kind. Clones share them.
#[derive(Debug)]
pub struct Cache<K: Kept> {
    inner: Arc<RwLock<Inner<K>>>,
    state: watch::Sender<State>,
}

impl<K: Kept> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            state: self.state.clone(),
        }
    }
}

impl<K: Kept> Default for Cache<K> {
    fn default() -> Self {
        Self {
            inner: Arc::default(),
            state: watch::Sender::new(State::Starting),
        }
    }
}

#[derive(Debug)]
struct Inner<K: Kept> {
    content: Content<K>,
    listing: Content<K>,
}

impl<K: Kept> Default for Inner<K> {
    fn default() -> Self {
        Self {
            content: Content::default(),
            listing: Content::default(),
        }
    }
}

/// `namespace/name`, or `/name` of an object without a namespace.
type Key = Box<str>;

fn key(namespace: &str, name: &str) -> Key {
    [namespace, "/", name].concat().into()
}

#[derive(Debug)]
struct Slot<K: Kept> {
    object: Compressed<K>,
    summary: K::Summary,
}

#[derive(Debug)]
struct Content<K: Kept> {
    objects: HashMap<Key, Slot<K>>,
    /// Names of the objects whose label names a Machine, in order.
    of_machine: HashMap<Key, Vec<Box<str>>>,
}

impl<K: Kept> Default for Content<K> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            of_machine: HashMap::new(),
        }
    }
}

impl<K: Kept> Content<K> {
    fn get(&self, key: &str) -> Option<Arc<K>> {
        Some(Arc::new(self.objects.get(key)?.object.open()))
    }

    fn insert(&mut self, object: &K) -> Option<Arc<K>> {
        let old = self.remove(object.namespace(), object.name());
        if let Some(machine) = object.machine() {
            let machine = key(object.namespace(), machine);
            let names = self.of_machine.entry(machine).or_default();
            let name = object.name();
            if let Err(place) = names.binary_search_by(|known| (**known).cmp(name)) {
                names.reserve_exact(1);
                names.insert(place, name.into());
            }
        }
        let slot = Slot {
            object: Compressed::of(object),
            summary: object.summary(),
        };
        let key = key(object.namespace(), object.name());
        self.objects.insert(key, slot);
        old
    }

    fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let old = self.objects.remove(&key(namespace, name))?.object.open();
        if let Some(machine) = old.machine() {
            let machine = key(namespace, machine);
            if let Some(names) = self.of_machine.get_mut(&machine) {
                names.retain(|known| **known != *name);
                if names.is_empty() {
                    self.of_machine.remove(&machine);
                }
            }
        }
        Some(Arc::new(old))
    }
}

/// What an event did to an object.
#[derive(Debug)]
pub struct Change<K> {
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
}

impl<K: Kept> Cache<K> {
    fn read(&self) -> RwLockReadGuard<'_, Inner<K>> {
        // Every write leaves the content whole, even one that panicked before it began.
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<K>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over an event, and tells one by one what it changed. For one caller at a time.
    pub fn take(&self, event: Event<K>, changed: impl FnMut(&Change<K>)) {
        let mut changed = changed;
        match event {
            Event::Init => self.write().listing = Content::default(),
            Event::InitApply(object) => {
                self.write().listing.insert(&object);
            }
            Event::InitDone => {
                let old = {
                    let mut inner = self.write();
                    let listing = std::mem::take(&mut inner.listing);
                    std::mem::replace(&mut inner.content, listing)
                };
                self.state.send_replace(State::Listed);
                differences(&old, &self.read().content).for_each(|change| changed(&change));
            }
            Event::Apply(object) => {
                let old = self.write().content.insert(&object);
                let new = Some(Arc::new(object));
                changed(&Change { old, new });
            }
            Event::Delete(object) => {
                let (namespace, name) = (object.namespace(), object.name());
                let old = self.write().content.remove(namespace, name);
                let old = old.or_else(|| Some(Arc::new(object)));
                changed(&Change { old, new: None });
            }
        }
    }

    /// The API server does not serve the kind, so there are no objects of it. Tells whether this
    /// is news.
    pub fn is_absent_now(&self) -> bool {
        self.write().content = Content::default();
        self.state.send_replace(State::Absent) != State::Absent
    }

    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Waits until the kind has been listed, or is known not to be served.
    pub async fn known(&self) {
        let mut states = self.state.subscribe();
        // The sender is ours: it lives as long as this borrow.
        let _ = states.wait_for(|state| *state != State::Starting).await;
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read().content.get(&key(namespace, name))
    }

    /// Whether there is such an object.
    pub fn has(&self, namespace: &str, name: &str) -> bool {
        self.read()
            .content
            .objects
            .contains_key(&key(namespace, name))
    }

    /// The objects whose label names this Machine, by name.
    pub fn of_machine(&self, namespace: &str, machine: &str) -> Vec<Arc<K>> {
        let inner = self.read();
        let content = &inner.content;
        content
            .of_machine
            .get(&key(namespace, machine))
            .into_iter()
            .flatten()
            .filter_map(|name| content.get(&key(namespace, name)))
            .collect()
    }

    /// All objects: for kinds that have few.
    pub fn all(&self) -> Vec<K> {
        let inner = self.read();
        let objects = inner.content.objects.values();
        objects.map(|slot| slot.object.open()).collect()
    }

    /// Looks at the namespace and the summary of every object.
    pub fn summaries(&self, mut look: impl FnMut(&str, &K::Summary)) {
        for (key, slot) in &self.read().content.objects {
            let (namespace, _) = key.split_once('/').unwrap_or_default();
            look(namespace, &slot.summary);
        }
    }
}

/// What is new or another, and then what is gone: opened one by one, for a list is long.
fn differences<K: Kept>(old: &Content<K>, new: &Content<K>) -> impl Iterator<Item = Change<K>> {
    let open = |slot: &Slot<K>| Arc::new(slot.object.open());
    let changes = new.objects.iter().filter_map(move |(key, slot)| {
        let before = old.objects.get(key);
        let same = before.is_some_and(|before| before.object == slot.object);
        (!same).then(|| Change {
            old: before.map(open),
            new: Some(open(slot)),
        })
    });
    let gone = old.objects.iter();
    let gone = gone.filter(|(key, _)| !new.objects.contains_key(*key));
    changes.chain(gone.map(move |(_, slot)| Change {
        old: Some(open(slot)),
        new: None,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::Secret;

    fn secret(name: &str, machine: Option<&str>, version: &str) -> Secret {
        let labels = machine.map(|machine| json!({"vitistack.io/machine": machine}));
        serde_json::from_value(json!({"metadata": {
            "name": name, "namespace": "prod", "labels": labels, "resourceVersion": version,
        }}))
        .unwrap()
    }

    fn names(cache: &Cache<Secret>, machine: &str) -> Vec<String> {
        let secrets = cache.of_machine("prod", machine);
        secrets
            .iter()
            .map(|secret| secret.name().to_owned())
            .collect()
    }

    fn list(cache: &Cache<Secret>, secrets: Vec<Secret>) -> Vec<(String, bool)> {
        let nothing = |_: &Change<Secret>| panic!("nothing has changed yet");
        cache.take(Event::Init, nothing);
        for secret in secrets {
            cache.take(Event::InitApply(secret), nothing);
        }
        let mut changes = Vec::new();
        cache.take(Event::InitDone, |change| {
            let secret = change.new.as_ref().or(change.old.as_ref()).unwrap();
            changes.push((secret.name().to_owned(), change.new.is_none()));
        });
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
                secret("web-root", Some("web"), "1"),
                secret("other", None, "1"),
            ],
        );
        assert_eq!(cache.state(), State::Listed);
        cache.take(Event::Apply(secret("web-data", Some("web"), "2")), |_| {});
        assert_eq!(names(&cache, "web"), ["web-data", "web-root"]);
        assert!(cache.get("prod", "other").is_some());
        assert!(cache.get("", "other").is_none());

        cache.take(Event::Apply(secret("web-data", Some("db"), "3")), |_| {});
        assert_eq!(names(&cache, "web"), ["web-root"]);
        assert_eq!(names(&cache, "db"), ["web-data"]);
        cache.take(Event::Delete(secret("web-data", None, "3")), |_| {});
        assert!(names(&cache, "db").is_empty());
    }

    #[test]
    fn a_new_list_tells_what_changed_and_what_is_gone() {
        let cache = Cache::default();
        let first = vec![
            secret("a", None, "1"),
            secret("b", None, "1"),
            secret("c", None, "1"),
        ];
        assert_eq!(list(&cache, first).len(), 3);
        let second = vec![
            secret("a", None, "1"),
            secret("b", None, "2"),
            secret("d", None, "3"),
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
        list(&cache, vec![secret("a", None, "1")]);
        assert!(cache.is_absent_now());
        assert!(!cache.is_absent_now());
        assert!(cache.get("prod", "a").is_none());
        list(&cache, vec![]);
        assert_eq!(cache.state(), State::Listed);
    }
}
