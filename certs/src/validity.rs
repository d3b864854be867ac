//! The period in which a certificate is valid.

use time::{Duration, OffsetDateTime};
use x509_parser::prelude::X509Certificate;

/// How far `NotBefore` lies in the past. The clocks of API servers differ from ours, and every call
/// fails while they consider the leaf not valid yet.
pub const BACKDATE: Duration = Duration::hours(1);

/// The validity period of a certificate, in whole seconds as X.509 stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second at which the certificate is valid.
    pub not_before: OffsetDateTime,
    /// The last second at which the certificate is valid.
    pub not_after: OffsetDateTime,
}

impl Validity {
    /// From [`BACKDATE`] before `now` until `lifetime` after it.
    pub fn starting(now: OffsetDateTime, lifetime: Duration) -> Self {
        let now = whole_seconds(now);
        Self {
            not_before: now - BACKDATE,
            not_after: now + lifetime,
        }
    }

    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self {
            not_before: validity.not_before.to_datetime(),
            not_after: validity.not_after.to_datetime(),
        }
    }

    /// The same period, cut off at `limit` if it ends later.
    #[must_use]
    pub fn ending_by(self, limit: OffsetDateTime) -> Self {
        Self {
            not_after: self.not_after.min(limit),
            ..self
        }
    }

    /// Whether the certificate is valid at `now`.
    pub fn contains(&self, now: OffsetDateTime) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// When the last third of `lifetime` begins: it leaves time to notice and repair a renewal that
    /// fails. A certificate that was issued for less than `lifetime` is renewed in its own last third.
    pub fn renewal_due(&self, lifetime: Duration) -> OffsetDateTime {
        self.not_after - lifetime.min(self.not_after - self.not_before) / 3
    }
}

/// X.509 has no fractions of a second.
fn whole_seconds(time: OffsetDateTime) -> OffsetDateTime {
    time - Duration::nanoseconds(time.nanosecond().into())
}
