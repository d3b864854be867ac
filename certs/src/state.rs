//! What all replicas share: the CAs of a rotation, and how far it is.
//!
//! ```text
//!           Begin                   Switch            Stamp, Drop
//!  Steady ────────▶ Publishing ──────────────▶ Overlap ──────────────▶ Steady
//!  current          current + next             current + old           current
//!                   bundle is spread           leaves are re-issued
//! ```

use std::fmt;

use time::OffsetDateTime;

use crate::authority::Authority;
use crate::trust::Trust;
use crate::validity::Validity;

/// A CA that can sign.
///
/// The state machine knows nothing else of certificates; [`Authority`] is the real one.
pub trait Ca: Clone {
    /// What clients trust.
    type Certificate: Trusted;

    /// The certificate of this CA.
    fn certificate(&self) -> &Self::Certificate;

    /// Whether it holds at `now`.
    fn holds(&self, now: OffsetDateTime) -> bool {
        self.certificate().validity().contains(now)
    }
}

/// A CA's certificate without its key.
pub trait Trusted: Clone + PartialEq + fmt::Debug {
    /// When it holds.
    fn validity(&self) -> Validity;
}

/// The CAs of a rotation. Every replica reads it, and writes it only over what it has read.
#[derive(Debug, Clone, PartialEq)]
pub struct State<C: Ca = Authority> {
    /// Signs leaves.
    pub current: C,
    /// Will, once every client trusts it.
    pub next: Option<C>,
    /// Did; leaves of it may still be served. Without keys.
    pub old: Vec<C::Certificate>,
    /// A moment after the last of `old` came there; `None`: nobody has looked since.
    pub since: Option<OffsetDateTime>,
}

/// How far a rotation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// There is one CA.
    Steady,
    /// The next one is being made known.
    Publishing,
    /// Leaves of the old one may still be served.
    Overlap,
}

impl Phase {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Steady, Self::Publishing, Self::Overlap];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Publishing => "publishing",
            Self::Overlap => "overlap",
        }
    }
}

impl<C: Ca> State<C> {
    /// One CA and nothing else.
    pub fn of(current: C) -> Self {
        Self {
            current,
            next: None,
            old: Vec::new(),
            since: None,
        }
    }

    /// How far the rotation is.
    pub fn phase(&self) -> Phase {
        match (&self.next, self.old.is_empty()) {
            (Some(_), _) => Phase::Publishing,
            (None, false) => Phase::Overlap,
            (None, true) => Phase::Steady,
        }
    }

    /// What clients have to trust.
    pub fn bundle(&self) -> Vec<C::Certificate> {
        let signing = [Some(&self.current), self.next.as_ref()];
        let signing = signing.into_iter().flatten().map(C::certificate);
        signing.chain(&self.old).cloned().collect()
    }

    /// The CA that signs at `now`: the current one, as long as it holds and clients trust it. A state
    /// that was lost may have come back as it was before its last switch.
    pub(crate) fn signer(&self, now: OffsetDateTime, trust: &Trust<C::Certificate>) -> Option<&C> {
        let both = [Some(&self.current), self.next.as_ref()];
        let both = both.into_iter().flatten().filter(|ca| ca.holds(now));
        let trusted = both.clone().find(|ca| trust.has(ca.certificate()));
        trusted.or_else(|| both.clone().next())
    }

    /// The next CA takes over.
    pub(crate) fn switched(&self, next: C) -> Self {
        let was = self.current.certificate().clone();
        Self::of(next).with_old(self.old.iter().cloned().chain([was]))
    }

    /// With further certificates that are trusted for a while.
    pub(crate) fn with_old(mut self, old: impl IntoIterator<Item = C::Certificate>) -> Self {
        for certificate in old {
            if !self.bundle().contains(&certificate) {
                self.old.push(certificate);
                self.since = None;
            }
        }
        self
    }

    /// The overlap has begun.
    pub(crate) fn stamped(&self, now: OffsetDateTime) -> Self {
        Self {
            since: Some(now),
            ..self.clone()
        }
    }
}
