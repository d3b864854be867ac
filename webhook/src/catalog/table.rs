//! The rows of one kind, kept up to date by its watch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::metrics;
use crate::watch::Rows;

/// What the objects of a kind become.
pub trait Content<K>: Default + Send + Sync {
    /// This object is new or changed.
    fn insert(&mut self, object: K);
    /// This object is gone.
    fn remove(&mut self, object: K);
    /// How many there are.
    fn count(&self) -> usize;
}

/// The rows of one kind.
///
/// They stay whole when a thread dies with the lock: every change leaves them so before anything
/// else can fail.
#[derive(Debug)]
pub struct Table<T> {
    kind: &'static str,
    rows: RwLock<T>,
    listed: AtomicBool,
}

impl<T: Default> Table<T> {
    /// An empty one for objects that are called this in the metrics.
    pub fn new(kind: &'static str) -> Self {
        Self {
            kind,
            rows: RwLock::default(),
            listed: AtomicBool::new(false),
        }
    }

    /// The rows as they are now.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the kind was listed once.
    pub fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }
}

impl<K, T: Content<K>> Rows<K> for Table<T> {
    type Listing = T;

    fn list(listing: &mut T, object: K) {
        listing.insert(object);
    }

    fn reset(&self, listing: T) {
        let before = std::mem::replace(&mut *self.write(), listing);
        self.listed.store(true, Ordering::Release);
        // Thousands of rows: nobody waits for their end.
        drop(before);
    }

    fn apply(&self, object: K) {
        self.write().insert(object);
    }

    fn delete(&self, object: K) {
        self.write().remove(object);
    }

    fn aged(&self, age: Duration) {
        metrics::catalog(self.kind, self.read().count(), age);
    }
}
