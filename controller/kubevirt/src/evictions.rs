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

use crate::apply::live::for_each;
use crate::objects::{Instance, Launcher, VirtualMachine, launchers_of};
use crate::plan::{Eviction, Observed};
use controller_core::foreign_stop::is_reported;

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
            let pods = pods_of(api, machine, instance).await?;
            let mut causes = pods.iter().filter_map(|pod| pod.eviction(instance));
            let node = instance.status.node_name.as_deref();
            let cause = match causes.next() {
                None if pods.is_empty() && instance.has_succeeded() => {
                    from_node(api, machine, node).await?
                }
                cause => cause,
            };
            Ok(cause.map(|cause| Eviction {
                instance: instance.uid().to_owned(),
                cause,
            }))
        }
        Some(_) => Ok(None),
        None => {
            let node = machine.status.node_name.as_deref();
            let cause = from_node(api, machine, node).await?;
            Ok(cause.map(|cause| Eviction {
                instance: String::new(),
                cause,
            }))
        }
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

async fn pods_of(
    api: &GuardedClient,
    machine: &Machine,
    instance: &Instance,
) -> Result<Vec<Launcher>, ApiError> {
    let pods: Api<Launcher> = Api::namespaced(api.client(), machine.namespace());
    let selector = ListParams::default().labels(&launchers_of(instance));
    let mut found = Vec::new();
    for_each(api, &pods, selector, |pod| found.push(pod)).await?;
    Ok(found)
}

/// What became of the node on which the guest ran, as the last status says; `None`: it is as before, or not known.
async fn from_node(
    api: &GuardedClient,
    machine: &Machine,
    node: Option<&str>,
) -> Result<Option<String>, ApiError> {
    let Some(name) = node.filter(|_| machine.status.phase == Some(Phase::Running)) else {
        return Ok(None);
    };
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
    Ok(Some(format!("its node {name} is {what}")))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use controller_core::fixtures::{block, machine};
    use controller_core::lease::LeaseGuard;
    use hyper::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::environment::FakeCluster;
    use crate::environment::server::block_on;

    /// An API server with these pods, whose node is cordoned.
    fn api(pods: Value) -> GuardedClient {
        let service = tower::service_fn(move |request: Request<Body>| {
            let reply = if request.uri().path().ends_with("/pods") {
                json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": pods})
            } else {
                json!({"metadata": {"name": "node-1"}, "spec": {"unschedulable": true}})
            };
            let body = Body::from(serde_json::to_vec(&reply).unwrap());
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        GuardedClient::new(Client::new(service, "default"), LeaseGuard::Always)
    }

    /// This program was on that node, too: by the time another replica looks, the pod is gone.
    #[test]
    fn a_guest_that_is_first_seen_when_its_pod_is_gone_is_checked_by_its_node() {
        let mut block = block();
        block.guest_shutdown_stops = true;
        let mut cluster = FakeCluster::new(machine(block));
        cluster.settle();
        let instance = cluster.instance.as_mut().unwrap();
        "Succeeded".clone_into(&mut instance.status.phase);
        let uid = instance.uid().to_owned();
        let (machine, observed) = (cluster.machine(), cluster.observed());
        let eviction = |pods: Value, machine: &Machine, observed: &Observed| {
            block_on(async { eviction(&api(pods), machine, observed).await.unwrap() })
        };
        let found = eviction(json!([]), machine, &observed);
        let expected = Eviction {
            instance: uid.clone(),
            cause: "its node node-1 is cordoned".into(),
        };
        assert_eq!(found, Some(expected));

        // A pod that has ended after its guest means a shutdown from inside, whatever became of the node.
        let pods = json!([{
            "metadata": {"name": "virt-launcher-web-x", "labels": {"kubevirt.io/created-by": uid}},
            "spec": {"nodeName": "node-1"},
        }]);
        let found = eviction(pods, machine, &observed);
        assert_eq!(found, None);

        // It was known to be off before.
        let mut known = machine.clone();
        known.status.phase = Some(Phase::Stopped);
        let found = eviction(json!([]), &known, &observed);
        assert_eq!(found, None);
        let gone = Observed {
            instance: None,
            vm: observed.vm.clone(),
            ..Observed::default()
        };
        let found = eviction(json!([]), machine, &gone);
        assert_eq!(found.map(|it| it.instance), Some(String::new()));
    }
}
