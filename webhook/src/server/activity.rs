//! What a connection is doing, shared by the limiter, the timeouts and the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Where a connection is in its exchange of requests and responses. Clones are the same connection.
#[derive(Debug, Clone)]
pub(super) struct Activity(Arc<Exchange>);

#[derive(Debug)]
struct Exchange {
    /// Odd while a request is being answered. A changed value shows that there was a request since,
    /// even if the connection is idle again.
    count: AtomicU32,
    opened: Instant,
    /// Time of the last response, in milliseconds after `opened`.
    responded: AtomicU64,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(Exchange {
            count: AtomicU32::default(),
            opened: Instant::now(),
            responded: AtomicU64::default(),
        }))
    }
}

impl Activity {
    /// The head of a request is complete; its response is being made.
    pub(super) fn request_started(&self) {
        self.0.count.fetch_or(1, Ordering::Relaxed);
    }

    /// The response is made.
    pub(super) fn response_ready(&self) {
        let after = self.0.opened.elapsed().as_millis();
        let after = u64::try_from(after).unwrap_or(u64::MAX);
        self.0.responded.store(after, Ordering::Relaxed);
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there has never been a request.
    pub(super) fn is_unused(&self) -> bool {
        self.count() == 0
    }

    /// Whether a request is being answered.
    pub(super) fn is_busy(&self) -> bool {
        self.count() & 1 == 1
    }

    /// Whether there has been a response.
    pub(super) fn was_used(&self) -> bool {
        self.count() >= 2
    }

    /// Time of the last response, or of the opening if there was none.
    pub(super) fn last_used(&self) -> Instant {
        let responded = self.0.responded.load(Ordering::Relaxed);
        self.0.opened + Duration::from_millis(responded)
    }

    /// Changes at the start of each request and with each response.
    pub(super) fn count(&self) -> u32 {
        self.0.count.load(Ordering::Relaxed)
    }
}
