//! The virt-launcher pod of an instance: whether the pod was deleted or evicted while the guest ran.
//!
//! A guest that shuts itself down and one whose pod is evicted, drained or deleted end in the same way: KubeVirt
//! (1.8, 1.9) reports the instance as `Succeeded` and does not start it again under `RerunOnFailure`. The order tells
//! them apart. The pod of an evicted guest is marked or deleted while the guest runs; that of the other one afterwards,
//! because its instance is deleted then.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use runtime::metadata::kept;
use serde::Deserialize;

use super::guest_pod::{CREATED_BY, OfPod};
use super::guests::Instance;
use controller_core::objects::{Meta as _, lenient};
use controller_core::resource;

/// Name of the container in which the guest runs.
const COMPUTE: &str = "compute";

/// A virt-launcher pod, with only the fields that say why it ends. It is read live, and not cached.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Launcher {
    #[serde(default, deserialize_with = "kept::<_, OfPod>")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    spec: LauncherSpec,
    #[serde(default, deserialize_with = "lenient")]
    status: LauncherStatus,
}
resource!(Launcher, "Pod", "", "v1", "pods", NamespaceResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LauncherSpec {
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LauncherStatus {
    conditions: Vec<PodCondition>,
    container_statuses: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodCondition {
    r#type: String,
    status: String,
    reason: String,
    last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    finished_at: Option<Time>,
}

/// The label selector of the pods of an instance.
pub(crate) fn launchers_of(instance: &Instance) -> String {
    format!("{CREATED_BY}={}", instance.uid())
}

impl Launcher {
    /// Why the guest lost this pod; `None`: it did not, the pod ends because the guest has ended or was stopped.
    ///
    /// Times have whole seconds. In a tie a pod that was only deleted counts as deleted after the guest ended, because
    /// a guest takes longer than a second to shut down.
    pub(crate) fn eviction(&self, instance: &Instance) -> Option<String> {
        // After a migration, the pod that the guest left ends, too.
        let is_current = self.spec.node_name == instance.status.node_name;
        let is_owned = self.label(CREATED_BY) == Some(instance.uid());
        if !is_current || !is_owned {
            return None;
        }
        let ended = self.ended(instance);
        if let Some(disruption) = self.disruption() {
            let at = disruption.last_transition_time.as_ref().map(|at| at.0);
            let came_first = at.zip(ended).is_none_or(|(at, ended)| at <= ended);
            let reason = match disruption.reason.as_str() {
                "" => String::new(),
                reason => format!(" ({reason})"),
            };
            return came_first.then(|| format!("its pod {} was evicted{reason}", self.name()));
        }
        let requested = self.deletion_requested()?;
        let came_first = ended.is_none_or(|ended| requested < ended);
        came_first.then(|| format!("its pod {} was deleted", self.name()))
    }

    fn disruption(&self) -> Option<&PodCondition> {
        let mut conditions = self.status.conditions.iter();
        conditions.find(|it| it.r#type == "DisruptionTarget" && it.status == "True")
    }

    /// When the deletion was requested: the API server adds the grace period to it.
    fn deletion_requested(&self) -> Option<Timestamp> {
        let at = self.metadata.deletion_timestamp.as_ref()?.0;
        let grace = self.metadata.deletion_grace_period_seconds;
        Timestamp::from_second(at.as_second() - grace.unwrap_or_default()).ok()
    }

    /// When the guest ended or was stopped, whichever came first; `None`: neither.
    fn ended(&self, instance: &Instance) -> Option<Timestamp> {
        let containers = self.status.container_statuses.iter();
        let finished = containers
            .filter(|container| container.name == COMPUTE)
            .filter_map(|container| container.state.terminated.as_ref()?.finished_at.as_ref());
        let stopped = instance.metadata.deletion_timestamp.iter();
        let succeeded = instance.status.phase_transition_timestamps.iter();
        let succeeded = succeeded
            .filter(|transition| transition.phase == "Succeeded")
            .filter_map(|transition| transition.phase_transition_timestamp.as_ref());
        finished
            .chain(stopped)
            .chain(succeeded)
            .map(|at| at.0)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// `second` of a minute.
    fn at(second: u32) -> String {
        format!("2026-01-01T00:00:{second:02}Z")
    }

    fn instance(succeeded: Option<u32>, deleted: Option<u32>) -> Instance {
        let mut instance = json!({
            "metadata": {"name": "web", "uid": "uid-of-web"},
            "status": {"phase": "Running", "nodeName": "node-1"},
        });
        if let Some(second) = succeeded {
            instance["status"]["phaseTransitionTimestamps"] = json!([
                {"phase": "Running", "phaseTransitionTimestamp": at(0)},
                {"phase": "Succeeded", "phaseTransitionTimestamp": at(second)},
            ]);
        }
        if let Some(second) = deleted {
            instance["metadata"]["deletionTimestamp"] = json!(at(second));
        }
        serde_json::from_value(instance).unwrap()
    }

    /// A pod whose deletion was requested, that was marked, and whose container ended in these seconds.
    fn pod(deleted: Option<u32>, marked: Option<u32>, finished: Option<u32>) -> Value {
        let mut pod = json!({
            "metadata": {"name": "virt-launcher-web-x", "labels": {CREATED_BY: "uid-of-web"}},
            "spec": {"nodeName": "node-1"},
        });
        if let Some(second) = deleted {
            pod["metadata"]["deletionTimestamp"] = json!(at(second + 30));
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        }
        if let Some(second) = marked {
            pod["status"]["conditions"] = json!([{
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "lastTransitionTime": at(second),
            }]);
        }
        if let Some(second) = finished {
            let state = json!({"terminated": {"exitCode": 0, "finishedAt": at(second)}});
            pod["status"]["containerStatuses"] = json!([{"name": COMPUTE, "state": state}]);
        }
        pod
    }

    fn eviction(pod: Value, instance: &Instance) -> Option<String> {
        let pod: Launcher = serde_json::from_value(pod).unwrap();
        pod.eviction(instance)
    }

    #[test]
    fn a_pod_that_was_taken_while_the_guest_ran_is_an_eviction() {
        let runs = instance(None, None);
        let deleted = Some("its pod virt-launcher-web-x was deleted".to_owned());
        let evicted =
            Some("its pod virt-launcher-web-x was evicted (EvictionByEvictionAPI)".to_owned());
        assert_eq!(eviction(pod(Some(10), None, None), &runs), deleted);
        assert_eq!(eviction(pod(Some(10), Some(10), None), &runs), evicted);
        // Seen only after the guest had shut down.
        let off = instance(Some(15), Some(16));
        assert_eq!(eviction(pod(Some(10), None, Some(15)), &off), deleted);
        assert_eq!(eviction(pod(Some(10), Some(10), Some(10)), &off), evicted);
    }

    #[test]
    fn a_pod_that_ends_after_its_guest_is_none() {
        // The guest shut itself down; its instance is deleted, and then the pod.
        let off = instance(Some(10), Some(10));
        assert_eq!(eviction(pod(Some(10), None, Some(11)), &off), None);
        assert_eq!(eviction(pod(None, None, Some(10)), &off), None);
        // The kubelet reported the end before KubeVirt did.
        let runs = instance(None, None);
        assert_eq!(eviction(pod(Some(12), None, Some(10)), &runs), None);
        // Stopped with virtctl: the instance was deleted while the guest ran.
        let stopped = instance(None, Some(10));
        assert_eq!(eviction(pod(Some(10), None, None), &stopped), None);
        assert_eq!(eviction(pod(Some(10), Some(20), None), &stopped), None);
    }

    #[test]
    fn pods_of_other_nodes_and_instances_and_malformed_ones_are_ignored() {
        let runs = instance(None, None);
        let mut left = pod(Some(10), None, None);
        left["spec"]["nodeName"] = json!("node-2");
        assert_eq!(eviction(left, &runs), None);
        let mut other = pod(Some(10), None, None);
        other["metadata"]["labels"][CREATED_BY] = json!("uid-of-another");
        assert_eq!(eviction(other, &runs), None);
        let mut malformed = pod(None, None, None);
        malformed["status"] = json!({"conditions": "many", "containerStatuses": 5});
        assert_eq!(eviction(malformed, &runs), None);
    }
}
