//! What to do next, decided from what is there and the time alone.

use time::OffsetDateTime;

use crate::authority::Authority;
use crate::leaf::Leaf;

/// The next thing to do for a server to have a leaf its clients accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is no CA that holds: make one and store it, then ask again.
    MakeAuthority,
    /// There is no leaf that will do for long: sign one, then ask again.
    SignLeaf,
    /// All is well until then. Ask again long before, by the wall clock: a machine that was
    /// suspended does not know that it slept.
    Nothing {
        /// When the leaf is due for renewal.
        until: OffsetDateTime,
    },
}

/// Decides. `leaf` is what is served at present.
pub fn plan(authority: Option<&Authority>, leaf: Option<&Leaf>, now: OffsetDateTime) -> Step {
    let Some(authority) = authority.filter(|ca| ca.validity().contains(now)) else {
        return Step::MakeAuthority;
    };
    let Some(leaf) = leaf.filter(|leaf| authority.signed(leaf) && leaf.validity().contains(now))
    else {
        return Step::SignLeaf;
    };
    let due = leaf.validity().renewal_due();
    // Close to the end of the CA a new leaf would live no longer than the one there is.
    let longer = authority.leaf_validity(now).not_after > leaf.validity().not_after;
    match (now < due, longer) {
        (true, _) => Step::Nothing { until: due },
        (false, true) => Step::SignLeaf,
        (false, false) => Step::Nothing {
            until: leaf.validity().not_after,
        },
    }
}
