//! Waits for conditions, each with a limit. The lab never sleeps for a fixed time instead.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use anyhow::{Error, Result, anyhow};
use tokio::time::sleep;

/// Limit of the time until a condition is met. Measured waits take at most some seconds. The limit is much larger,
/// because suites run side by side on two cores, and load must not fail a test.
pub const LIMIT: Duration = Duration::from_mins(5);

/// Shortest and longest interval between two checks. Many suites wait at a time on two cores.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Interval between two checks of [`until_at_once`].
const AT_ONCE: Duration = Duration::from_millis(5);

/// A point in time at which a wait fails.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline after this time from now.
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// Whether the deadline has passed.
    pub fn passed(self) -> bool {
        Instant::now() >= self.0
    }
}

/// Calls `look` until it returns `Ok(Ok(found))`, for at most [`LIMIT`].
///
/// `Ok(Err(seen))` means that it has to be called again, `Err` ends the wait at once. The error after the limit
/// names `what` and the last thing seen.
pub async fn until<T, S: Debug>(
    what: &str,
    look: impl AsyncFnMut() -> Result<Result<T, S>>,
) -> Result<T> {
    until_within(LIMIT, what, look).await
}

/// As [`until`], with a limit of its own.
pub async fn until_within<T, S: Debug>(
    limit: Duration,
    what: &str,
    look: impl AsyncFnMut() -> Result<Result<T, S>>,
) -> Result<T> {
    wait(limit, interval, what, look).await
}

/// As [`until`], for something that may be over soon after it has begun: the time between two checks does not grow.
pub async fn until_at_once<T, S: Debug>(
    what: &str,
    look: impl AsyncFnMut() -> Result<Result<T, S>>,
) -> Result<T> {
    wait(LIMIT, |_| AT_ONCE, what, look).await
}

/// Calls `look`, with the time between two calls that `pause` returns for the time waited so far.
async fn wait<T, S: Debug>(
    limit: Duration,
    pause: impl Fn(Duration) -> Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<Result<T, S>>,
) -> Result<T> {
    let start = Instant::now();
    let deadline = Deadline::after(limit);
    loop {
        match look().await? {
            Ok(found) => return Ok(found),
            Err(seen) if deadline.passed() => {
                return Err(timed_out(limit, what, &seen));
            }
            Err(_) => sleep(pause(start.elapsed())).await,
        }
    }
}

/// The error of a wait that its limit has ended.
pub(crate) fn timed_out(limit: Duration, what: &str, seen: &impl Debug) -> Error {
    anyhow!("timed out after {limit:?} waiting for {what}; last seen: {seen:?}")
}

/// The time until the next check, after having waited this long: an eighth, so that a wait ends at most that much late.
fn interval(waited: Duration) -> Duration {
    (waited / 8).clamp(INTERVALS.0, INTERVALS.1)
}
