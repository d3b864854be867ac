//! libvirt: what is known of a Machine on a host, and carrying out a plan there.

pub(crate) mod access;
mod apply;
pub(crate) mod hosts;
mod images;
mod observe;
pub(crate) mod placement;
mod plan;
#[cfg(test)]
pub(crate) mod world;

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

use self::access::AccessError;
use self::hosts::Hosts;
use self::observe::Look;
use self::plan::Action;
use crate::api::{Guarded, Remedy};
use crate::backend::{Backend, Failed};
use crate::kubevirt::observe::Written;
use crate::machine::Machine;
use crate::plan::{Now, Plan, Refusal};
use crate::watch::{Caches, Triggers};

/// The turn to place a Machine.
type Turn = OwnedMutexGuard<()>;

/// Runs Machines as domains on hosts.
#[derive(Debug)]
pub(crate) struct Libvirt<'a> {
    pub(crate) caches: &'a Caches,
    pub(crate) hosts: &'a Hosts,
    pub(crate) api: &'a Guarded,
    pub(crate) triggers: &'a Triggers,
    /// Uid of the cluster.
    pub(crate) cluster: &'a Arc<str>,
}

impl Backend for Libvirt<'_> {
    type Observed = Look;
    type Action = Action;

    async fn observe(&self, machine: &Machine) -> Result<Look, Failed> {
        self.look(machine).await
    }

    fn plan(&self, machine: &Machine, observed: &Look, now: Now) -> Plan<Action> {
        plan::plan(machine, &observed.observed, now)
    }

    fn refused(&self, observed: Look, refusal: Refusal) -> Look {
        observed.refused(refusal)
    }

    async fn apply(&self, machine: &Machine, action: &Action) -> Result<Option<Written>, Failed> {
        self.carry_out(machine, action).await
    }
}

/// What can be done about an error of a host. What timed out may have happened: a look tells.
fn failed(error: &AccessError) -> Failed {
    let remedy = match error {
        AccessError::Absent(_) | AccessError::TimedOut(_) => Remedy::LookAgain,
        AccessError::Disconnected(_) | AccessError::Busy(_) | AccessError::Agent(_) => {
            Remedy::TryAgain
        }
        AccessError::Unsupported(_) | AccessError::Refused(_) | AccessError::Unavailable(_) => {
            Remedy::Mend
        }
    };
    Failed::new(remedy, error.to_string())
}
