//! Readiness of a guest that the controller itself probes: from the attempts so far to a verdict, as the kubelet does for a
//! pod.
//!
//! ```text
//! attempts ─▶ the last results in a row ─ threshold reached? ─▶ ready, not ready
//! ```
//! Pure: times are durations since the guest was first seen.

use std::time::Duration;

use common::api::machine::Probe;

/// An agent that does not answer is asked again after so many times the time that it took, once its guest is not ready: all
/// agents of a host share a connection, of which it then uses a tenth at most.
const AGENT_PAUSE_FACTOR: u32 = 10;

/// When and how often a guest is probed, and how many results in a row decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time from the start of the guest to the first attempt.
    pub initial_delay: Duration,
    /// Time from the beginning of an attempt to that of the next one.
    pub period: Duration,
    /// Whole seconds after which an attempt without an answer has failed.
    pub timeout: Duration,
    /// Successes in a row after which the guest is ready.
    pub success_threshold: u32,
    /// Failures in a row after which a guest that was ready is not ready any more.
    pub failure_threshold: u32,
}

impl Timing {
    /// The timing of a probe, with its defaults.
    pub fn of(probe: &Probe) -> Self {
        let Probe {
            failure_threshold,
            initial_delay_seconds,
            period_seconds,
            success_threshold,
            timeout_seconds,
            ..
        } = probe.clone().with_defaults();
        let number = |value: Option<i64>, least: u32| {
            let value = value.and_then(|value| u32::try_from(value).ok());
            value.unwrap_or(least).max(least)
        };
        let seconds = |value, least| Duration::from_secs(number(value, least).into());
        Self {
            initial_delay: seconds(initial_delay_seconds, 0),
            period: seconds(period_seconds, 1),
            timeout: seconds(timeout_seconds, 1),
            success_threshold: number(success_threshold, 1),
            failure_threshold: number(failure_threshold, 1),
        }
    }
}

/// What the attempts to probe a guest have shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempts {
    timing: Timing,
    is_ready: bool,
    /// Result of the last attempts, and how many in a row had it.
    last: Option<(bool, u32)>,
    /// When the next attempt is due.
    due: Duration,
}

impl Attempts {
    /// Of a guest that was not probed yet: it is not ready.
    pub fn of_started(timing: Timing) -> Self {
        Self {
            timing,
            is_ready: false,
            last: None,
            due: timing.initial_delay,
        }
    }

    /// Of a guest that was ready before this process began: it stays so until attempts show the opposite.
    pub fn of_ready(timing: Timing) -> Self {
        Self {
            timing,
            is_ready: true,
            last: None,
            due: Duration::ZERO,
        }
    }

    /// Whether the guest is ready.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether the last attempt succeeded; `None`: there was none.
    pub fn last_succeeded(&self) -> Option<bool> {
        self.last.map(|(succeeded, _)| succeeded)
    }

    /// When the next attempt is due.
    pub fn due(&self) -> Duration {
        self.due
    }

    /// Adds an attempt that began at this time and took so long.
    pub fn record(&mut self, succeeded: bool, began: Duration, took: Duration) {
        let before = self.last.filter(|(last, _)| *last == succeeded);
        let in_a_row = before.map_or(1, |(_, count)| count.saturating_add(1));
        self.last = Some((succeeded, in_a_row));
        let (threshold, verdict) = if succeeded {
            (self.timing.success_threshold, true)
        } else {
            (self.timing.failure_threshold, false)
        };
        if in_a_row >= threshold {
            self.is_ready = verdict;
        }
        let rests = !succeeded && !self.is_ready;
        let pause = if rests {
            self.timing
                .period
                .max(took.saturating_mul(AGENT_PAUSE_FACTOR))
        } else {
            self.timing.period.max(took)
        };
        self.due = began.saturating_add(pause);
    }

    /// Puts the next attempt off by a period: the one that began at this time could not be made, which shows nothing.
    pub fn skip(&mut self, began: Duration) {
        self.due = began.saturating_add(self.timing.period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn timing(success_threshold: i64, failure_threshold: i64) -> Timing {
        Timing::of(&Probe {
            failure_threshold: Some(failure_threshold),
            initial_delay_seconds: Some(30),
            success_threshold: Some(success_threshold),
            ..Probe::default()
        })
    }

    /// Whether the guest is ready after each of these results, which come at once.
    fn verdicts(mut attempts: Attempts, results: &[bool]) -> Vec<bool> {
        let each = results.iter().map(|result| {
            attempts.record(*result, attempts.due(), Duration::ZERO);
            attempts.is_ready()
        });
        each.collect()
    }

    #[test]
    fn the_timing_has_the_defaults_of_a_pod() {
        let expected = Timing {
            initial_delay: Duration::ZERO,
            period: seconds(10),
            timeout: seconds(1),
            success_threshold: 1,
            failure_threshold: 3,
        };
        assert_eq!(Timing::of(&Probe::default()), expected);
    }

    #[test]
    fn results_in_a_row_make_a_guest_ready_and_not_ready() {
        let (yes, no) = (true, false);
        let started = || Attempts::of_started(timing(2, 3));
        assert!(!started().is_ready());
        assert_eq!(
            verdicts(
                started(),
                &[yes, no, yes, yes, no, no, yes, no, no, no, yes]
            ),
            [no, no, no, yes, yes, yes, yes, yes, yes, no, no]
        );
        let ready = || Attempts::of_ready(timing(1, 2));
        assert!(ready().is_ready());
        assert_eq!(verdicts(ready(), &[no, yes, no, no]), [yes, yes, yes, no]);
        assert_eq!(verdicts(ready(), &[yes, no]), [yes, yes]);
    }

    #[test]
    fn attempts_begin_after_the_delay_and_follow_at_the_period() {
        let mut attempts = Attempts::of_started(timing(1, 3));
        assert_eq!(attempts.due(), seconds(30));
        assert_eq!(attempts.last_succeeded(), None);
        attempts.skip(seconds(31));
        assert_eq!(
            (attempts.due(), attempts.last_succeeded()),
            (seconds(41), None)
        );
        attempts.record(true, seconds(41), seconds(1));
        assert_eq!(attempts.due(), seconds(51));
        assert_eq!(attempts.last_succeeded(), Some(true));
        assert_eq!(Attempts::of_ready(timing(1, 3)).due(), Duration::ZERO);
    }

    #[test]
    fn an_agent_that_does_not_answer_is_asked_less_often_once_its_guest_is_not_ready() {
        let mut attempts = Attempts::of_ready(timing(1, 2));
        attempts.record(false, seconds(0), seconds(5));
        assert_eq!(attempts.due(), seconds(10));
        attempts.record(false, seconds(10), seconds(5));
        assert_eq!(attempts.due(), seconds(60));
        // An answer that comes at once, such as that there is no agent, costs nothing.
        attempts.record(false, seconds(60), Duration::ZERO);
        assert_eq!(attempts.due(), seconds(70));
        attempts.record(true, seconds(70), seconds(5));
        assert_eq!(attempts.due(), seconds(80));
    }

    #[test]
    fn numbers_beyond_what_the_schema_allows_are_the_least_ones() {
        let timing = Timing::of(&Probe {
            failure_threshold: Some(0),
            period_seconds: Some(0),
            success_threshold: Some(-1),
            timeout_seconds: Some(i64::MAX),
            ..Probe::default()
        });
        assert_eq!((timing.failure_threshold, timing.success_threshold), (1, 1));
        assert_eq!((timing.period, timing.timeout), (seconds(1), seconds(1)));
        let mut attempts = Attempts::of_started(timing);
        attempts.record(false, Duration::MAX, seconds(1));
        assert_eq!(attempts.due(), Duration::MAX);
    }
}
