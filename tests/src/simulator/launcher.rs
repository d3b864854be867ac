//! The virt-launcher pod of an instance, and what its end does to the instance.
//!
//! As `sync` and `updateStatus` of virt-controller (`pkg/virt-controller/watch/vmi/lifecycle.go`, v1.8 and v1.9), with
//! the parts of virt-handler and of the kubelet that follow:
//!
//! ```text
//! instance Pending, no pod ──────────────────▶ a pod on the instance's node
//! pod deleted or evicted, the guest runs ────▶ Ready=False PodTerminating ─ shutdown ─▶ instance Succeeded
//! pod deleted before the guest runs, or gone ▶ instance Failed
//! instance deleted ──────────────────────────▶ the pod is deleted; the guest shuts down; the pod is gone
//! instance Succeeded or Failed ──────────────▶ the containers of the pod have ended
//! ```
//! A pod has the labels, owner, volumes and networks of KubeVirt's, and one container without an image that could run.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::hotplug::is_plugged;
use super::{
    guest::{is_final, pod_interface},
    scenario::Scenario,
};

/// Label of a launcher pod: the uid of its instance.
pub(super) const CREATED_BY: &str = "kubevirt.io/created-by";

/// Label of a launcher pod: the name of its VirtualMachine.
pub(super) const VM_NAME: &str = "vm.kubevirt.io/name";

/// Time that a guest takes to shut down when its pod is deleted under it. KubeVirt's limit is the termination grace
/// period, 30 s by default. Of a deletion only the second is known, so that it may be up to a second less: a test in which
/// somebody has to see the pod before it is gone uses [`Scenario::Stuck`].
const SHUTDOWN: Duration = Duration::from_secs(2);

/// Seconds between the request to delete a pod and the `deletionTimestamp` that the API server sets.
const GRACE: i64 = 60;

/// The next write that concerns the pod of an instance.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// There is nothing to write now.
    Rest,
    /// The guest is shutting down because its pod is going: look again.
    Wait,
    Create(Value),
    /// The containers have ended.
    End(Value),
    /// virt-controller deletes the pod; its node ends the containers.
    Delete,
    /// The kubelet removes a pod whose containers have ended.
    Remove,
    /// The status of the instance changes because of its pod.
    Instance(Value),
}

/// The next write for an instance and its pod. `node`: where a new pod runs; `None`: nowhere yet. `lacks_claims`:
/// whether a claim is missing or its image is not complete, so that virt-controller makes no pod.
pub(super) fn next(
    instance: &Value,
    pod: Option<&Value>,
    scenario: Scenario,
    lacks_claims: bool,
    node: Option<&str>,
    now: Timestamp,
) -> Step {
    let phase = phase(instance);
    let is_deleted = !instance["metadata"]["deletionTimestamp"].is_null();
    let Some(pod) = pod else {
        return match phase {
            "Succeeded" | "Failed" => Step::Rest,
            "Pending" if lacks_claims => Step::Rest,
            "Pending" if !is_deleted => Step::Create(pod_of(instance, node)),
            _ => Step::Instance(json!({"phase": "Failed"})),
        };
    };
    let has_ended = is_final(phase);
    if let Some(requested) = deletion_requested(pod) {
        return match phase {
            _ if has_ended => Step::Remove,
            "Running" if !is_deleted && ready_reason(instance) != "PodTerminating" => {
                Step::Instance(json!({"conditions": terminating(instance)}))
            }
            "Running" => {
                let elapsed = Duration::try_from(now.duration_since(requested)).unwrap_or_default();
                let limit = match scenario {
                    Scenario::Stuck => Duration::MAX,
                    Scenario::Slow => SHUTDOWN,
                    _ if is_deleted => Duration::ZERO,
                    _ => SHUTDOWN,
                };
                if elapsed < limit {
                    Step::Wait
                } else {
                    Step::Instance(json!({"phase": "Succeeded"}))
                }
            }
            _ => Step::Instance(json!({"phase": "Failed"})),
        };
    }
    if is_deleted {
        return Step::Delete;
    }
    if has_ended && pod["status"]["phase"] != phase {
        return Step::End(ended(phase, now));
    }
    Step::Rest
}

fn phase(instance: &Value) -> &str {
    match instance["status"]["phase"].as_str() {
        None | Some("") => "Pending",
        Some(phase) => phase,
    }
}

fn ready_reason(instance: &Value) -> &str {
    let conditions = instance["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    ready
        .and_then(|ready| ready["reason"].as_str())
        .unwrap_or_default()
}

/// The conditions of an instance whose pod is going, as `syncReadyConditionFromPod` sets them.
fn terminating(instance: &Value) -> Vec<Value> {
    let conditions = instance["status"]["conditions"].as_array();
    let conditions = conditions.into_iter().flatten();
    let mut conditions: Vec<_> = conditions
        .filter(|condition| condition["type"] != "Ready")
        .cloned()
        .collect();
    conditions.insert(
        0,
        json!({
            "type": "Ready", "status": "False", "reason": "PodTerminating",
            "message": "virt-launcher pod is terminating",
        }),
    );
    conditions
}

/// When the deletion of an object was requested: the API server adds the grace period to it.
fn deletion_requested(object: &Value) -> Option<Timestamp> {
    let metadata = &object["metadata"];
    let at: Timestamp = metadata["deletionTimestamp"].as_str()?.parse().ok()?;
    let grace = metadata["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or_default();
    Timestamp::from_second(at.as_second() - grace).ok()
}

/// The status of a pod whose container runs.
pub(super) fn running(now: Timestamp) -> Value {
    let since = now.to_string();
    json!({
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": since},
        ],
        "containerStatuses": [compute(true, &json!({"running": {"startedAt": since}}))],
    })
}

fn ended(phase: &str, now: Timestamp) -> Value {
    let code = i32::from(phase == "Failed");
    let state = json!({"terminated": {"exitCode": code, "finishedAt": now.to_string()}});
    json!({
        "phase": phase,
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "PodCompleted"},
        ],
        "containerStatuses": [compute(false, &state)],
    })
}

fn compute(ready: bool, state: &Value) -> Value {
    json!({
        "name": "compute", "image": IMAGE, "imageID": "", "restartCount": 0,
        "ready": ready, "state": state,
    })
}

const IMAGE: &str = "quay.io/kubevirt/virt-launcher:v1.9.0";

/// The pod that `RenderLaunchManifest` makes of an instance.
pub(super) fn pod_of(instance: &Value, node: Option<&str>) -> Value {
    let (metadata, spec) = (&instance["metadata"], &instance["spec"]);
    let name = metadata["name"].as_str().unwrap_or_default();
    let mut labels = metadata["labels"].as_object().cloned().unwrap_or_default();
    for (key, value) in [
        ("kubevirt.io", json!("virt-launcher")),
        (CREATED_BY, metadata["uid"].clone()),
        (VM_NAME, metadata["name"].clone()),
        ("kubevirt.io/vm", metadata["name"].clone()),
    ] {
        labels.insert(key.to_owned(), value);
    }
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    // What is plugged in has a pod of its own, also in a guest that starts.
    let claims: Vec<Value> = volumes
        .filter(|volume| !is_plugged(volume))
        .filter_map(|volume| {
            let claim = volume["persistentVolumeClaim"]["claimName"].as_str();
            let claim = claim.or_else(|| volume["dataVolume"]["name"].as_str())?;
            let source = json!({"claimName": claim});
            Some(json!({"name": volume["name"], "persistentVolumeClaim": source}))
        })
        .collect();
    let networks = spec["networks"].as_array().into_iter().flatten();
    let networks: Vec<Value> = networks
        .filter_map(|network| {
            let reference = network["multus"]["networkName"].as_str()?;
            let own = metadata["namespace"].as_str().unwrap_or_default();
            let (namespace, name) = reference.split_once('/').unwrap_or((own, reference));
            let interface = pod_interface(network);
            Some(json!({"name": name, "namespace": namespace, "interface": interface}))
        })
        .collect();
    let mut annotations = match &metadata["annotations"] {
        Value::Object(of_instance) => Value::Object(of_instance.clone()),
        _ => json!({}),
    };
    annotations["kubevirt.io/domain"] = json!(name);
    if !networks.is_empty() {
        annotations["k8s.v1.cni.cncf.io/networks"] = json!(json!(networks).to_string());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": format!("virt-launcher-{name}-"),
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "name": name, "uid": metadata["uid"],
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE,
            "nodeName": node,
            "nodeSelector": spec["nodeSelector"],
            "priorityClassName": spec["priorityClassName"],
            "tolerations": spec["tolerations"],
            "containers": [{"name": "compute", "image": IMAGE}],
            "volumes": claims,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(phase: &str) -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "uid-of-web"},
            "spec": {
                "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "web-root"}}],
                "networks": [{"name": "a", "multus": {"networkName": "blue/prod"}}],
            },
            "status": {"phase": phase},
        })
    }

    fn step(instance: &Value, pod: Option<&Value>, seconds: i64) -> Step {
        let now = Timestamp::from_second(1_000 + seconds).unwrap();
        next(instance, pod, Scenario::Happy, false, Some("node-1"), now)
    }

    fn going() -> Value {
        let at = Timestamp::from_second(1_000 + GRACE).unwrap().to_string();
        json!({"metadata": {"deletionTimestamp": at, "deletionGracePeriodSeconds": GRACE}})
    }

    #[test]
    fn a_pending_instance_gets_a_pod_with_kubevirts_labels_owner_volumes_and_networks() {
        let Step::Create(pod) = step(&instance("Pending"), None, 0) else {
            panic!("no pod");
        };
        assert_eq!(pod["metadata"]["labels"][CREATED_BY], "uid-of-web");
        assert_eq!(pod["metadata"]["labels"]["kubevirt.io"], "virt-launcher");
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!(owner["kind"], "VirtualMachineInstance");
        let volume = &pod["spec"]["volumes"][0];
        assert_eq!(volume["persistentVolumeClaim"]["claimName"], "web-root");
        let networks = &pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"];
        let networks: Value = serde_json::from_str(networks.as_str().unwrap()).unwrap();
        let network = &networks[0];
        assert_eq!(
            (&network["namespace"], &network["name"]),
            (&json!("blue"), &json!("prod"))
        );
        assert_eq!(network["interface"], pod_interface(&json!({"name": "a"})));
    }

    #[test]
    fn a_guest_whose_pod_is_deleted_is_reported_shuts_down_and_has_succeeded() {
        let mut running = instance("Running");
        let Step::Instance(status) = step(&running, Some(&going()), 0) else {
            panic!("not reported");
        };
        assert_eq!(status["conditions"][0]["reason"], "PodTerminating");
        running["status"]["conditions"] = status["conditions"].clone();
        assert_eq!(step(&running, Some(&going()), 1), Step::Wait);
        let succeeded = Step::Instance(json!({"phase": "Succeeded"}));
        assert_eq!(step(&running, Some(&going()), 2), succeeded);
        assert_eq!(
            step(&instance("Succeeded"), Some(&going()), 3),
            Step::Remove
        );
    }

    #[test]
    fn an_instance_whose_pod_ends_before_the_guest_runs_has_failed() {
        let failed = Step::Instance(json!({"phase": "Failed"}));
        let scheduling = instance("Scheduling");
        assert_eq!(step(&scheduling, Some(&going()), 0), failed);
        assert_eq!(step(&scheduling, None, 0), failed);
        assert_eq!(step(&instance("Running"), None, 0), failed);
    }

    #[test]
    fn the_pod_of_a_deleted_instance_is_deleted_and_the_guest_ends() {
        let mut running = instance("Running");
        running["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let pod = json!({"status": {"phase": "Running"}});
        assert_eq!(step(&running, Some(&pod), 0), Step::Delete);
        let succeeded = Step::Instance(json!({"phase": "Succeeded"}));
        assert_eq!(step(&running, Some(&going()), 0), succeeded);
    }
}
