//! Expectations and backoff: what the controller keeps of a Machine between two passes.
//!
//! - objects that were written and that the caches do not show yet,
//! - failures in a row, for the backoff.
//!
//! All of it may be lost: a restart costs a repeated write that changes nothing.
//!
//! Reason: a cache shows a write later, and a pass that does not wait for it would plan the same write again
//! (`a_pass_waits_for_a_written_object_until_the_cache_shows_it` here).

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::random::random;
use crate::writes::Written;

/// Pause after the first failure. Each further failure doubles it. A pass takes milliseconds, so a second keeps what fails
/// for one Machine from delaying others, and a user hardly notices it.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest pause: a person who repairs the cause waits no longer than this.
const BACKOFF_MAX: Duration = Duration::from_mins(2);
/// How long a watch may take to report an object that was written. After that the object counts as deleted.
const WATCH_DELAY_MAX: Duration = Duration::from_secs(5);
/// The third failure in a row is reported in the status even if the next attempt may succeed.
const FAILURES_REPORTED: u32 = 3;
/// Conflicts that last this long count as failures. A cache catches up in milliseconds, so something else is wrong.
const CONFLICTS_LIMIT: Duration = Duration::from_mins(1);

/// Entries by uid of the Machine.
#[derive(Debug, Default)]
pub struct Expectations(Mutex<HashMap<Box<str>, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    /// Objects that were written and may not be in the caches yet.
    written: Vec<Written>,
    /// When the last of them was written.
    written_at: Option<Instant>,
    /// Failures since the last success.
    failures: u32,
    /// When the first of the conflicts in a row happened.
    conflicts_since: Option<Instant>,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.written.is_empty()
            && self.written_at.is_none()
            && self.failures == 0
            && self.conflicts_since.is_none()
    }
}

impl Expectations {
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Entry>> {
        // No statement under this lock leaves an entry inconsistent, so a poisoned lock is safe to use.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, uid: &str, change: impl FnOnce(&mut Entry) -> T) -> T {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(uid) {
            let result = change(entry);
            if entry.is_empty() {
                entries.remove(uid);
            }
            return result;
        }
        // Most Machines have no entry: one is allocated only to keep something in it.
        let mut entry = Entry::default();
        let result = change(&mut entry);
        if !entry.is_empty() {
            entries.insert(uid.into(), entry);
        }
        result
    }

    /// Longest time to wait until the caches show every object that was written; `None`: they do (`is_seen`), or the
    /// wait has taken 5 s.
    pub fn pending(&self, uid: &str, is_seen: impl Fn(&Written) -> bool) -> Option<Duration> {
        self.change(uid, |entry| {
            let left = WATCH_DELAY_MAX.checked_sub(entry.written_at?.elapsed());
            if left.is_some() && !entry.written.iter().all(is_seen) {
                return left;
            }
            entry.written = Vec::new();
            entry.written_at = None;
            None
        })
    }

    /// Records an object that was written.
    pub fn wrote(&self, uid: &str, written: Written) {
        self.change(uid, |entry| {
            entry.written.push(written);
            entry.written_at = Some(Instant::now());
        });
    }

    /// Counts a failure; returns the pause before the next pass.
    pub fn failed(&self, uid: &str) -> Duration {
        self.change(uid, |entry| {
            entry.failures = entry.failures.saturating_add(1);
            let pause = BACKOFF_MIN.saturating_mul(1 << entry.failures.min(16).saturating_sub(1));
            jittered(pause.min(BACKOFF_MAX))
        })
    }

    /// Whether the next failure is at least the third in a row, and so is reported in the status.
    pub fn is_failing(&self, uid: &str) -> bool {
        let entries = self.lock();
        entries
            .get(uid)
            .is_some_and(|entry| entry.failures + 1 >= FAILURES_REPORTED)
    }

    /// Counts a conflict with the caches. Returns whether conflicts have lasted so long that they count as a failure.
    pub fn conflicted(&self, uid: &str) -> bool {
        self.change(uid, |entry| {
            let since = entry.conflicts_since.get_or_insert_with(Instant::now);
            since.elapsed() >= CONFLICTS_LIMIT
        })
    }

    /// A pass succeeded.
    pub fn succeeded(&self, uid: &str) {
        self.change(uid, |entry| {
            entry.failures = 0;
            entry.conflicts_since = None;
        });
    }

    /// Drops the entries of Machines that do not exist any more. `existing` returns those of the uids that exist.
    pub fn retain(&self, existing: impl FnOnce(&HashSet<&str>) -> HashSet<Box<str>>) {
        let mut entries = self.lock();
        if entries.is_empty() {
            return;
        }
        let existing = existing(&entries.keys().map(|uid| &**uid).collect());
        entries.retain(|uid, _| existing.contains(uid));
    }
}

/// The pause, made up to a tenth longer at random: Machines that were created together spread over time.
pub fn jittered(pause: Duration) -> Duration {
    let share = u32::try_from(random() % 1000).unwrap_or_default();
    pause + pause / 10_000 * share
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn claim() -> Written {
        Written {
            kind: "PersistentVolumeClaim".into(),
            name: "web-root".into(),
            version: "7".into(),
        }
    }

    #[test]
    fn the_backoff_grows_to_its_limit_and_starts_over_after_a_success() {
        let expectations = Expectations::default();
        let pauses: Vec<_> = (0..20).map(|_| expectations.failed("u")).collect();
        assert!(pauses[0] >= BACKOFF_MIN && pauses[0] < 2 * BACKOFF_MIN);
        assert!(pauses.iter().all(|pause| *pause <= BACKOFF_MAX * 11 / 10));
        assert!(pauses[19] >= BACKOFF_MAX);
        expectations.succeeded("u");
        assert!(expectations.failed("u") < 2 * BACKOFF_MIN);
    }

    #[test]
    fn only_the_third_failure_in_a_row_is_reported() {
        let expectations = Expectations::default();
        let reported = [0; 3].map(|_| {
            let reported = expectations.is_failing("u");
            expectations.failed("u");
            reported
        });
        assert_eq!(reported, [false, false, true]);
    }

    #[test]
    fn a_pass_waits_for_a_written_object_until_the_cache_shows_it() {
        let expectations = Expectations::default();
        assert_eq!(expectations.pending("u", |_| false), None);
        expectations.wrote("u", claim());
        assert!(expectations.pending("u", |_| false).is_some());
        assert_eq!(expectations.pending("u", |_| true), None);
        assert_eq!(expectations.pending("u", |_| false), None);
        assert!(expectations.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn conflicts_count_as_a_failure_after_a_minute() {
        let expectations = Expectations::default();
        assert!(!expectations.conflicted("u"));
        advance(CONFLICTS_LIMIT / 2).await;
        assert!(!expectations.conflicted("u"));
        advance(CONFLICTS_LIMIT / 2).await;
        assert!(expectations.conflicted("u"));
        expectations.succeeded("u");
        assert!(!expectations.conflicted("u"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_the_cache_never_shows_is_waited_for_only_so_long() {
        let expectations = Expectations::default();
        expectations.wrote("u", claim());
        advance(WATCH_DELAY_MAX).await;
        assert_eq!(expectations.pending("u", |_| false), Some(Duration::ZERO));
        advance(Duration::from_millis(1)).await;
        assert_eq!(expectations.pending("u", |_| false), None);
    }
}
