//! Whether a guest was taken down from outside: evicted, drained, or its pod deleted.
//!
//! With `guestShutdownStops`, KubeVirt leaves a guest off that has ended without a failure, however it ended. Only a
//! shutdown from inside may do that, so the cause is looked for when a guest ends:
//!
//! ```text
//! the pod is going, or the instance has succeeded ─▶ its pods, live: taken while the guest ran?
//! the guest ran, and no instance is left ──────────▶ its node, live: cordoned or gone? (this program may have been
//!                                                    on that node, and have seen nothing of the rest)
//! ```
//! Nodes are not watched, and of a guest's pods the watch keeps only networks and node labels: why a pod ends matters here
//! only at the moment a guest ends.

use common::api::choice::{Phase, PowerState};
use controller_core::client::{ApiError, GuardedClient, Remedy};
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;

use crate::objects::{Instance, Launcher, VirtualMachine, launchers_of};
use crate::plan::{Eviction, Observed, is_reported};

/// How the guest was taken down from outside; `None`: it was not, or nothing depends on it.
pub(crate) async fn eviction(
    api: &GuardedClient,
    machine: &Machine,
    observed: &Observed,
) -> Result<Option<Eviction>, ApiError> {
    if !stays_off(machine, observed) {
        return Ok(None);
    }
    match observed.instance.as_deref() {
        Some(instance) if instance.loses_pod() || instance.has_succeeded() => {
            from_pods(api, machine, instance).await
        }
        Some(_) => Ok(None),
        None => match machine.status.node_name.as_deref() {
            Some(node) if machine.status.phase == Some(Phase::Running) => {
                from_node(api, node).await
            }
            _ => Ok(None),
        },
    }
}

/// Whether KubeVirt leaves a guest of this Machine off that has ended without a failure, and the Machine is to run. A
/// guest that another client has stopped ends for that.
fn stays_off(machine: &Machine, observed: &Observed) -> bool {
    let is_ours = |vm: &VirtualMachine| {
        vm.belongs_to(machine.name(), machine.uid())
            && !vm.is_deleting()
            && vm.spec.run_strategy == "RerunOnFailure"
    };
    !machine.is_deleting()
        && !is_reported(machine)
        && machine.desired().is_some_and(|block| {
            block.guest_shutdown_stops && block.power_state == PowerState::Running
        })
        && observed.vm.as_deref().is_some_and(is_ours)
}

async fn from_pods(
    api: &GuardedClient,
    machine: &Machine,
    instance: &Instance,
) -> Result<Option<Eviction>, ApiError> {
    let pods: Api<Launcher> = Api::namespaced(api.client(), machine.namespace());
    let selector = ListParams::default().labels(&launchers_of(instance));
    let pods = api.read(pods.list(&selector)).await?;
    let mut causes = pods.items.iter().filter_map(|pod| pod.eviction(instance));
    Ok(causes.next().map(|cause| Eviction {
        instance: instance.uid().to_owned(),
        cause,
    }))
}

async fn from_node(api: &GuardedClient, name: &str) -> Result<Option<Eviction>, ApiError> {
    let nodes: Api<Node> = Api::all(api.client());
    let what = match api.read(nodes.get_opt(name)).await {
        Ok(None) => "gone",
        Ok(Some(node)) => {
            let is_cordoned = node.spec.and_then(|spec| spec.unschedulable);
            if is_cordoned != Some(true) {
                return Ok(None);
            }
            "cordoned"
        }
        // A role of the release before has no permission. Then a guest that has ended stays off, as it did there.
        Err(error) if error.remedy() == Remedy::UserAction => {
            tracing::warn!(
                error = error.message(),
                "the node of a guest cannot be read"
            );
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    Ok(Some(Eviction {
        instance: String::new(),
        cause: format!("its node {name} is {what}"),
    }))
}
