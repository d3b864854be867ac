//! Runs Machines as VirtualMachines of KubeVirt.
//!
//! ```text
//! watch    caches of KubeVirt's, CDI's and Multus' objects; which Machine an event is about
//! observe  caches ─▶ Observed          plan   Observed ─▶ actions and status (pure)
//! apply    one action at the API server
//! ```

mod apply;
pub mod metrics;
mod objects;
mod observe;
mod plan;
mod watch;

use std::sync::Arc;

use controller_core::backend::{Backend, Failed};
use controller_core::caches::Caches;
use controller_core::client::GuardedClient;
use controller_core::deletion::Teardown;
use controller_core::machine::Machine;
use controller_core::plan::{Now, Plan, Refusal};
use controller_core::reconcile::Runner;
use controller_core::writes::Written;

use self::plan::{Action, Observed, create, delete};
pub use self::watch::Cluster;

/// The backend. `cluster_uid` is part of the MAC addresses that network cards are given.
pub fn backend(
    cluster: Cluster,
    caches: Caches,
    api: GuardedClient,
    cluster_uid: Arc<str>,
) -> Arc<dyn Runner> {
    Arc::new(KubeVirt {
        caches,
        cluster,
        api,
        cluster_uid,
    })
}

/// Runs Machines as VirtualMachines.
#[derive(Clone, Debug)]
pub(crate) struct KubeVirt {
    /// What is known of the kinds that every backend needs.
    caches: Caches,
    /// What is known of KubeVirt's side.
    cluster: Cluster,
    api: GuardedClient,
    /// Uid of the cluster.
    cluster_uid: Arc<str>,
}

impl Backend for KubeVirt {
    type Observed = Observed;
    type Action = Action;

    const IS_EVENT_DRIVEN: bool = true;

    async fn observe(&self, machine: &Machine) -> Result<Observed, Failed> {
        Ok(observe::observe(self, machine).await?)
    }

    fn plan(
        machine: &Machine,
        observed: &Observed,
        refusal: Option<&Refusal>,
        now: Now,
    ) -> Plan<Action> {
        create::plan(machine, observed, refusal, now)
    }

    fn teardown(machine: &Machine, observed: &Observed, _: Now) -> Teardown<Action> {
        delete::teardown(machine, observed)
    }

    async fn apply(&self, machine: &Machine, action: &Action) -> Result<Option<Written>, Failed> {
        Ok(apply::apply(&self.api, machine, action).await?)
    }

    fn has_seen(&self, namespace: &str, written: &Written) -> bool {
        observe::has_seen(&self.cluster, namespace, written)
    }
}
