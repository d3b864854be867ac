//! What is remembered of a Machine between two passes: what was written last, and what failed.
//!
//! All of it can be lost: a restart costs a repeated write that changes nothing.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::kubevirt::observe::Written;

/// The pause after the first failure, and after each further one twice that.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// A person who mends something waits no longer than this.
const BACKOFF_MAX: Duration = Duration::from_mins(2);
/// How long the watches may take to bring back what was written. Longer, and something else has
/// removed it in between.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(5);
/// So many failures in a row are told in the status even when the next attempt may succeed.
const FAILURES_TOLD: u32 = 3;

/// What is remembered, by uid of the Machine.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<HashMap<String, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    written: Vec<Written>,
    since: Option<Instant>,
    failures: u32,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // An entry is whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long to wait, at most, for what was written last; `None` when there is nothing to wait
    /// for.
    pub(crate) fn awaited(
        &self,
        uid: &str,
        has_arrived: impl Fn(&[Written]) -> bool,
    ) -> Option<Duration> {
        let mut entries = self.lock();
        let entry = entries.get_mut(uid)?;
        let left = ARRIVAL_LIMIT.checked_sub(entry.since?.elapsed());
        if left.is_some() && !has_arrived(&entry.written) {
            return left;
        }
        entry.written.clear();
        entry.since = None;
        if entry.failures == 0 {
            entries.remove(uid);
        }
        None
    }

    /// Remembers what was written.
    pub(crate) fn wrote(&self, uid: &str, written: Vec<Written>) {
        if !written.is_empty() {
            let mut entries = self.lock();
            let entry = entries.entry(uid.to_owned()).or_default();
            entry.written.extend(written);
            entry.since = Some(Instant::now());
        }
    }

    /// Counts a failure; returns the pause after it.
    pub(crate) fn failed(&self, uid: &str) -> Duration {
        let mut entries = self.lock();
        let entry = entries.entry(uid.to_owned()).or_default();
        entry.failures = entry.failures.saturating_add(1);
        let pause = BACKOFF_MIN.saturating_mul(1 << entry.failures.min(16).saturating_sub(1));
        jittered(pause.min(BACKOFF_MAX))
    }

    /// Whether the next failure is worth telling.
    pub(crate) fn is_failing(&self, uid: &str) -> bool {
        let entries = self.lock();
        entries
            .get(uid)
            .is_some_and(|entry| entry.failures + 1 >= FAILURES_TOLD)
    }

    /// A pass went well.
    pub(crate) fn succeeded(&self, uid: &str) {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(uid) {
            entry.failures = 0;
            if entry.since.is_none() {
                entries.remove(uid);
            }
        }
    }

    /// Forgets Machines that are gone.
    pub(crate) fn keep(&self, lives: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, _| lives(uid));
    }
}

/// Up to a tenth longer, so that Machines that began together do not come back together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    // Every RandomState hashes with other keys.
    let random = RandomState::new().build_hasher().finish();
    let share = u32::try_from(random % 1000).unwrap_or_default();
    pause + pause / 10_000 * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_start_over_after_a_success() {
        let memory = Memory::default();
        let pauses: Vec<_> = (0..20).map(|_| memory.failed("u")).collect();
        assert!(pauses[0] >= BACKOFF_MIN && pauses[0] < 2 * BACKOFF_MIN);
        assert!(pauses.iter().all(|pause| *pause <= BACKOFF_MAX * 11 / 10));
        assert!(pauses[19] >= BACKOFF_MAX);
        memory.succeeded("u");
        assert!(memory.failed("u") < 2 * BACKOFF_MIN);
    }

    #[test]
    fn the_third_failure_in_a_row_is_told() {
        let memory = Memory::default();
        let told: Vec<_> = (0..3)
            .map(|_| {
                let told = memory.is_failing("u");
                memory.failed("u");
                told
            })
            .collect();
        assert_eq!(told, [false, false, true]);
    }

    #[test]
    fn what_was_written_is_awaited_once() {
        let memory = Memory::default();
        assert_eq!(memory.awaited("u", |_| false), None);
        let written = Written::Claim {
            name: "web-root".into(),
            version: "7".into(),
        };
        memory.wrote("u", vec![written]);
        assert!(memory.awaited("u", |_| false).is_some());
        assert_eq!(memory.awaited("u", |_| true), None);
        assert_eq!(memory.awaited("u", |_| false), None);
        assert!(
            memory.lock().is_empty(),
            "nothing is kept of a Machine at rest"
        );
    }
}
