//! What is remembered of a Machine between two passes: what was written and not yet seen in the caches, the
//! failures in a row, and whether the last pass found nothing to do.
//!
//! All of it can be lost: a restart costs a repeated write that changes nothing.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::writes::Written;

/// The pause after the first failure, and after each further one twice that.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// A person who repairs something waits no longer than this.
const BACKOFF_MAX: Duration = Duration::from_mins(2);
/// How long the watches may take to bring back what was written. After that, somebody else has removed it.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(5);
/// So many failures in a row are reported in the status even when the next attempt may succeed.
const FAILURES_REPORTED: u32 = 3;
/// Conflicts with the caches that go on for this long count as failures. A cache catches up in milliseconds.
const CONFLICTS_LIMIT: Duration = Duration::from_mins(1);
/// A settled Machine is observed again after this, even if no event came. No event is known to get lost; this bounds
/// the cost if one does.
const SETTLED_LIMIT: Duration = Duration::from_mins(10);

/// What is remembered, by uid of the Machine.
#[derive(Debug, Default)]
pub struct Expectations(Mutex<HashMap<Box<str>, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    /// Objects that the caches have not seen yet in the version that was written.
    written: Vec<Written>,
    /// When the last of them was written.
    written_at: Option<Instant>,
    /// Failures since the last success.
    failures: u32,
    /// When the first of the conflicts in a row happened.
    conflicts_since: Option<Instant>,
    /// When a pass last found nothing to do.
    settled_at: Option<Instant>,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.written.is_empty()
            && self.written_at.is_none()
            && self.failures == 0
            && self.conflicts_since.is_none()
            && self.settled_at.is_none()
    }
}

impl Expectations {
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Entry>> {
        // An entry is whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, uid: &str, change: impl FnOnce(&mut Entry) -> T) -> T {
        let mut entries = self.lock();
        let entry = entries.entry(uid.into()).or_default();
        let result = change(entry);
        if entry.is_empty() {
            entries.remove(uid);
        }
        result
    }

    /// How long to wait, at most, until the caches have seen what was written; `None`: they have, or it took too
    /// long.
    pub fn pending(&self, uid: &str, is_seen: impl Fn(&Written) -> bool) -> Option<Duration> {
        self.change(uid, |entry| {
            let left = ARRIVAL_LIMIT.checked_sub(entry.written_at?.elapsed());
            if left.is_some() && !entry.written.iter().all(is_seen) {
                return left;
            }
            entry.written = Vec::new();
            entry.written_at = None;
            None
        })
    }

    /// Remembers what was written.
    pub fn wrote(&self, uid: &str, written: Written) {
        self.change(uid, |entry| {
            entry.written.push(written);
            entry.written_at = Some(Instant::now());
            entry.settled_at = None;
        });
    }

    /// Counts a failure; returns the pause after it.
    pub fn failed(&self, uid: &str) -> Duration {
        self.change(uid, |entry| {
            entry.failures = entry.failures.saturating_add(1);
            entry.settled_at = None;
            let pause = BACKOFF_MIN.saturating_mul(1 << entry.failures.min(16).saturating_sub(1));
            jittered(pause.min(BACKOFF_MAX))
        })
    }

    /// Whether the next failure is to be reported in the status.
    pub fn is_failing(&self, uid: &str) -> bool {
        let entries = self.lock();
        entries
            .get(uid)
            .is_some_and(|entry| entry.failures + 1 >= FAILURES_REPORTED)
    }

    /// The caches turned out to be behind. Returns whether that has gone on for so long that it is a failure.
    pub fn conflicted(&self, uid: &str) -> bool {
        self.change(uid, |entry| {
            entry.settled_at = None;
            let since = entry.conflicts_since.get_or_insert_with(Instant::now);
            since.elapsed() >= CONFLICTS_LIMIT
        })
    }

    /// A pass succeeded. `settled`: it found nothing to do, and would not until an event comes.
    pub fn succeeded(&self, uid: &str, settled: bool) {
        self.change(uid, |entry| {
            entry.failures = 0;
            entry.conflicts_since = None;
            entry.settled_at = settled.then(Instant::now);
        });
    }

    /// Whether the last pass found nothing to do, not long ago.
    pub fn is_settled(&self, uid: &str) -> bool {
        let entries = self.lock();
        let settled = entries.get(uid).and_then(|entry| entry.settled_at);
        settled.is_some_and(|at| at.elapsed() < SETTLED_LIMIT)
    }

    /// Forgets Machines that are gone.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| exists(uid));
    }
}

/// Up to a tenth longer, so that Machines that began together do not come back together.
pub fn jittered(pause: Duration) -> Duration {
    // Every RandomState hashes with other keys.
    let random = RandomState::new().build_hasher().finish();
    let share = u32::try_from(random % 1000).unwrap_or_default();
    pause + pause / 10_000 * share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Written {
        Written {
            kind: "PersistentVolumeClaim".into(),
            name: "web-root".into(),
            version: "7".into(),
        }
    }

    #[test]
    fn pauses_grow_to_a_limit_and_start_over_after_a_success() {
        let expectations = Expectations::default();
        let pauses: Vec<_> = (0..20).map(|_| expectations.failed("u")).collect();
        assert!(pauses[0] >= BACKOFF_MIN && pauses[0] < 2 * BACKOFF_MIN);
        assert!(pauses.iter().all(|pause| *pause <= BACKOFF_MAX * 11 / 10));
        assert!(pauses[19] >= BACKOFF_MAX);
        expectations.succeeded("u", false);
        assert!(expectations.failed("u") < 2 * BACKOFF_MIN);
    }

    #[test]
    fn the_third_failure_in_a_row_is_reported() {
        let expectations = Expectations::default();
        let reported = [0; 3].map(|_| {
            let reported = expectations.is_failing("u");
            expectations.failed("u");
            reported
        });
        assert_eq!(reported, [false, false, true]);
    }

    #[test]
    fn what_was_written_is_waited_for_once() {
        let expectations = Expectations::default();
        assert_eq!(expectations.pending("u", |_| false), None);
        expectations.wrote("u", claim());
        assert!(expectations.pending("u", |_| false).is_some());
        assert_eq!(expectations.pending("u", |_| true), None);
        assert_eq!(expectations.pending("u", |_| false), None);
        assert!(expectations.lock().is_empty());
    }

    #[test]
    fn a_machine_is_settled_until_something_is_written_or_fails() {
        let expectations = Expectations::default();
        assert!(!expectations.is_settled("u"));
        let disturbances: [fn(&Expectations); 4] = [
            |it| it.wrote("u", claim()),
            |it| {
                it.failed("u");
            },
            |it| {
                it.conflicted("u");
            },
            |it| it.succeeded("u", false),
        ];
        for disturb in disturbances {
            expectations.succeeded("u", true);
            assert!(expectations.is_settled("u"));
            disturb(&expectations);
            assert!(!expectations.is_settled("u"));
        }
    }

    #[test]
    fn conflicts_count_as_failures_only_when_they_go_on() {
        let expectations = Expectations::default();
        assert!(!expectations.conflicted("u"));
        let begin = Instant::now().checked_sub(CONFLICTS_LIMIT).unwrap();
        expectations.change("u", |entry| entry.conflicts_since = Some(begin));
        assert!(expectations.conflicted("u"));
        expectations.succeeded("u", false);
        assert!(!expectations.conflicted("u"));
    }
}
