//! What may become of a Machine that exists, judged on what old and new spec resolve to: a switch to
//! a template with the same numbers is no change.
//!
//! ```text
//! old block ┐            ┌ Live ─ nothing      Restart, NewInstance ─ a warning
//!           ├▶ changes ▶─┤
//! new parts ┘  (policy)  └ Stopped, Fixed, Grows ─ a fault
//! ```
//!
//! [`refused`] needs no more of the new spec than can be read, so that it speaks together with the
//! rules of form; [`noted`] is about an object that is accepted.

mod fixed;
mod noted;
mod policy;

pub(crate) use fixed::{backend, refused};
pub(crate) use noted::noted;
pub use policy::{Field, Policy};

use crate::api::choice::{Backend, PowerState};
use crate::api::machine::MachineSpec;
use crate::api::normalized::Normalized;
use crate::normalize::{Merged, Pins};
use crate::violation::Findings;

use super::machine;

/// An update, as far as its new side can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update<'a> {
    /// What the old intent resolved to.
    pub(crate) old: &'a Normalized,
    /// The old intent.
    pub(crate) old_spec: &'a MachineSpec,
    /// The new intent over its template.
    pub(crate) merged: &'a Merged<'a>,
    /// What the new intent resolves to beyond itself.
    pub(crate) pins: &'a Pins,
    /// The backend of both.
    pub(crate) backend: Backend,
}

impl Update<'_> {
    /// Whether the machine runs, and goes on running.
    fn runs(&self) -> bool {
        let new = machine::power_state(self.merged, &mut Findings::default());
        [Some(self.old.power_state), new] == [Some(PowerState::Running); 2]
    }
}
