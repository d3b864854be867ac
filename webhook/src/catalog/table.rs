//! The rows of one kind, which its watch keeps up to date.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::metrics;
use crate::watch::WatchSink;

/// A collection of rows, one for each object of a kind.
pub trait RowSet<K>: Default + Send + Sync {
    /// Inserts or replaces the row of an object.
    fn insert(&mut self, object: K);
    /// Removes the row of an object.
    fn remove(&mut self, object: K);
    /// Number of rows.
    fn count(&self) -> usize;
}

/// The rows of one kind, behind a lock.
///
/// A poisoned lock is ignored: a change of the rows is complete before anything that may panic.
#[derive(Debug)]
pub struct Table<T> {
    /// Label of the metrics.
    kind: &'static str,
    rows: RwLock<T>,
    listed: AtomicBool,
}

impl<T: Default> Table<T> {
    /// An empty table; `kind` is its label in the metrics.
    pub fn new(kind: &'static str) -> Self {
        Self {
            kind,
            rows: RwLock::default(),
            listed: AtomicBool::new(false),
        }
    }

    /// Locks the rows for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a complete list was received.
    pub fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }
}

impl<K, T: RowSet<K>> WatchSink<K> for Table<T> {
    type Listing = T;

    fn list(listing: &mut T, object: K) {
        listing.insert(object);
    }

    fn reset(&self, listing: T) {
        let before = std::mem::replace(&mut *self.write(), listing);
        self.listed.store(true, Ordering::Release);
        // Freeing thousands of rows takes a while: do it after the lock is released.
        drop(before);
    }

    fn apply(&self, object: K) {
        self.write().insert(object);
    }

    fn delete(&self, object: K) {
        self.write().remove(object);
    }

    fn report_age(&self, age: Duration) {
        metrics::catalog(self.kind, self.read().count(), age);
    }
}
