//! How much time the passes spend on questions to the agents of guests.
//!
//! Reason: an agent that does not answer occupies a pass and a connection of its host for seconds, and a guest decides
//! whether its agent answers (`a_guest_whose_agent_never_answers_takes_a_hundredth_of_the_time`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// A question may be asked of a guest again after this many times the time that it took: a hundred guests whose agents never
/// answer occupy one of the passes that run at a time.
const PAUSE_FACTOR: u32 = 100;

/// What a guest may use of its pauses in advance: three or four questions without an answer, as while it boots or its file
/// systems are frozen.
const BURST: Duration = Duration::from_secs(1000);

/// The pauses of the guests of one host.
#[derive(Debug, Default)]
pub(crate) struct AgentTime {
    /// When the pauses of all questions to a guest are over.
    over: Mutex<BTreeMap<Uuid, Instant>>,
}

impl AgentTime {
    /// Whether the agent of a guest may be asked now.
    pub(crate) fn permits(&self, domain: Uuid) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let over = over.get(&domain).copied();
        over.is_none_or(|over| over.saturating_duration_since(Instant::now()) <= BURST)
    }

    /// Adds a question that took so long, answered or not.
    pub(crate) fn spend(&self, domain: Uuid, took: Duration) {
        let now = Instant::now();
        let mut all = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, over| *over > now);
        let over = all.entry(domain).or_insert(now);
        *over += took.saturating_mul(PAUSE_FACTOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Uuid = Uuid::from_u128(1);
    const SILENT: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn a_guest_whose_agent_never_answers_takes_a_hundredth_of_the_time() {
        let time = AgentTime::default();
        let mut spent = Duration::ZERO;
        let begin = Instant::now();
        // The agent sometimes answers at once in between, as it likes.
        for pass in 0..2_880 {
            if time.permits(GUEST) {
                let took = if pass % 3 == 0 {
                    Duration::ZERO
                } else {
                    SILENT
                };
                tokio::time::advance(took).await;
                time.spend(GUEST, took);
                spent += took;
            }
            tokio::time::advance(Duration::from_secs(30)).await;
        }
        let share = spent.as_secs_f64() / begin.elapsed().as_secs_f64();
        assert!((0.005..0.011).contains(&share), "{share}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_answers_is_asked_in_each_pass_and_a_short_silence_costs_nothing() {
        let time = AgentTime::default();
        for took in [SILENT, SILENT, SILENT] {
            assert!(time.permits(GUEST));
            time.spend(GUEST, took);
        }
        for _ in 0..100 {
            assert!(time.permits(GUEST));
            time.spend(GUEST, Duration::from_millis(20));
            tokio::time::advance(Duration::from_secs(30)).await;
        }
        let other = Uuid::from_u128(2);
        time.spend(GUEST, Duration::from_mins(1));
        assert!(!time.permits(GUEST) && time.permits(other));
    }
}
