//! KubeVirt: what is known of a Machine there, and carrying out a plan.

pub(crate) mod apply;
pub(crate) mod observe;
pub(crate) mod plan;

use std::sync::Arc;

use self::observe::Written;
use self::plan::{Action, Observed};
use crate::api::Guarded;
use crate::backend::{Backend, Failed};
use crate::machine::Machine;
use crate::plan::{Now, Plan, Refusal};
use crate::watch::Caches;

/// Runs Machines as VirtualMachines.
#[derive(Debug)]
pub(crate) struct KubeVirt<'a> {
    pub(crate) caches: &'a Caches,
    pub(crate) api: &'a Guarded,
    /// Uid of the cluster.
    pub(crate) cluster: &'a Arc<str>,
}

impl Backend for KubeVirt<'_> {
    type Observed = Observed;
    type Action = Action;

    async fn observe(&self, machine: &Machine) -> Result<Observed, Failed> {
        Ok(observe::observe(machine, self.caches, self.api, self.cluster).await?)
    }

    fn plan(&self, machine: &Machine, observed: &Observed, now: Now) -> Plan<Action> {
        plan::plan(machine, observed, now)
    }

    fn refused(&self, observed: Observed, refusal: Refusal) -> Observed {
        Observed {
            refusal: Some(refusal),
            ..observed
        }
    }

    async fn apply(&self, machine: &Machine, action: &Action) -> Result<Option<Written>, Failed> {
        Ok(apply::apply(self.api, machine, action).await?)
    }
}
