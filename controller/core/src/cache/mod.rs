//! Cache of one kind, filled by a watch; found by name or by the Machine in the label.
//!
//! Objects are compressed; the summary of each stays beside them uncompressed.
//!
//! A watch that reconnects lists everything again, and no event reports what was deleted meanwhile. So a list is
//! collected beside the old content and compared with it once it is complete
//! (`a_new_list_reports_changed_and_deleted_objects`).

pub mod compressed;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::watcher::Event;
use tokio::sync::watch;

use self::compressed::Compressed;
use crate::objects::{Cacheable, is_at_least};

/// Whether the objects of a kind are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not listed yet.
    Starting,
    /// Listed; events are applied since.
    Listed,
    /// The API server does not serve the kind: its CRD is not installed.
    Absent,
}

/// Objects of one kind. Clones share them.
#[derive(Debug)]
pub struct Cache<K: Cacheable> {
    inner: Arc<RwLock<Inner<K>>>,
    state: watch::Sender<State>,
}

impl<K: Cacheable> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            state: self.state.clone(),
        }
    }
}

impl<K: Cacheable> Default for Cache<K> {
    fn default() -> Self {
        Self {
            inner: Arc::default(),
            state: watch::Sender::new(State::Starting),
        }
    }
}

#[derive(Debug)]
struct Inner<K: Cacheable> {
    /// What readers see.
    content: Content<K>,
    /// The list that is being received; replaces `content` when it is complete.
    listing: Content<K>,
}

impl<K: Cacheable> Default for Inner<K> {
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

fn namespace_of(key: &str) -> &str {
    key.split_once('/').unwrap_or_default().0
}

#[derive(Debug)]
struct Entry<K: Cacheable> {
    object: Compressed<K>,
    /// Its `resourceVersion`, if that is a number.
    version: Option<u64>,
    summary: K::Summary,
}

#[derive(Debug)]
struct Content<K: Cacheable> {
    objects: HashMap<Key, Entry<K>>,
    /// Names of the objects by their Machine, sorted.
    of_machine: HashMap<Key, Vec<Box<str>>>,
}

impl<K: Cacheable> Default for Content<K> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            of_machine: HashMap::new(),
        }
    }
}

impl<K: Cacheable> Content<K> {
    fn get(&self, key: &str) -> Option<Arc<K>> {
        Some(Arc::new(self.objects.get(key)?.object.decompress()))
    }

    fn insert(&mut self, object: &K) -> Option<Arc<K>> {
        let old = self.remove(object.namespace(), object.name());
        if let Some(machine) = object.indexed_machine() {
            let machine = key(object.namespace(), machine);
            let names = self.of_machine.entry(machine).or_default();
            let name = object.name();
            if let Err(position) = names.binary_search_by(|known| (**known).cmp(name)) {
                names.reserve_exact(1);
                names.insert(position, name.into());
            }
        }
        let entry = Entry {
            object: Compressed::new(object),
            version: object.version_number(),
            summary: object.summary(),
        };
        let key = key(object.namespace(), object.name());
        self.objects.insert(key, entry);
        old
    }

    fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let old = self
            .objects
            .remove(&key(namespace, name))?
            .object
            .decompress();
        if let Some(machine) = old.indexed_machine() {
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

/// A change of one object.
#[derive(Debug)]
pub struct Change<K> {
    /// The object before; `None`: it was created.
    pub old: Option<Arc<K>>,
    /// The object now; `None`: it was deleted.
    pub new: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// The object now, or as it was before it was deleted.
    pub fn object(&self) -> Option<&Arc<K>> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

impl<K: Cacheable> Cache<K> {
    fn read(&self) -> RwLockReadGuard<'_, Inner<K>> {
        // No statement under this lock leaves the maps inconsistent, so a poisoned lock is safe to use.
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<K>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an event and calls `changed` for each object that it changed, after the change is visible.
    /// For one caller at a time.
    pub fn apply(&self, event: Event<K>, changed: impl FnMut(&Change<K>)) {
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

    /// Empties the cache because the API server does not serve the kind. Returns whether that was unknown before.
    pub fn set_absent(&self) -> bool {
        self.write().content = Content::default();
        self.state.send_replace(State::Absent) != State::Absent
    }

    /// Whether the objects are known.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Waits until the kind has been listed, or is known not to be served.
    pub async fn wait_until_listed(&self) {
        let mut states = self.state.subscribe();
        // Fails only if the sender is dropped; `self` holds it.
        let _ = states.wait_for(|state| *state != State::Starting).await;
    }

    /// The object of this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read().content.get(&key(namespace, name))
    }

    /// Whether there is an object of this name. Cheaper than [`get`](Self::get): nothing is decompressed.
    pub fn contains(&self, namespace: &str, name: &str) -> bool {
        self.read()
            .content
            .objects
            .contains_key(&key(namespace, name))
    }

    /// The objects of this Machine, by [`Cacheable::indexed_machine`], sorted by name.
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

    /// Namespaces and names of all objects, in no order. Nothing is decompressed.
    pub fn names(&self) -> Vec<(String, String)> {
        let inner = self.read();
        let keys = inner.content.objects.keys();
        let names = keys.filter_map(|key| key.split_once('/'));
        names
            .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
            .collect()
    }

    /// All objects, decompressed: only for kinds of which an administrator writes a few.
    pub fn all(&self) -> Vec<K> {
        self.in_namespaces(|_| true)
    }

    /// The objects of the namespaces for which `matches` returns true, decompressed.
    pub fn in_namespaces(&self, matches: impl Fn(&str) -> bool) -> Vec<K> {
        let inner = self.read();
        let objects = inner.content.objects.iter();
        let objects = objects.filter(|(key, _)| matches(namespace_of(key)));
        objects
            .map(|(_, entry)| entry.object.decompress())
            .collect()
    }

    /// Whether there is an object of this name that is at least as new as `version`. Nothing is decompressed.
    pub fn has_seen(&self, namespace: &str, name: &str, version: &str) -> bool {
        let inner = self.read();
        let entry = inner.content.objects.get(&key(namespace, name));
        entry.is_some_and(|entry| is_at_least(entry.version, version))
    }

    /// Calls `visit` with the namespace and the summary of every object.
    pub fn for_each_summary(&self, mut visit: impl FnMut(&str, &K::Summary)) {
        for (key, entry) in &self.read().content.objects {
            visit(namespace_of(key), &entry.summary);
        }
    }
}

/// Objects that were created or changed, then those that were deleted. Lazy: one object is decompressed at a time.
fn differences<K: Cacheable>(
    old: &Content<K>,
    new: &Content<K>,
) -> impl Iterator<Item = Change<K>> {
    let decompress = |entry: &Entry<K>| Arc::new(entry.object.decompress());
    let changes = new.objects.iter().filter_map(move |(key, entry)| {
        let before = old.objects.get(key);
        let same = before.is_some_and(|before| before.object == entry.object);
        (!same).then(|| Change {
            old: before.map(decompress),
            new: Some(decompress(entry)),
        })
    });
    let deleted = old.objects.iter();
    let deleted = deleted.filter(|(key, _)| !new.objects.contains_key(*key));
    changes.chain(deleted.map(move |(_, entry)| Change {
        old: Some(decompress(entry)),
        new: None,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::{Meta as _, Secret};

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
        let unchanged = |_: &Change<Secret>| panic!("an incomplete list changes nothing");
        cache.apply(Event::Init, unchanged);
        for secret in secrets {
            cache.apply(Event::InitApply(secret), unchanged);
        }
        let mut changes = Vec::new();
        cache.apply(Event::InitDone, |change| {
            let secret = change.object().unwrap();
            changes.push((secret.name().to_owned(), change.new.is_none()));
        });
        changes.sort();
        changes
    }

    #[test]
    fn objects_are_found_by_the_machine_in_their_label() {
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
        cache.apply(Event::Apply(secret("web-data", Some("web"), "2")), |_| {});
        assert_eq!(names(&cache, "web"), ["web-data", "web-root"]);
        assert!(cache.get("prod", "other").is_some());
        assert!(cache.get("", "other").is_none());
        let mut all = cache.names();
        all.sort();
        let expected = ["other", "web-data", "web-root"].map(|name| ("prod".into(), name.into()));
        assert_eq!(all, expected);

        cache.apply(Event::Apply(secret("web-data", Some("db"), "3")), |_| {});
        assert_eq!(names(&cache, "web"), ["web-root"]);
        assert_eq!(names(&cache, "db"), ["web-data"]);
        cache.apply(Event::Delete(secret("web-data", None, "3")), |_| {});
        assert!(names(&cache, "db").is_empty());
    }

    #[test]
    fn a_new_list_reports_changed_and_deleted_objects() {
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
    fn a_kind_that_is_not_served_has_no_objects_until_it_is_listed_again() {
        let cache = Cache::default();
        list(&cache, vec![secret("a", None, "1")]);
        assert!(cache.set_absent());
        assert!(!cache.set_absent());
        assert!(cache.get("prod", "a").is_none());
        list(&cache, vec![]);
        assert_eq!(cache.state(), State::Listed);
    }
}
