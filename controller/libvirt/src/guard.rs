//! The check of a job on a host right before each of its effects: may it still act?
//!
//! A job waits for the calls before it, and a copy runs for minutes. Meanwhile this replica may lose the
//! Lease, the LibvirtHost may be deleted or get another URI, and the Machine may be bound to another host.

use std::collections::BTreeSet;
use std::fmt;

use crate::access::{AccessError, Result};

type MayAct = dyn Fn() -> Result<()> + Send + Sync;
type BoundElsewhere = dyn Fn() -> Option<String> + Send + Sync;
type Pools = dyn Fn() -> Result<BTreeSet<String>> + Send + Sync;

/// Checked inside a job, before the first effect and between long steps.
pub(crate) struct Guard {
    may_act: Box<MayAct>,
    bound_elsewhere: Box<BoundElsewhere>,
    pools: Box<Pools>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

impl Guard {
    /// `may_act`: an error if this replica lost the Lease or the connection was closed. `bound_elsewhere`: another
    /// host that has the Machine. `pools`: the pools that the spec of the host names now.
    pub(crate) fn new(
        may_act: impl Fn() -> Result<()> + Send + Sync + 'static,
        bound_elsewhere: impl Fn() -> Option<String> + Send + Sync + 'static,
        pools: impl Fn() -> Result<BTreeSet<String>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            may_act: Box::new(may_act),
            bound_elsewhere: Box::new(bound_elsewhere),
            pools: Box::new(pools),
        }
    }

    /// The pools that have to be read before a volume of the host is deleted, whether or not libvirt lists them: one
    /// that was undefined may hold overlays of the volume.
    pub(crate) fn pools(&self) -> Result<BTreeSet<String>> {
        (self.pools)()
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
