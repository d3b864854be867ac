//! Live reads of many reviews: a few at a time, and one for all who wait for the same.
//!
//! ```text
//! reviews ──▶ waiting (one place for each reference) ──▶ 8 at a time ──▶ API server
//! ```
//!
//! Only a read that has not begun is shared. What somebody made before a review came has to be found,
//! and a read that was under way by then may have looked before: nothing is remembered, either.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::violation::Reference;
use futures::future::BoxFuture;
use tokio::sync::{OnceCell, Semaphore};

use crate::catalog::Found;
use crate::lookup::Lookup;

/// Reads at a time, of all reviews together. Each takes an API server some milliseconds, which is
/// less than the write that is under review costs it; a stuck one holds no more than these.
pub const AT_A_TIME: usize = 8;

/// A lookup that spares the one behind it.
#[derive(Debug)]
pub struct Sharing<L> {
    lookup: L,
    permits: Semaphore,
    waiting: Mutex<Waiting>,
}

/// Reads that wait for their turn. Whoever waits for one holds its cell.
type Waiting = HashMap<(String, Reference), Arc<OnceCell<Option<Found>>>>;

impl<L: Lookup> Sharing<L> {
    /// `lookup`, asked for so many things at a time.
    pub fn new(lookup: L, reads: usize) -> Self {
        Self {
            lookup,
            permits: Semaphore::new(reads),
            waiting: Mutex::default(),
        }
    }

    async fn read(&self, namespace: &str, reference: &Reference) -> Option<Found> {
        let place = Place::take(&self.waiting, namespace, reference);
        let found = place.cell.get_or_init(async || {
            let _permit = self.permits.acquire().await.ok()?;
            place.leave();
            self.lookup.find(namespace, reference).await
        });
        found.await.clone()
    }
}

impl<L: Lookup> Lookup for Sharing<L> {
    fn find<'a>(
        &'a self,
        namespace: &'a str,
        reference: &'a Reference,
    ) -> BoxFuture<'a, Option<Found>> {
        Box::pin(self.read(namespace, reference))
    }
}

/// A place among those who wait for a read, given up when it is dropped.
struct Place<'a> {
    waiting: &'a Mutex<Waiting>,
    wanted: (String, Reference),
    cell: Arc<OnceCell<Option<Found>>>,
}

impl<'a> Place<'a> {
    fn take(waiting: &'a Mutex<Waiting>, namespace: &str, reference: &Reference) -> Self {
        let wanted = (namespace.to_owned(), reference.clone());
        let cell = lock(waiting).entry(wanted.clone()).or_default().clone();
        Self {
            waiting,
            wanted,
            cell,
        }
    }

    /// From now on others need a read of their own.
    fn leave(&self) {
        let mut waiting = lock(self.waiting);
        let mine = waiting.get(&self.wanted);
        if mine.is_some_and(|cell| Arc::ptr_eq(cell, &self.cell)) {
            waiting.remove(&self.wanted);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // The map holds one, this place the other: nobody else waits.
        let last = 2;
        let mut waiting = lock(self.waiting);
        let mine = waiting.get(&self.wanted);
        if mine.is_some_and(|cell| Arc::ptr_eq(cell, &self.cell) && Arc::strong_count(cell) == last)
        {
            waiting.remove(&self.wanted);
        }
    }
}

/// Every change is a single insertion or removal: the map is whole even if a thread died with it.
fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use common::catalog::NetworkRow;

    use super::*;
    use futures::FutureExt as _;
    use futures::future::join_all;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;

    /// Answers once it is released, with what is there by then.
    #[derive(Default)]
    struct Slow {
        begun: AtomicUsize,
        release: Notify,
        exists: AtomicUsize,
    }

    impl Lookup for &Slow {
        fn find<'a>(
            &'a self,
            _namespace: &'a str,
            reference: &'a Reference,
        ) -> BoxFuture<'a, Option<Found>> {
            Box::pin(async move {
                self.begun.fetch_add(1, Ordering::Relaxed);
                let exists = self.exists.load(Ordering::Relaxed) > 0;
                self.release.notified().await;
                let Reference::Network(name) = reference else {
                    return None;
                };
                exists.then(|| Found::Network(name.clone(), NetworkRow::default()))
            })
        }
    }

    fn network(name: &str) -> Reference {
        Reference::Network(name.to_owned())
    }

    #[tokio::test]
    async fn a_few_at_a_time_and_one_for_all_who_wait_for_the_same() {
        let (slow, same) = (Slow::default(), network("same"));
        let sharing = Sharing::new(&slow, 2);
        let mut asked = Box::pin(join_all((0..20).map(|_| sharing.find("default", &same))));
        assert!(asked.as_mut().now_or_never().is_none());
        assert_eq!(slow.begun.load(Ordering::Relaxed), 2, "two at a time");
        assert_eq!(lock(&sharing.waiting).len(), 1);

        // Another namespace, another name: reads of their own.
        let other = network("other");
        let mut more = Box::pin(join_all([
            sharing.find("elsewhere", &same),
            sharing.find("default", &other),
        ]));
        assert!(more.as_mut().now_or_never().is_none());
        assert_eq!(lock(&sharing.waiting).len(), 3);

        let all = async { tokio::join!(asked, more) };
        let release = async {
            loop {
                slow.release.notify_waiters();
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            (asked, more) = all => assert_eq!(asked.len() + more.len(), 22),
            () = release => {}
        }
        assert_eq!(slow.begun.load(Ordering::Relaxed), 2 + 1 + 2);
        assert!(lock(&sharing.waiting).is_empty());
    }

    #[tokio::test]
    async fn what_was_made_after_a_read_began_is_found_by_the_next() {
        let (slow, prod) = (Slow::default(), network("prod"));
        let sharing = Sharing::new(&slow, 8);
        let mut before = sharing.find("default", &prod);
        assert!(before.as_mut().now_or_never().is_none());
        slow.exists.store(1, Ordering::Relaxed);
        let mut after = sharing.find("default", &prod);
        assert!(after.as_mut().now_or_never().is_none());
        slow.release.notify_waiters();
        assert!(before.await.is_none());
        assert!(after.await.is_some());
    }

    #[tokio::test]
    async fn who_gives_up_leaves_nothing_behind_and_takes_nothing_from_others() {
        let (slow, prod) = (Slow::default(), network("prod"));
        slow.exists.store(1, Ordering::Relaxed);
        let sharing = Sharing::new(&slow, 1);
        let mut reading = sharing.find("default", &prod);
        assert!(reading.as_mut().now_or_never().is_none());
        let (mut one, mut two) = (
            sharing.find("default", &prod),
            sharing.find("default", &prod),
        );
        assert!(one.as_mut().now_or_never().is_none());
        assert!(two.as_mut().now_or_never().is_none());
        // The first of those who wait is the one who would have read for both.
        drop(one);
        assert_eq!(lock(&sharing.waiting).len(), 1);
        drop(reading);
        assert!(two.as_mut().now_or_never().is_none());
        assert_eq!(slow.begun.load(Ordering::Relaxed), 2);
        slow.release.notify_waiters();
        assert!(two.await.is_some());

        let mut three = sharing.find("default", &prod);
        assert!(three.as_mut().now_or_never().is_none());
        let mut four = sharing.find("default", &prod);
        assert!(four.as_mut().now_or_never().is_none());
        drop(four);
        drop(three);
        assert!(lock(&sharing.waiting).is_empty());
    }
}
