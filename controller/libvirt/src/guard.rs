//! The check of a job on a host right before each of its effects: may it still act?
//!
//! A job waits for the calls before it, and a copy runs for minutes. Meanwhile this replica may lose the
//! Lease, the LibvirtHost may be deleted or get another URI, and the Machine may be bound to another host.

use std::fmt;

use crate::access::{AccessError, Result};

type MayAct = dyn Fn() -> Result<()> + Send + Sync;
type BoundElsewhere = dyn Fn() -> Option<String> + Send + Sync;

/// Checked inside a job, before the first effect and between long steps.
pub(crate) struct Guard {
    may_act: Box<MayAct>,
    bound_elsewhere: Box<BoundElsewhere>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

impl Guard {
    /// `may_act`: an error if this replica lost the Lease or the connection was closed. `bound_elsewhere`: another
    /// host that has the Machine.
    pub(crate) fn new(
        may_act: impl Fn() -> Result<()> + Send + Sync + 'static,
        bound_elsewhere: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            may_act: Box::new(may_act),
            bound_elsewhere: Box::new(bound_elsewhere),
        }
    }

    /// Fails if the job may have no further effect.
    pub(crate) fn check(&self) -> Result<()> {
        (self.may_act)()
    }

    /// Fails if the Machine is bound to another host.
    pub(crate) fn check_binding(&self) -> Result<()> {
        match (self.bound_elsewhere)() {
            None => Ok(()),
            Some(host) => Err(AccessError::Cancelled(format!(
                "the Machine is on LibvirtHost '{host}'; nothing was done here"
            ))),
        }
    }
}
