//! The check of a job on a host right before each of its effects: may it still act?
//!
//! A job waits for the calls before it, and a copy runs for minutes. Meanwhile this replica may lose the
//! Lease, the LibvirtHost may be deleted or get another URI, and the Machine may be bound to another host.

use std::collections::BTreeSet;
use std::fmt;

use crate::access::{AccessError, Result};

type MayAct = dyn Fn() -> Result<()> + Send + Sync;
type ReadOtherHosts = dyn Fn() -> OtherHosts + Send + Sync;
type Pools = dyn Fn() -> Result<BTreeSet<String>> + Send + Sync;

/// The hosts, other than that of a job, on which the Machine of the job is or may be.
#[derive(Debug, Default)]
pub(crate) struct OtherHosts {
    /// The host that it is bound to, if that is another one.
    pub(crate) bound: Option<String>,
    /// Other hosts that show its domain, running or not.
    pub(crate) defined: Vec<String>,
    /// The host in its status, if that is another one of which nothing is known now.
    pub(crate) unknown: Option<String>,
}

/// Checked inside a job, before the first effect and between long steps.
pub(crate) struct Guard {
    may_act: Box<MayAct>,
    other_hosts: Box<ReadOtherHosts>,
    pools: Box<Pools>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

impl Guard {
    /// `may_act`: an error if this replica lost the Lease or the connection was closed. `other_hosts`:
    /// other hosts that the Machine is on now; none for a job that is about no Machine. `pools`: the pools that the spec of the host names now.
    pub(crate) fn new(
        may_act: impl Fn() -> Result<()> + Send + Sync + 'static,
        other_hosts: impl Fn() -> OtherHosts + Send + Sync + 'static,
        pools: impl Fn() -> Result<BTreeSet<String>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            may_act: Box::new(may_act),
            other_hosts: Box::new(other_hosts),
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
        match (self.other_hosts)().bound {
            None => Ok(()),
            Some(host) => Err(AccessError::Cancelled(format!(
                "the Machine is on LibvirtHost '{host}'; nothing was done here"
            ))),
        }
    }

    /// Fails if the guest of the Machine may run on another host, which shows its domain or does not answer.
    pub(crate) fn check_only_definition(&self) -> Result<()> {
        let OtherHosts {
            defined, unknown, ..
        } = (self.other_hosts)();
        if !defined.is_empty() {
            let hosts = defined.join("', '");
            return Err(AccessError::Changed(format!(
                "LibvirtHost '{hosts}' has a definition of the Machine's domain, too; nothing was done"
            )));
        }
        match unknown {
            None => Ok(()),
            Some(host) => Err(AccessError::Changed(format!(
                "the guest may run on LibvirtHost '{host}', which does not answer; nothing was done"
            ))),
        }
    }
}
