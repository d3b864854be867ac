//! Limits concurrent live reads, and shares one pending read between reviews that need the same object.
//!
//! ```text
//! reviews ──▶ pending (one entry per reference) ──▶ 8 at a time ──▶ API server
//! ```
//!
//! A review joins a pending read only if that read has not started: one in flight may have looked before
//! the object was created, and the review would miss it. Results are not cached for the same reason.
//!
//! Reason: without it, a thousand Machines that name one missing template cause a thousand reads
//! (`concurrent_reads_are_limited_and_pending_ones_shared` here, `tests/overload.rs`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::violation::Reference;
use futures::future::BoxFuture;
use tokio::sync::{OnceCell, Semaphore};

use super::lookup::{Found, Lookup, ReadError};

/// Concurrent reads of all reviews together. One takes an API server some milliseconds, less than the
/// write that is under review; if it does not answer, no more than these requests are open.
pub const CONCURRENT_READS: usize = 8;

/// A lookup with limited concurrency and shared pending reads.
#[derive(Debug)]
pub struct SingleFlight<L> {
    lookup: L,
    permits: Semaphore,
    pending: Mutex<Pending>,
}

/// Reads that wait for a permit. Each review that waits for a read holds a clone of its cell.
type Pending = HashMap<(String, Reference), Arc<OnceCell<Found>>>;

impl<L: Lookup> SingleFlight<L> {
    /// Wraps `lookup`; `concurrent` reads run at a time.
    pub fn new(lookup: L, concurrent: usize) -> Self {
        Self {
            lookup,
            permits: Semaphore::new(concurrent),
            pending: Mutex::default(),
        }
    }

    async fn read(&self, namespace: &str, reference: &Reference) -> Found {
        let entry = Entry::join(&self.pending, namespace, reference);
        let found = entry.cell.get_or_init(async || {
            let permit = self.permits.acquire().await;
            let _permit = permit.map_err(|_| ReadError::Failed)?;
            entry.close();
            self.lookup.find(namespace, reference).await
        });
        found.await.clone()
    }
}

impl<L: Lookup> Lookup for SingleFlight<L> {
    fn find<'a>(&'a self, namespace: &'a str, reference: &'a Reference) -> BoxFuture<'a, Found> {
        Box::pin(self.read(namespace, reference))
    }
}

/// The part of one review in a pending read.
struct Entry<'a> {
    pending: &'a Mutex<Pending>,
    key: (String, Reference),
    cell: Arc<OnceCell<Found>>,
}

impl<'a> Entry<'a> {
    /// Joins the pending read of the reference, or adds one.
    fn join(pending: &'a Mutex<Pending>, namespace: &str, reference: &Reference) -> Self {
        let key = (namespace.to_owned(), reference.clone());
        let cell = lock(pending).entry(key.clone()).or_default().clone();
        Self { pending, key, cell }
    }

    /// The read starts: later reviews need another one.
    fn close(&self) {
        self.remove_if(|_| true);
    }

    /// Removes the pending read if it is still this one and fulfils the condition.
    fn remove_if(&self, condition: impl FnOnce(&Arc<OnceCell<Found>>) -> bool) {
        let mut pending = lock(self.pending);
        let own = pending.get(&self.key);
        if own.is_some_and(|cell| Arc::ptr_eq(cell, &self.cell) && condition(cell)) {
            pending.remove(&self.key);
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        // Two references are left if no other review waits: the map's and this one.
        self.remove_if(|cell| Arc::strong_count(cell) == 2);
    }
}

/// A poisoned lock is ignored: every change of the map is a single insertion or removal.
fn lock(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use common::catalog::NetworkRow;

    use super::super::overlay::LiveRow;
    use super::*;
    use futures::FutureExt as _;
    use futures::future::join_all;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;

    /// Answers once it is released, with what existed when the read started.
    #[derive(Default)]
    struct Slow {
        started: AtomicUsize,
        release: Notify,
        exists: AtomicUsize,
    }

    impl Lookup for &Slow {
        fn find<'a>(
            &'a self,
            namespace: &'a str,
            reference: &'a Reference,
        ) -> BoxFuture<'a, Found> {
            Box::pin(async move {
                self.started.fetch_add(1, Ordering::Relaxed);
                let exists = self.exists.load(Ordering::Relaxed) > 0;
                self.release.notified().await;
                let Reference::Network(name) = reference else {
                    return Ok(None);
                };
                let row = NetworkRow::default();
                Ok(exists.then(|| LiveRow::Network(namespace.to_owned(), name.clone(), row)))
            })
        }
    }

    fn network(name: &str) -> Reference {
        Reference::Network(name.to_owned())
    }

    #[tokio::test]
    async fn concurrent_reads_are_limited_and_pending_ones_shared() {
        let (slow, same) = (Slow::default(), network("same"));
        let single_flight = SingleFlight::new(&slow, 2);
        let mut same_reads = Box::pin(join_all(
            (0..20).map(|_| single_flight.find("default", &same)),
        ));
        assert!(same_reads.as_mut().now_or_never().is_none());
        assert_eq!(slow.started.load(Ordering::Relaxed), 2, "two at a time");
        assert_eq!(lock(&single_flight.pending).len(), 1);

        // Another namespace and another name need reads of their own.
        let other = network("other");
        let mut more = Box::pin(join_all([
            single_flight.find("elsewhere", &same),
            single_flight.find("default", &other),
        ]));
        assert!(more.as_mut().now_or_never().is_none());
        assert_eq!(lock(&single_flight.pending).len(), 3);

        let all = async { tokio::join!(same_reads, more) };
        let release = async {
            loop {
                slow.release.notify_waiters();
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            (same_reads, more) = all => assert_eq!(same_reads.len() + more.len(), 22),
            () = release => {}
        }
        assert_eq!(slow.started.load(Ordering::Relaxed), 2 + 1 + 2);
        assert!(lock(&single_flight.pending).is_empty());
    }

    #[tokio::test]
    async fn an_object_created_after_a_read_started_is_found_by_the_next_read() {
        let (slow, prod) = (Slow::default(), network("prod"));
        let single_flight = SingleFlight::new(&slow, 8);
        let mut before = single_flight.find("default", &prod);
        assert!(before.as_mut().now_or_never().is_none());
        slow.exists.store(1, Ordering::Relaxed);
        let mut after = single_flight.find("default", &prod);
        assert!(after.as_mut().now_or_never().is_none());
        slow.release.notify_waiters();
        assert!(before.await.unwrap().is_none());
        assert!(after.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_cancelled_review_leaves_no_pending_read_and_cancels_none_of_others() {
        let (slow, prod) = (Slow::default(), network("prod"));
        slow.exists.store(1, Ordering::Relaxed);
        let single_flight = SingleFlight::new(&slow, 1);
        let mut reading = single_flight.find("default", &prod);
        assert!(reading.as_mut().now_or_never().is_none());
        let (mut one, mut two) = (
            single_flight.find("default", &prod),
            single_flight.find("default", &prod),
        );
        assert!(one.as_mut().now_or_never().is_none());
        assert!(two.as_mut().now_or_never().is_none());
        // The first review that waits would have made the read for both.
        drop(one);
        assert_eq!(lock(&single_flight.pending).len(), 1);
        drop(reading);
        assert!(two.as_mut().now_or_never().is_none());
        assert_eq!(slow.started.load(Ordering::Relaxed), 2);
        slow.release.notify_waiters();
        assert!(two.await.unwrap().is_some());

        let mut three = single_flight.find("default", &prod);
        assert!(three.as_mut().now_or_never().is_none());
        let mut four = single_flight.find("default", &prod);
        assert!(four.as_mut().now_or_never().is_none());
        drop(four);
        drop(three);
        assert!(lock(&single_flight.pending).is_empty());
    }
}
