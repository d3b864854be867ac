//! Waiting for conditions. Nothing in the lab sleeps and hopes.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tokio::time::sleep;

/// Long enough for two busy cores, short enough to notice a hang.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks: short against what is waited for, long against a request.
const POLL: Duration = Duration::from_millis(50);

/// A point in time after which waiting ends.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// This long from now.
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// Whether it is over.
    pub fn passed(self) -> bool {
        Instant::now() >= self.0
    }
}

/// Looks until `look` finds something, within [`PATIENCE`].
///
/// `look` answers `Ok(Ok(found))`, or `Ok(Err(what it saw instead))` to be
/// asked again, or `Err` to give up at once. The error of a wait that was in
/// vain names `what` and the last thing seen.
pub async fn until<T, S: Debug>(
    what: &str,
    look: impl AsyncFnMut() -> Result<Result<T, S>>,
) -> Result<T> {
    until_within(PATIENCE, what, look).await
}

/// As [`until`], with a limit of its own.
pub async fn until_within<T, S: Debug>(
    limit: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<Result<T, S>>,
) -> Result<T> {
    let deadline = Deadline::after(limit);
    loop {
        match look().await? {
            Ok(found) => return Ok(found),
            Err(seen) if deadline.passed() => {
                bail!("waited {limit:?} in vain for {what}; last seen: {seen:?}")
            }
            Err(_) => sleep(POLL).await,
        }
    }
}
