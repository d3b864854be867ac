//! Operations that fail repeatedly: growing delays between attempts, and one log line per failure
//! instead of one per attempt.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use tokio::time::Instant;

use super::tasks::chain;

/// Delay after the first failure; it doubles with each further one.
const DELAY_MIN: Duration = Duration::from_millis(250);
/// Longest delay. A CRD or an API server that is available again is noticed within a second, and one
/// request per second is no load.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Tracks whether an operation fails, since when, and with which error.
#[derive(Debug, Default)]
pub struct Outage(Option<Failing>);

#[derive(Debug)]
struct Failing {
    /// The last error with its sources.
    error: String,
    since: Instant,
}

impl Outage {
    /// Records a failure. Returns whether its error differs from the last one and should be logged.
    pub fn failed(&mut self, error: &dyn std::error::Error) -> bool {
        let error = chain(error);
        let before = self.0.take();
        let is_new = before.as_ref().is_none_or(|before| before.error != error);
        let since = before.map_or_else(Instant::now, |before| before.since);
        self.0 = Some(Failing { error, since });
        is_new
    }

    /// Records a success.
    pub fn succeeded(&mut self) {
        self.0 = None;
    }

    /// Time since the first failure; zero after a success.
    pub fn duration(&self) -> Duration {
        let since = self.0.as_ref().map(|failing| failing.since);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Growing delays between attempts.
///
/// [`reset`](Backoff::reset) does nothing: kube calls it for the event with which a watch announces a
/// list, before the list is known to work. Only [`QUIET_TIME`] without a failure resets the delay.
#[derive(Debug)]
pub struct RetryDelay {
    next: Duration,
    last: Option<Instant>,
}

/// After this time without a failure the next delay is the shortest again.
const QUIET_TIME: Duration = Duration::from_mins(1);

impl Default for RetryDelay {
    fn default() -> Self {
        Self {
            next: DELAY_MIN,
            last: None,
        }
    }
}

impl RetryDelay {
    /// The delay after one more failure.
    pub fn after_failure(&mut self) -> Duration {
        let now = Instant::now();
        let quiet = self.last.replace(now).map(|last| now - last);
        if quiet.is_some_and(|quiet| quiet > QUIET_TIME) {
            self.next = DELAY_MIN;
        }
        let delay = self.next;
        self.next = (delay * 2).min(DELAY_MAX);
        delay
    }
}

impl Iterator for RetryDelay {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.after_failure())
    }
}

impl Backoff for RetryDelay {
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[test]
    fn the_same_error_is_new_once_until_the_next_success() {
        let mut outage = Outage::default();
        let refused = std::io::Error::other("refused");
        let forbidden = std::io::Error::other("forbidden");
        assert!(outage.failed(&refused));
        assert!(!outage.failed(&refused));
        assert!(outage.failed(&forbidden));
        outage.succeeded();
        assert!(outage.failed(&forbidden));
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_lasts_from_the_first_failure_to_the_next_success() {
        let mut outage = Outage::default();
        advance(Duration::from_secs(9)).await;
        assert_eq!(outage.duration(), Duration::ZERO);
        for error in ["refused", "forbidden"] {
            outage.failed(&std::io::Error::other(error));
            advance(Duration::from_secs(2)).await;
        }
        assert_eq!(outage.duration(), Duration::from_secs(4));
        outage.succeeded();
        assert_eq!(outage.duration(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn delays_double_up_to_the_maximum_and_start_again_after_a_quiet_time() {
        let mut delay = RetryDelay::default();
        let mut delays = Vec::new();
        for _ in 0..5 {
            let next = delay.next().unwrap();
            delays.push(next.as_millis());
            // kube does this when a watch announces a list.
            delay.reset();
            advance(next).await;
        }
        assert_eq!(delays, [250, 500, 1_000, 1_000, 1_000]);
        advance(QUIET_TIME + Duration::from_secs(1)).await;
        assert_eq!(delay.next(), Some(DELAY_MIN));
    }
}
