//! Limits the number of connections: which one is admitted, and which one is closed for it.
//!
//! ```text
//!  full?  unused, oldest first ─▶ idle, longest first ─▶ none: the new connection is rejected
//! ```
//!
//! A client that opens connections and sends no request loses them to later ones, so it cannot lock
//! others out, however many it opens. A connection that was used before, as those of API servers are,
//! is kept until all unused ones are gone, and never closed while a request on it is being answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::activity::Activity;

/// Admits a limited number of connections at a time.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    max: usize,
    admitted: Mutex<Admitted>,
}

#[derive(Debug, Default)]
struct Admitted {
    next_id: u64,
    by_id: BTreeMap<u64, (Activity, CancellationToken)>,
}

/// The right of a connection to be open, until this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    id: u64,
    limiter: Arc<ConnectionLimiter>,
    evicted: CancellationToken,
}

impl ConnectionLimiter {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            admitted: Mutex::default(),
        })
    }

    /// Admits the connection with this activity; `true`: another connection was evicted for it.
    pub(super) fn admit(self: &Arc<Self>, activity: &Activity) -> Option<(ConnectionPermit, bool)> {
        let mut admitted = self.lock();
        let is_full = admitted.by_id.len() >= self.max;
        if is_full {
            let id = admitted.eviction_candidate()?;
            if let Some((_, evicted)) = admitted.by_id.remove(&id) {
                evicted.cancel();
            }
        }
        let id = admitted.next_id;
        admitted.next_id += 1;
        let evicted = CancellationToken::new();
        let connection = (activity.clone(), evicted.clone());
        admitted.by_id.insert(id, connection);
        let permit = ConnectionPermit {
            id,
            limiter: self.clone(),
            evicted,
        };
        Some((permit, is_full))
    }

    fn lock(&self) -> MutexGuard<'_, Admitted> {
        // A poisoned lock is ignored: every change of the map is a single insertion or removal.
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admitted {
    fn eviction_candidate(&self) -> Option<u64> {
        let candidates = self
            .by_id
            .iter()
            .filter(|(_, (activity, _))| !(activity.was_used() && activity.is_busy()));
        let chosen =
            candidates.min_by_key(|(_, (activity, _))| (activity.was_used(), activity.last_used()));
        chosen.map(|(id, _)| *id)
    }
}

impl ConnectionPermit {
    /// Waits until the connection is evicted in favour of another one.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.lock().by_id.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::advance;

    fn exchange(activity: &Activity) {
        activity.request_started();
        activity.response_ready();
    }

    #[tokio::test(start_paused = true)]
    async fn unused_connections_are_evicted_first_then_the_longest_idle_and_busy_ones_never() {
        let limiter = ConnectionLimiter::new(3);
        let activities: [Activity; 3] = Default::default();
        let mut permits = Vec::new();
        for activity in &activities {
            let (permit, has_evicted) = limiter.admit(activity).unwrap();
            assert!(!has_evicted);
            permits.push(permit);
            advance(Duration::from_secs(1)).await;
        }
        let [early, late, unused] = &activities;
        exchange(late);
        advance(Duration::from_secs(1)).await;
        exchange(early);
        let evicted = |permits: &[ConnectionPermit]| -> Vec<bool> {
            let evicted = permits.iter().map(|it| it.evicted.is_cancelled());
            evicted.collect()
        };

        // The youngest of the three is evicted, because it was never used.
        assert!(!unused.was_used());
        let used = Activity::default();
        let (permit, has_evicted) = limiter.admit(&used).unwrap();
        assert!(has_evicted);
        permits.push(permit);
        assert_eq!(evicted(&permits), [false, false, true, false]);

        // Then the one whose last response is the oldest, not the oldest connection.
        exchange(&used);
        let (permit, _) = limiter.admit(&used).unwrap();
        permits.push(permit);
        assert_eq!(evicted(&permits), [false, true, true, false, false]);

        for activity in [early, &used] {
            activity.request_started();
        }
        assert!(limiter.admit(&Activity::default()).is_none());
        drop(permits.remove(0));
        let admitted = limiter.admit(&Activity::default());
        assert!(admitted.is_some_and(|(_, has_evicted)| !has_evicted));
    }
}
