//! Limits the number of connections, of all clients and of each address: which one is admitted, and which one is closed
//! for it.
//!
//! ```text
//!  the address has its share?  one of its own, in the order below
//!  full?  unused, oldest first ─▶ idle, longest first ─▶ none: the new connection is rejected
//! ```
//!
//! A client that opens connections and sends no request loses them to later ones, so it cannot lock
//! others out, however many it opens. A connection that was used before, as those of API servers are,
//! is kept until all unused ones are gone, and never closed while a request on it is being answered
//! (`at_the_limit_an_unused_connection_is_closed_and_a_busy_one_never`,
//! `ten_thousand_idle_connections_do_not_block_other_clients`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::activity::Activity;

/// Admits a limited number of connections at a time.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    max: usize,
    max_of_peer: usize,
    admitted: Mutex<Admitted>,
}

#[derive(Debug, Default)]
struct Admitted {
    next_id: u64,
    by_id: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    peer: IpAddr,
    activity: Activity,
    evicted: CancellationToken,
}

/// The right of a connection to be open, until this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    id: u64,
    limiter: Arc<ConnectionLimiter>,
    evicted: CancellationToken,
}

impl ConnectionLimiter {
    /// Admits `max` connections, and of one address `max_of_peer`.
    pub(super) fn new(max: usize, max_of_peer: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            max_of_peer,
            admitted: Mutex::default(),
        })
    }

    /// Admits the connection with this address and activity; `true`: another connection was evicted for it.
    pub(super) fn admit(
        self: &Arc<Self>,
        peer: IpAddr,
        activity: &Activity,
    ) -> Option<(ConnectionPermit, bool)> {
        let mut admitted = self.lock();
        let has_share = admitted.of_peer(peer).count() >= self.max_of_peer;
        let is_full = admitted.by_id.len() >= self.max;
        if has_share || is_full {
            let id = if has_share {
                eviction_candidate(admitted.of_peer(peer))?
            } else {
                eviction_candidate(admitted.by_id.iter())?
            };
            if let Some(connection) = admitted.by_id.remove(&id) {
                connection.evicted.cancel();
            }
        }
        let id = admitted.next_id;
        admitted.next_id += 1;
        let evicted = CancellationToken::new();
        let connection = Connection {
            peer,
            activity: activity.clone(),
            evicted: evicted.clone(),
        };
        admitted.by_id.insert(id, connection);
        let permit = ConnectionPermit {
            id,
            limiter: self.clone(),
            evicted,
        };
        Some((permit, has_share || is_full))
    }

    fn lock(&self) -> MutexGuard<'_, Admitted> {
        // A poisoned lock is ignored: every change of the map is a single insertion or removal.
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admitted {
    fn of_peer(&self, peer: IpAddr) -> impl Iterator<Item = (&u64, &Connection)> {
        let connections = self.by_id.iter();
        connections.filter(move |(_, connection)| connection.peer == peer)
    }
}

fn eviction_candidate<'a>(
    connections: impl Iterator<Item = (&'a u64, &'a Connection)>,
) -> Option<u64> {
    let activities = connections.map(|(id, connection)| (id, &connection.activity));
    let candidates = activities.filter(|(_, it)| !(it.was_used() && it.is_busy()));
    let chosen = candidates.min_by_key(|(_, it)| (it.was_used(), it.last_used()));
    chosen.map(|(id, _)| *id)
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

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn exchange(activity: &Activity) {
        activity.request_started();
        activity.response_ready();
    }

    #[tokio::test(start_paused = true)]
    async fn unused_connections_are_evicted_first_then_the_longest_idle_and_busy_ones_never() {
        let limiter = ConnectionLimiter::new(3, 3);
        let activities: [Activity; 3] = Default::default();
        let mut permits = Vec::new();
        for activity in &activities {
            let (permit, has_evicted) = limiter.admit(PEER, activity).unwrap();
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
        let (permit, has_evicted) = limiter.admit(PEER, &used).unwrap();
        assert!(has_evicted);
        permits.push(permit);
        assert_eq!(evicted(&permits), [false, false, true, false]);

        // Then the one whose last response is the oldest, not the oldest connection.
        exchange(&used);
        let (permit, _) = limiter.admit(PEER, &used).unwrap();
        permits.push(permit);
        assert_eq!(evicted(&permits), [false, true, true, false, false]);

        for activity in [early, &used] {
            activity.request_started();
        }
        assert!(limiter.admit(PEER, &Activity::default()).is_none());
        drop(permits.remove(0));
        let admitted = limiter.admit(PEER, &Activity::default());
        assert!(admitted.is_some_and(|(_, has_evicted)| !has_evicted));
    }

    #[test]
    fn an_address_with_its_share_evicts_its_own_or_is_rejected() {
        let other = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
        let limiter = ConnectionLimiter::new(3, 2);
        let activities: [Activity; 2] = Default::default();
        let mut permits = Vec::new();
        for activity in &activities {
            permits.push(limiter.admit(PEER, activity).unwrap().0);
        }
        let (third, has_evicted) = limiter.admit(PEER, &activities[1]).unwrap();
        assert!(has_evicted && permits[0].evicted.is_cancelled());
        for activity in &activities {
            exchange(activity);
            activity.request_started();
        }
        // All of them are busy, and a slot is free.
        assert!(limiter.admit(PEER, &Activity::default()).is_none());
        let (_others, has_evicted) = limiter.admit(other, &Activity::default()).unwrap();
        assert!(!has_evicted && !third.evicted.is_cancelled());
    }
}
