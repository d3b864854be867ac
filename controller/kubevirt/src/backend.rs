//! The backend: KubeVirt's side of the trait that the controller's core drives.

use std::sync::Arc;

use common::api::normalized::Normalized;
use common::api::status::MachineStatus;
use controller_core::backend::{Backend, Draft, Failed, Growth};
use controller_core::caches::Caches;
use controller_core::client::GuardedClient;
use controller_core::conditions::Fault;
use controller_core::deletion::Teardown;
use controller_core::events::Events;
use controller_core::machine::Machine;
use controller_core::plan::{Now, Refusal};
use controller_core::reconcile::Runner;
use controller_core::refusal::Reasons;
use controller_core::writes::Written;

use crate::apply;
use crate::caches::KubeVirtCaches;
use crate::observe::{Observer, has_seen};
use crate::plan::{self, Action, Observed};
use controller_core::foreign_stop::OnForeignStop;

/// The backend. `cluster_uid` is part of the MAC addresses that network cards are given. MachineImages are
/// imported into `image_namespace`.
pub fn backend(
    cluster: KubeVirtCaches,
    caches: Caches,
    (api, events): (GuardedClient, Events),
    cluster_uid: Arc<str>,
    on_foreign_stop: OnForeignStop,
    image_namespace: &str,
) -> Arc<dyn Runner> {
    let observer = Observer {
        caches,
        cluster,
        api,
        cluster_uid,
        on_foreign_stop,
        image_namespace: image_namespace.into(),
    };
    Arc::new(KubeVirt { observer, events })
}

/// Runs Machines as VirtualMachines.
#[derive(Clone, Debug)]
pub(crate) struct KubeVirt {
    observer: Observer,
    /// Where changes of others that are undone are published.
    events: Events,
}

impl Backend for KubeVirt {
    type Observed = Observed;
    type Action = Action;

    const IS_EVENT_DRIVEN: bool = true;
    const REASONS: Reasons = plan::REASONS;

    async fn observe(&self, machine: &Machine, _: Growth<'_>) -> Result<Observed, Failed> {
        Ok(self.observer.observe(machine).await?)
    }

    fn plan(
        machine: &Machine,
        block: &Normalized,
        observed: &Observed,
        refusal: Option<&Refusal>,
        growth: Growth<'_>,
        now: Now,
    ) -> Draft<Action> {
        plan::plan(machine, block, observed, refusal, growth, now)
    }

    fn report_unfit(
        machine: &Machine,
        observed: &Observed,
        unfit: Fault,
        now: Now,
    ) -> MachineStatus {
        plan::report_unfit(machine, observed, unfit, now)
    }

    fn teardown(machine: &Machine, observed: &Observed, _: Now) -> Teardown<Action> {
        plan::teardown(machine, observed)
    }

    async fn apply(&self, machine: &Machine, action: &Action) -> Result<Option<Written>, Failed> {
        apply::apply(&self.observer.api, &self.events, machine, action).await
    }

    fn unanswered(action: &Action) -> Option<Refusal> {
        apply::unanswered(action)
    }

    fn has_seen(&self, namespace: &str, written: &Written) -> bool {
        has_seen(&self.observer.cluster, namespace, written)
    }
}
