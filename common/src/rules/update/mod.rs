//! What may become of a Machine that exists, judged on what old and new spec resolve to: a switch to a
//! template with the same numbers is no change.
//!
//! ```text
//! old block ┐                    ┌ Live, Nothing ─ accepted      Restart, NewInstance ─ a warning
//!           ├▶ changes ─effects─▶┤
//! new parts ┘                    └ RefusedWhileRunning, Refused, Grow ─ a violation
//! ```
//!
//! `effects` is the table. `refused` needs no more of the new spec than can be read, so that its
//! violations are reported together with those of form; `announced` is about an object that is
//! accepted; `pending` gives the action of `status.pendingChanges`.

pub(super) mod announced;
mod effects;
mod pending;
pub(super) mod refused;

pub use effects::{Effect, Field};
pub use pending::pending_action;
