//! How long CAs and leaves are valid, and how long a bundle takes to reach every API server.

use time::Duration;

use crate::ca::CA_LIFETIME;
use crate::leaf::LEAF_LIFETIME;

/// Default time until every API server uses a changed bundle. They watch their webhook
/// configurations, which takes about a second; a broken watch is back within a minute or two.
pub const PROPAGATION: Duration = Duration::minutes(5);

/// Lifetimes that fit together: a rotation is finished long before the next one is due.
///
/// ```text
///  CA     ├──────── two thirds ────────┤ next stored ─ propagation ─ switch ─ overlap ─ dropped │ end
///  leaf   ├── two thirds ──┤ renewal │
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    ca: Duration,
    leaf: Duration,
    propagation: Duration,
}

/// Why lifetimes do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LifetimesError {
    /// X.509 counts whole seconds, and a third of a leaf's lifetime must be at least one.
    #[error("the lifetime of a leaf must be at least {}", MIN_LEAF)]
    Leaf,
    /// The propagation time is zero or negative.
    #[error("the propagation time must be at least {}", MIN_PROPAGATION)]
    Propagation,
    /// The last third of a CA's lifetime is too short for a rotation.
    #[error(
        "the lifetime of a CA must be at least {least}: three times the sum of the propagation \
         time and eight sevenths of the leaf's lifetime"
    )]
    Ca {
        /// The shortest lifetime that is possible.
        least: Duration,
    },
}

const MIN_LEAF: Duration = Duration::seconds(3);
const MIN_PROPAGATION: Duration = Duration::milliseconds(1);

impl Lifetimes {
    /// Lifetimes of a CA and of a leaf, and the time until every API server uses a changed bundle.
    pub fn new(
        ca: Duration,
        leaf: Duration,
        propagation: Duration,
    ) -> Result<Self, LifetimesError> {
        let lifetimes = Self {
            ca,
            leaf,
            propagation,
        };
        let least = 3 * (propagation + lifetimes.overlap());
        if leaf < MIN_LEAF {
            Err(LifetimesError::Leaf)
        } else if propagation < MIN_PROPAGATION {
            Err(LifetimesError::Propagation)
        } else if ca < least {
            Err(LifetimesError::Ca { least })
        } else {
            Ok(lifetimes)
        }
    }

    /// Lifetime of a CA.
    pub fn ca(&self) -> Duration {
        self.ca
    }

    /// Lifetime of a leaf.
    pub fn leaf(&self) -> Duration {
        self.leaf
    }

    /// Time until every API server uses a changed bundle.
    pub fn propagation(&self) -> Duration {
        self.propagation
    }

    /// How long a CA stays trusted after it signed for the last time: the lifetime of a leaf, and a
    /// seventh of it for API servers whose clocks differ.
    pub fn overlap(&self) -> Duration {
        self.leaf + self.leaf / 7
    }
}

impl Default for Lifetimes {
    /// A year, a week, five minutes.
    fn default() -> Self {
        Self {
            ca: CA_LIFETIME,
            leaf: LEAF_LIFETIME,
            propagation: PROPAGATION,
        }
    }
}
