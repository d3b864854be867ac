//! Why a guest does not run, from the deepest report that KubeVirt gives.
//!
//! ```text
//! scheduler ──▶ instance: PodScheduled=False   ─┐
//! admission ──▶ instance: Synchronized=False   ─┼─▶ the same on the VirtualMachine ─▶ printableStatus
//! kubelet ────▶ instance: Synchronized=False   ─┘
//! admission ──▶ VirtualMachine: Failure=True, no instance
//! kubelet ────▶ event of the pod, which KubeVirt does not copy
//! ```
//! virt-controller copies the conditions of an instance to its VirtualMachine in the write that sets `printableStatus`
//! (`syncConditions` of KubeVirt 1.9), so both are read there. The instance is a fallback: its copy in our
//! cache may be newer.

use super::inputs::StatusInputs;
use super::live::LiveGuest;
use crate::objects::{ForeignCondition, StartFailure, VirtualMachine, find_condition};
use crate::plan::observed::PodWarning;
use common::api::normalized::Normalized;
use common::render::kubevirt::HALTED;
use controller_core::conditions::Fault;

/// Values of `printableStatus` that do not end by waiting.
const FAILURES: [&str; 5] = [
    "ErrorPvcNotFound",
    "DataVolumeError",
    "CrashLoopBackOff",
    "ErrImagePull",
    "ImagePullBackOff",
];

/// Reasons of `Synchronized` while KubeVirt waits for something that resolves itself.
const WAITS: [&str; 1] = ["BackendStorageNotReady"];

/// Part of the text of the scheduler's plugin VolumeBinding for a pod whose claims are unbound.
const UNBOUND_CLAIMS: &str = "unbound immediate PersistentVolumeClaims";

/// Why the VirtualMachine does not do what it is to do; `None`: nothing is known to be wrong.
pub(super) fn fault(
    vm: &VirtualMachine,
    inputs: &StatusInputs<'_>,
    live: &LiveGuest<'_>,
) -> Option<Fault> {
    let printable_status = vm.status.printable_status.as_str();
    let reported = |kind, status| {
        let of_vm = find_condition(&vm.status.conditions, kind, status);
        let instance = live.instance.map(|it| it.status.conditions.as_slice());
        of_vm.or_else(|| find_condition(instance?, kind, status))
    };
    if printable_status == "ErrorUnschedulable" {
        let why = reported("PodScheduled", "False").map_or("", |it| it.message.as_str());
        return unschedulable(why, inputs);
    }
    if printable_status == "CrashLoopBackOff" {
        return Some(crashed(vm.status.start_failure.as_ref()));
    }
    let failure = reported("Failure", "True");
    // Without an instance the VirtualMachine keeps what it has copied of the last one.
    let unsynchronized = live
        .instance
        .and_then(|_| reported("Synchronized", "False"));
    let unsynchronized = unsynchronized.filter(|it| !WAITS.contains(&it.reason.as_str()));
    let cause = unsynchronized.or(failure);
    if vm.has_guest() {
        return cause.map(|it| failed(&format!("KubeVirt reports {}", quoted(it)), ""));
    }
    // The user switched it off: nothing is to start.
    let cause = cause.filter(|_| live.strategy != HALTED);
    match cause {
        Some(it) => {
            let texts = [printable_status, quoted(it)];
            let texts = texts.into_iter().filter(|text| !text.is_empty());
            let text = texts.collect::<Vec<_>>().join(": ");
            Some(failed(&format!("KubeVirt reports {text}"), remedy(it)))
        }
        None if FAILURES.contains(&printable_status) => {
            Some(failed(&format!("KubeVirt reports {printable_status}"), ""))
        }
        None => live
            .pod_warning
            .filter(|_| live.strategy != HALTED)
            .map(not_started),
    }
}

/// No node for the pod. While a claim is unbound the scheduler reports that, and nothing is missing but the volume.
fn unschedulable(why: &str, inputs: &StatusInputs<'_>) -> Option<Fault> {
    if why.contains(UNBOUND_CLAIMS) || (why.is_empty() && !inputs.pending.is_empty()) {
        return None;
    }
    let hardware = inputs.block.and_then(needed_hardware);
    let hardware = hardware.map(|it| format!(" It needs a node with {it}."));
    let message = format!(
        "no node can run the guest: add nodes, free resources, or request less CPU, memory or fewer node labels.{} {why}",
        hardware.unwrap_or_default()
    );
    Some(Fault::new("InsufficientResources", message.trim_end()))
}

/// What the guest has of its node for itself: the scheduler's text names the labels and devices that a node lacks only in
/// part.
fn needed_hardware(block: &Normalized) -> Option<String> {
    let model = block
        .cpu_model()
        .map(|model| format!("the CPU model {model}"));
    let dedicated = block.has_dedicated_cpus();
    let dedicated = dedicated.then(|| "dedicated CPUs".to_owned());
    let pages = block
        .hugepages()
        .map(|size| format!("huge pages of {size}"));
    let devices = block.devices().iter();
    let devices = devices.map(|device| format!("the device {}", device.device_name));
    let all: Vec<_> = model
        .into_iter()
        .chain(dedicated)
        .chain(pages)
        .chain(devices)
        .collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Guests that end before they run. KubeVirt gives a number and a time, but no text.
fn crashed(failure: Option<&StartFailure>) -> Fault {
    let message = "KubeVirt reports CrashLoopBackOff";
    let Some(failure) = failure.filter(|failure| failure.consecutive_fail_count > 0) else {
        return failed(message, "");
    };
    let ended = match failure.consecutive_fail_count {
        1 => "ended before it ran".to_owned(),
        count => format!("ended {count} times before it ran"),
    };
    let retry = failure.retry_after_timestamp.as_deref();
    let retry = retry.map_or_else(
        || "KubeVirt starts it again".to_owned(),
        |time| format!("KubeVirt starts it again at {time}"),
    );
    failed(
        &format!("{message}: the guest {ended}; {retry}"),
        "see the events and the log of its virt-launcher pod before the pod is removed",
    )
}

/// The last that a node reports about the pod: it tries again.
fn not_started(warning: &PodWarning) -> Fault {
    let PodWarning {
        pod,
        reason,
        message,
    } = warning;
    let remedy = match reason.as_str() {
        "FailedMount" | "FailedMapVolume" | "FailedAttachVolume" => {
            "see that its volumes can be attached to the node and that the Secrets it mounts exist"
        }
        "FailedCreatePodSandBox" | "NetworkNotReady" => {
            "see that the network plugin of the node works and that the networks of the Machine exist on the node"
        }
        _ => "see the events of the pod",
    };
    let message = message.trim_end();
    failed(
        &format!("the pod {pod} of the guest does not start: {reason}: {message}"),
        &format!("{remedy}: the node tries again"),
    )
}

fn failed(text: &str, remedy: &str) -> Fault {
    let separator = if remedy.is_empty() { "" } else { "; " };
    Fault::new("VMFailed", format!("{text}{separator}{remedy}"))
}

/// A condition as text; KubeVirt leaves out the reason or the message of some.
fn quoted(condition: &ForeignCondition) -> &str {
    let message = condition.message.trim_end();
    if message.is_empty() {
        &condition.reason
    } else {
        message
    }
}

/// What to do about causes that a user or an administrator of the cluster can remove.
fn remedy(condition: &ForeignCondition) -> &'static str {
    let has = |part: &str| condition.message.contains(part);
    if has("exceeded quota") {
        "raise the ResourceQuota of the namespace, or use less of it: KubeVirt tries again"
    } else if has("violates PodSecurity") {
        "label the namespace with pod-security.kubernetes.io/enforce=privileged, or take one that has the label: KubeVirt tries again"
    } else if has("denied the request") {
        "give the Machine or its namespace what the admission webhook asks for, or ask the administrator of the webhook to let it pass: KubeVirt tries again"
    } else if ["ErrImagePull", "ImagePullBackOff"].contains(&condition.reason.as_str()) {
        "see that the nodes can reach the registry of KubeVirt's images: the node tries again"
    } else {
        ""
    }
}
