//! The steps of an instance until its guest runs, and what stops it there.
//!
//! ```text
//! Pending ─▶ Scheduling ─▶ Scheduled ─▶ Running ─▶ Ready
//!    │           └─ no node, claim unbound, image not pulled, Secret missing
//!    └─ claim missing, pod refused
//! ```
//! Each arrow is a write of its own, as of virt-controller and virt-handler. Order, reasons and texts are those of
//! `sync` and `updateStatus` in `pkg/virt-controller/watch/vmi/lifecycle.go` of KubeVirt 1.9; the text of an unbound
//! claim is that of the scheduler's plugin VolumeBinding.

use serde_json::{Value, json};

use super::{
    guest::{not_ready, running},
    hardware,
    scenario::Scenario,
    vm_state_machine::{Change, Claims, Input, SLOW},
};

/// What keeps an instance in its phase: conditions beside `Ready`.
type Blocked = Option<Vec<Value>>;

/// The next write to an instance whose guest does not run yet; [`Change::Nothing`] while it is kept in its phase.
pub(super) fn step(input: &Input<'_>, instance: &Value) -> Change {
    let phase = instance["status"]["phase"].as_str().unwrap_or("Pending");
    let slow = |steps: u32| input.scenario == Scenario::Slow && input.age < steps * SLOW;
    match phase {
        "Pending" => match without_pod(input) {
            Some(causes) => kept(instance, "Pending", pod_missing(), causes),
            None if slow(1) => Change::Nothing,
            None => to(instance, "Scheduling"),
        },
        "Scheduling" => match with_pod(input, instance) {
            Some(causes) => kept(instance, "Scheduling", guest_off(), causes),
            None if input.scenario == Scenario::Crash => to(instance, "Failed"),
            None if slow(2) => Change::Nothing,
            None => to(instance, "Scheduled"),
        },
        _ if slow(3) => Change::Nothing,
        _ => Change::Status(running(instance, input.migratable)),
    }
}

/// The `printableStatus` of a VirtualMachine whose instance has not started the guest: the first that fits, in the
/// order of `setPrintableStatus` of KubeVirt 1.9.
pub(super) fn printable(input: &Input<'_>, instance: &Value) -> &'static str {
    let has = |kind: &str, reason: &str| {
        let conditions = instance["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|condition| {
            condition["type"] == kind
                && condition["status"] == "False"
                && condition["reason"] == reason
        })
    };
    if has("Synchronized", "FailedPvcNotFound") {
        "ErrorPvcNotFound"
    } else if has("PodScheduled", "Unschedulable") {
        "ErrorUnschedulable"
    } else if input.claims != Claims::Bound {
        "WaitingForVolumeBinding"
    } else if has("Synchronized", "ErrImagePull") {
        "ErrImagePull"
    } else if has("Synchronized", "ImagePullBackOff") {
        "ImagePullBackOff"
    } else {
        "Starting"
    }
}

/// Why virt-controller creates no pod.
fn without_pod(input: &Input<'_>) -> Blocked {
    if let Claims::Missing(name) = &input.claims {
        let message = format!("failed to render launch manifest: didn't find PVC {name}");
        let unscheduled = unschedulable(&message);
        return Some(vec![
            not_synchronized("FailedPvcNotFound", &message),
            unscheduled,
        ]);
    }
    if input.claims == Claims::Importing {
        return Some(vec![]);
    }
    let (namespace, name) = (
        &input.machine["metadata"]["namespace"],
        &input.machine["metadata"]["name"],
    );
    let [namespace, name] = [namespace, name].map(|text| text.as_str().unwrap_or_default());
    let pod = format!("virt-launcher-{name}-x7k2p");
    let message = match input.scenario {
        Scenario::PodOverQuota => format!(
            "failed to create virtual machine pod: pods \"{pod}\" is forbidden: exceeded quota: compute, requested: limits.memory=2294Mi, used: limits.memory=7Gi, limited: limits.memory=8Gi"
        ),
        Scenario::PodNotAllowed => format!(
            "failed to create pod for vmi {namespace}/{name}, it needs a privileged namespace to run: pods \"{pod}\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false"
        ),
        Scenario::PodDenied => {
            "failed to create virtual machine pod: admission webhook \"validate.policy.example.com\" denied the request: privileged pods need the label team".to_owned()
        }
        _ => return None,
    };
    Some(vec![not_synchronized("FailedCreate", &message)])
}

/// What keeps the pod from running.
fn with_pod(input: &Input<'_>, instance: &Value) -> Blocked {
    let waits = input.claims != Claims::Bound;
    match input.scenario {
        // The scheduler selects a node, and then the storage provisions.
        _ if waits && input.scenario.binds_late() => Some(vec![]),
        _ if input.claims == Claims::Importing => Some(vec![]),
        _ if waits => Some(vec![unschedulable(
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        )]),
        Scenario::Unschedulable => Some(vec![unschedulable(
            "0/3 nodes are available: 3 Insufficient memory.",
        )]),
        Scenario::AntiAffinity => Some(vec![unschedulable(
            "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.",
        )]),
        Scenario::Tainted => Some(vec![unschedulable(
            "0/3 nodes are available: 3 node(s) had untolerated taint(s).",
        )]),
        Scenario::NodeSelector => Some(vec![unschedulable(
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
        )]),
        Scenario::NoResource => {
            let resources = hardware::resources(&instance["spec"]);
            let lacking = resources.join(", 3 Insufficient ");
            let message = format!("0/3 nodes are available: 3 Insufficient {lacking}.");
            Some(vec![unschedulable(&message)])
        }
        Scenario::ImagePull => Some(vec![image_error(instance)]),
        // The kubelet waits without a condition.
        Scenario::MountFails => Some(vec![]),
        _ if input.dependency_missing => Some(vec![]),
        _ => None,
    }
}

/// The kubelet's error of a pull: that of the registry first, that it waits from then on.
fn image_error(instance: &Value) -> Value {
    let image = "registry.example.com/kubevirt/virt-launcher:v1.9.0";
    let conditions = instance["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    if conditions.any(|condition| condition["type"] == "Synchronized") {
        not_synchronized(
            "ImagePullBackOff",
            &format!("Back-off pulling image \"{image}\": ErrImagePull: not found"),
        )
    } else {
        not_synchronized(
            "ErrImagePull",
            &format!("failed to pull and unpack image \"{image}\": not found"),
        )
    }
}

fn kept(instance: &Value, phase: &str, ready: Value, causes: Vec<Value>) -> Change {
    let mut conditions = vec![ready];
    conditions.extend(causes);
    let wanted = json!({"phase": phase, "conditions": conditions});
    let status = &instance["status"];
    if status["phase"] == wanted["phase"] && status["conditions"] == wanted["conditions"] {
        Change::Nothing
    } else {
        Change::Status(wanted)
    }
}

/// The next phase, with the node from `Scheduled` on.
fn to(instance: &Value, phase: &str) -> Change {
    let mut status = json!({"phase": phase, "conditions": [guest_off()]});
    if phase == "Scheduled" {
        status["nodeName"] = running(instance, false)["nodeName"].take();
    }
    Change::Status(status)
}

fn pod_missing() -> Value {
    not_ready(
        "PodNotExists",
        "virt-launcher pod has not yet been scheduled",
    )
}

fn guest_off() -> Value {
    not_ready("GuestNotRunning", "Guest VM is not reported as running")
}

fn not_synchronized(reason: &str, message: &str) -> Value {
    json!({"type": "Synchronized", "status": "False", "reason": reason, "message": message})
}

fn unschedulable(message: &str) -> Value {
    json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
    })
}
