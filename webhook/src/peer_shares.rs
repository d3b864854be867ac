//! What the clients of one address may use together of the memory and the permits for large bodies, so that others get
//! theirs (`one_address_cannot_use_the_memory_of_all_large_bodies`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

/// Most bytes of the large bodies of one address at a time: three of the largest bodies, and less than half of what
/// all large bodies may use.
const BYTES_MAX: usize = 21 * 1024 * 1024;

/// The share of one address.
#[derive(Debug)]
pub(crate) struct PeerShare {
    /// One permit for each free byte.
    pub(crate) bytes: Arc<Semaphore>,
    /// One permit: at most one large body of an address waits for the permit that all addresses share.
    pub(crate) queue: Arc<Semaphore>,
}

/// The shares of all addresses with a body. Clones are the same shares.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerShares(Arc<Mutex<HashMap<IpAddr, Weak<PeerShare>>>>);

impl PeerShares {
    /// The share of this address. It is forgotten when nothing of it is in use.
    pub(crate) fn of(&self, peer: IpAddr) -> Arc<PeerShare> {
        // A poisoned lock is ignored: every change of the map is a single insertion or removal.
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&peer).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(PeerShare {
            bytes: Arc::new(Semaphore::new(BYTES_MAX)),
            queue: Arc::new(Semaphore::new(1)),
        });
        shares.insert(peer, Arc::downgrade(&share));
        share
    }
}
