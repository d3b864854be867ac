//! Random numbers for names and pauses.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};

/// Every RandomState has random keys; this avoids a dependency for one random number.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
