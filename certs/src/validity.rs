//! From when until when a certificate holds.

use time::{Duration, OffsetDateTime};

/// How far `NotBefore` lies in the past: clocks of API servers differ from ours, and a leaf that is
/// not valid yet fails every call.
pub const BACKDATE: Duration = Duration::hours(1);

/// The span in which a certificate holds, in whole seconds as X.509 writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub not_before: OffsetDateTime,
    /// The last moment.
    pub not_after: OffsetDateTime,
}

impl Validity {
    /// Holds from an hour before `now` until `life` after it.
    pub fn starting(now: OffsetDateTime, life: Duration) -> Self {
        let now = whole_seconds(now);
        Self {
            not_before: now - BACKDATE,
            not_after: now + life,
        }
    }

    /// The same, ending no later than `limit`.
    #[must_use]
    pub fn until_at_most(self, limit: OffsetDateTime) -> Self {
        Self {
            not_after: self.not_after.min(limit),
            ..self
        }
    }

    /// Whether the certificate holds at `now`.
    pub fn contains(&self, now: OffsetDateTime) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// When the last third of a `life` begins: the time to notice and repair a renewal that fails.
    /// What was made for less has its own last third.
    pub fn renewal_due(&self, life: Duration) -> OffsetDateTime {
        self.not_after - life.min(self.not_after - self.not_before) / 3
    }
}

/// X.509 has no fractions of a second.
fn whole_seconds(time: OffsetDateTime) -> OffsetDateTime {
    time - Duration::nanoseconds(time.nanosecond().into())
}
