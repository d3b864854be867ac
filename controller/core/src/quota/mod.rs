//! Quotas of namespaces: what they use, and Machines that are held because admission could not see each other.
//!
//! ```text
//! two replicas of the webhook admit two Machines in the same moment, or their growth ─▶ together beyond the quota
//!     decide: what has it keeps it ─▶ then by creation time and uid ─▶ the younger one is held, until there is room
//! ```
//! The sums are those of admission (`common::catalog`). A Machine that has started is never stopped: only its growth is
//! not carried out.

mod decision;
mod held;
pub mod objects;
mod publish;
pub mod shares;

pub use self::decision::{Decision, decide};
pub use self::held::Hold;
pub(crate) use self::held::{plan_of_held, report_hold};
pub use self::publish::{describe, publish};

#[cfg(test)]
mod tests;
