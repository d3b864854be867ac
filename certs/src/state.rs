//! What all replicas share: the CAs of a rotation and how far it has got.
//!
//! ```text
//!           StoreNext               Switch        StartOverlap, Drop
//!  Steady ────────▶ Publishing ──────────────▶ Overlap ──────────────▶ Steady
//!  current          current + next             current + old           current
//!                   the bundle propagates      leaves are signed again
//! ```
//! Reason: the header of `plan.rs`, whose changes lead from one phase to the next.

use time::OffsetDateTime;

use crate::ca::Ca;
use crate::certificate::CaCertificate;
use crate::trust::TrustTracker;

/// The CAs of a rotation. Every replica reads the state and writes it only over the version that it
/// has read.
#[derive(Debug, Clone)]
pub struct State {
    /// CA that signs leaves.
    pub current: Ca,
    /// CA that will sign leaves once every client's bundle contains it; `None` outside a rotation.
    pub next: Option<Ca>,
    /// Certificates of CAs that signed leaves which may still be served. Their private keys are
    /// deleted.
    pub old: Vec<CaCertificate>,
    /// A time after the last of `old` was added; `None` until a replica that reads the state has
    /// recorded it.
    pub overlap_since: Option<OffsetDateTime>,
}

/// How far a rotation has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// There is one CA.
    Steady,
    /// The next CA is stored, and its certificate is added to the bundles.
    Publishing,
    /// The next CA has become the current one. Leaves of an old one may still be served.
    Overlap,
}

impl Phase {
    /// Every phase, in the order of a rotation.
    pub const ALL: [Self; 3] = [Self::Steady, Self::Publishing, Self::Overlap];

    /// The phase as the Secret and the metrics write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Publishing => "publishing",
            Self::Overlap => "overlap",
        }
    }
}

impl State {
    /// One CA, outside a rotation.
    pub fn new(current: Ca) -> Self {
        Self {
            current,
            next: None,
            old: Vec::new(),
            overlap_since: None,
        }
    }

    /// How far the rotation has got.
    pub fn phase(&self) -> Phase {
        match (&self.next, self.old.is_empty()) {
            (Some(_), _) => Phase::Publishing,
            (None, false) => Phase::Overlap,
            (None, true) => Phase::Steady,
        }
    }

    /// The certificates that clients have to trust.
    pub fn bundle(&self) -> Vec<CaCertificate> {
        let signing = [Some(&self.current), self.next.as_ref()];
        let signing = signing.into_iter().flatten().map(Ca::certificate);
        signing.chain(&self.old).cloned().collect()
    }

    /// The CA that signs at `now`: the current one if it is valid and clients trust it, else the
    /// next one. A state that was lost may have been restored to what it was before its last switch.
    pub(crate) fn signer(&self, now: OffsetDateTime, trust: &TrustTracker) -> Option<&Ca> {
        let both = [Some(&self.current), self.next.as_ref()];
        let both = both.into_iter().flatten();
        let valid = both.filter(|ca| ca.validity().contains(now));
        let trusted = valid.clone().find(|ca| trust.is_trusted(ca.certificate()));
        trusted.or_else(|| valid.clone().next())
    }

    /// The state after `next` has become the current CA.
    pub(crate) fn switched_to(&self, next: Ca) -> Self {
        let former = self.current.certificate().clone();
        Self::new(next).with_old(self.old.iter().cloned().chain([former]))
    }

    /// The state with further old certificates, which stay trusted for another overlap.
    pub(crate) fn with_old(mut self, old: impl IntoIterator<Item = CaCertificate>) -> Self {
        for certificate in old {
            if !self.bundle().contains(&certificate) {
                self.old.push(certificate);
                self.overlap_since = None;
            }
        }
        self
    }
}
