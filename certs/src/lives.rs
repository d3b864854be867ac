//! How long everything lasts.

use time::Duration;

use crate::authority::AUTHORITY_LIFE;
use crate::leaf::LEAF_LIFE;

/// How long a bundle may take until every API server has it. They watch their webhook
/// configurations, which takes a second; a watch that broke is back within a minute or two.
pub const PROPAGATION: Duration = Duration::minutes(5);

/// Lives that fit together: a rotation is over long before the next one is due.
///
/// ```text
///  CA     ├──────── two thirds ────────┤ next stored ─ propagation ─ switch ─ overlap ─ dropped │ end
///  leaf   ├── two thirds ──┤ renewal │
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lives {
    authority: Duration,
    leaf: Duration,
    propagation: Duration,
}

/// Why lives do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LivesError {
    /// X.509 counts seconds, and a third of a leaf's life must be some of them.
    #[error("a leaf must live at least {}", MIN_LEAF)]
    Leaf,
    /// Nothing spreads in no time.
    #[error("the propagation of a bundle takes at least {}", MIN_PROPAGATION)]
    Propagation,
    /// The last third of a CA's life has no room for its rotation.
    #[error(
        "a CA must live at least {least}: three times the propagation and eight sevenths of a \
         leaf's life"
    )]
    Authority {
        /// The shortest that is possible.
        least: Duration,
    },
}

const MIN_LEAF: Duration = Duration::seconds(3);
const MIN_PROPAGATION: Duration = Duration::milliseconds(1);

impl Lives {
    /// Lives of a CA and of a leaf, and how long a bundle takes to be everywhere.
    pub fn new(
        authority: Duration,
        leaf: Duration,
        propagation: Duration,
    ) -> Result<Self, LivesError> {
        let lives = Self {
            authority,
            leaf,
            propagation,
        };
        let least = 3 * (propagation + lives.overlap());
        if leaf < MIN_LEAF {
            Err(LivesError::Leaf)
        } else if propagation < MIN_PROPAGATION {
            Err(LivesError::Propagation)
        } else if authority < least {
            Err(LivesError::Authority { least })
        } else {
            Ok(lives)
        }
    }

    /// Of a CA.
    pub fn authority(&self) -> Duration {
        self.authority
    }

    /// Of a leaf.
    pub fn leaf(&self) -> Duration {
        self.leaf
    }

    /// Of the news that there is another bundle.
    pub fn propagation(&self) -> Duration {
        self.propagation
    }

    /// How long a CA is trusted after it last signed: a leaf's life, and a seventh for API servers
    /// whose clocks differ.
    pub fn overlap(&self) -> Duration {
        self.leaf + self.leaf / 7
    }
}

impl Default for Lives {
    /// A year, a week, five minutes.
    fn default() -> Self {
        Self {
            authority: AUTHORITY_LIFE,
            leaf: LEAF_LIFE,
            propagation: PROPAGATION,
        }
    }
}
