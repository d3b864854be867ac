//! Updates of a Machine. Compares what the old and the new spec resolve to: a switch to a template with the
//! same values is not a change.
//!
//! ```text
//! old block ┐                    ┌ Live, Nothing ─ accepted      Restart, NewInstance ─ a warning
//!           ├▶ changes ─effects─▶┤
//! new parts ┘                    └ RefusedWhileRunning, Refused, Grow ─ a violation
//! ```
//!
//! `effects` is the table. `refused` also works on a spec that could be read only in part, so that its
//! violations are reported together with those of form. `deleting` replaces them for a Machine that is being deleted.
//! `warnings` and `kept` run only for an object that is accepted. `pending` returns the action of `status.pendingChanges`.

mod announced;
pub(super) mod deleting;
pub(super) mod discarded;
mod effects;
mod existing;
mod hardware;
pub(super) mod kept;
mod pending;
pub(super) mod refused;
mod running;
mod sizes;
mod volumes;
pub(super) mod warnings;

pub use effects::{Effect, Field};
pub use pending::{pending_action, pending_effect};
