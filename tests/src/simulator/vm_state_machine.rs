//! The state machine of one VirtualMachine: what virt-controller and virt-handler would write next.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    guest::{is_final, list, not_ready, text},
    hotplug, migration,
    rollout::{Rollout, rollout},
    scenario::Scenario,
    start,
    start_failure::{has_failed, start_failure, time_left},
};

/// Time that [`Scenario::Slow`] stays in each phase.
pub(super) const SLOW: Duration = Duration::from_secs(2);

/// Requeue interval for changes that no watch reports.
pub(super) const SOON: Duration = Duration::from_millis(200);

/// The state of a VirtualMachine's claims, which is that of the least ready one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Claims {
    Missing(String),
    /// CDI has not finished the image in one of them: KubeVirt makes no launcher pod before. A claim that waits for a
    /// consumer gets a temporary pod, which is not simulated: the claim is bound as soon as the machine is to run.
    Importing,
    Pending,
    Bound,
}

/// Everything that decides the next write for one VirtualMachine.
#[derive(Debug, Clone)]
pub(super) struct Input<'a> {
    pub(super) machine: &'a Value,
    pub(super) instance: Option<&'a Value>,
    /// Whether the instance has a launcher pod.
    pub(super) has_launcher: bool,
    pub(super) claims: Claims,
    /// Whether a Secret or network is missing that the launcher pod waits for.
    pub(super) dependency_missing: bool,
    /// Whether the guest can be live-migrated: all its volumes are `ReadWriteMany`.
    pub(super) migratable: bool,
    /// Whether volumes are plugged into running guests.
    pub(super) hotplug: hotplug::Gate,
    pub(super) scenario: Scenario,
    /// Since the creation of the instance, or since its deletion was requested.
    pub(super) age: Duration,
    /// Pause after the first failed start.
    pub(super) start_pause: Duration,
    pub(super) now: Timestamp,
}

/// A write to the instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    Create,
    Status(Value),
    /// Resources are hot-plugged into the running guest.
    HotPlug(Value),
    Delete,
    /// The finalizer is removed: the guest has ended.
    Release,
}

/// The next writes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Next {
    pub(super) change: Change,
    pub(super) status: Value,
    /// Whether the finalizer of the VirtualMachine is removed.
    pub(super) release: bool,
    pub(super) again: Option<Duration>,
}

pub(super) fn next(input: &Input<'_>) -> Next {
    let deleting = !input.machine["metadata"]["deletionTimestamp"].is_null();
    let wanted = !deleting && starts(input.machine);
    let Some(instance) = input.instance else {
        return without_instance(input, deleting, wanted);
    };
    let ending = if deleting { "Terminating" } else { "Stopping" };
    if !instance["metadata"]["deletionTimestamp"].is_null() {
        // As `isVirtualMachineStatusStopping`: an instance that has ended is not stopping any more.
        let has_ended = is_final(phase(instance)) && !deleting;
        let shown = match wanted {
            _ if has_ended && has_failed(input.machine) => "CrashLoopBackOff",
            _ if has_ended => "Stopped",
            true => "Starting",
            false => ending,
        };
        // The finalizer stays until every pod is gone.
        let ended = !input.has_launcher && is_final(phase(instance));
        return Next {
            change: if ended {
                Change::Release
            } else {
                Change::Nothing
            },
            status: status(input, shown, None),
            release: false,
            again: Some(SOON),
        };
    }
    if !wanted || has_stop_request(input.machine, instance) {
        return Next {
            change: Change::Delete,
            status: status(input, ending, None),
            release: false,
            again: None,
        };
    }
    with_instance(input, instance)
}

/// Whether a VirtualMachine without an instance gets a new one. `RerunOnFailure` starts a guest again only if it
/// failed.
fn starts_anew(machine: &Value) -> bool {
    let strategy = &machine["spec"]["runStrategy"];
    let status = &machine["status"];
    let requests = list(&status["stateChangeRequests"]);
    *strategy != "RerunOnFailure"
        || status["runStrategy"] != *strategy
        || requests.iter().any(|request| request["action"] == "Start")
}

/// As `hasStopRequestForVMI`: `virtctl stop` and `restart` ask virt-controller to delete this very instance.
fn has_stop_request(machine: &Value, instance: &Value) -> bool {
    list(&machine["status"]["stateChangeRequests"])
        .iter()
        .any(|request| request["action"] == "Stop" && request["uid"] == instance["metadata"]["uid"])
}

fn phase(instance: &Value) -> &str {
    instance["status"]["phase"].as_str().unwrap_or("Pending")
}

fn starts(machine: &Value) -> bool {
    match machine["spec"]["runStrategy"].as_str() {
        Some(strategy) => matches!(strategy, "Always" | "RerunOnFailure"),
        None => machine["spec"]["running"] == true,
    }
}

fn without_instance(input: &Input<'_>, deleting: bool, wanted: bool) -> Next {
    let unchanged = |shown: &str, failure: Option<(&str, String)>, again| Next {
        change: Change::Nothing,
        status: status(input, shown, failure),
        release: false,
        again,
    };
    if deleting {
        return Next {
            release: true,
            ..unchanged("Terminating", None, None)
        };
    }
    if !wanted || !starts_anew(input.machine) {
        return unchanged("Stopped", None, None);
    }
    if let Some(left) = time_left(input.machine, input.now) {
        return unchanged("CrashLoopBackOff", None, Some(left));
    }
    if input.scenario == Scenario::InstanceRefused {
        // As `startVMI` of virt-controller's vm.go in KubeVirt 1.9.
        let name = text(&input.machine["metadata"]["name"]);
        let message = format!(
            "Failure while starting VMI: virtualmachineinstances.kubevirt.io \"{name}\" is forbidden: exceeded quota: guests, requested: count/virtualmachineinstances.kubevirt.io=1, used: count/virtualmachineinstances.kubevirt.io=10, limited: count/virtualmachineinstances.kubevirt.io=10"
        );
        return unchanged("Stopped", Some(("FailedCreate", message)), Some(SOON));
    }
    let shown = start::printable(input, &Value::Null);
    Next {
        change: Change::Create,
        ..unchanged(shown, None, None)
    }
}

fn with_instance(input: &Input<'_>, instance: &Value) -> Next {
    let on = |change, shown: &str, failure: Option<(&str, String)>, again| Next {
        change,
        status: status(input, shown, failure),
        release: false,
        again,
    };
    if let Scenario::Shows(word) = input.scenario {
        // A test that sets this scenario writes the failed starts, too.
        let mut next = on(Change::Nothing, word, None, None);
        next.status["startFailure"] = input.machine["status"]["startFailure"].clone();
        return next;
    }
    let phase = phase(instance);
    let crashes = input.scenario == Scenario::Crash;
    match phase {
        // Since v1.0, an instance that has ended is deleted with `RerunOnFailure`, too: nothing of it is left.
        "Succeeded" if input.machine["spec"]["runStrategy"] == "RerunOnFailure" => {
            on(Change::Delete, "Stopped", None, None)
        }
        "Succeeded" | "Failed" if has_failed(input.machine) => {
            on(Change::Delete, "CrashLoopBackOff", None, None)
        }
        "Succeeded" | "Failed" => on(Change::Delete, "Starting", None, None),
        "Running" if crashes => on(Change::Status(phase_only("Failed")), "Running", None, None),
        "Running" if !is_ready(instance) => on(ready(instance), "Running", None, None),
        "Running"
            if input.hotplug == hotplug::Gate::Enabled
                && let Some(plug) = hotplug::volumes(input.machine, instance) =>
        {
            on(Change::HotPlug(plug), "Running", None, None)
        }
        "Running" => {
            let live = rollout_of(input, instance).live;
            let shown = if migration::is_underway(instance) {
                "Migrating"
            } else {
                "Running"
            };
            on(
                live.map_or(Change::Nothing, Change::HotPlug),
                shown,
                None,
                None,
            )
        }
        _ => {
            let shown = start::printable(input, instance);
            on(start::step(input, instance), shown, None, Some(SOON))
        }
    }
}

fn phase_only(phase: &str) -> Value {
    json!({"phase": phase, "conditions": [not_ready("GuestNotRunning", "the guest is not running")]})
}

/// Whether the condition `Ready` of an instance still says that its guest does not run.
fn waits_for_ready(condition: &Value) -> bool {
    condition["type"] == "Ready" && condition["reason"] == "GuestNotRunning"
}

fn is_ready(instance: &Value) -> bool {
    !list(&instance["status"]["conditions"])
        .iter()
        .any(waits_for_ready)
}

/// virt-controller sets `Ready` once virt-handler has reported that the guest runs.
fn ready(instance: &Value) -> Change {
    let mut conditions = list(&instance["status"]["conditions"]).to_vec();
    for condition in &mut conditions {
        if waits_for_ready(condition) {
            *condition = json!({"type": "Ready", "status": "True"});
        }
    }
    Change::Status(json!({"conditions": conditions}))
}

/// A running guest needs no restart any more once its specification agrees with the template again. A VM that is off
/// keeps the condition until its next start. As `syncRestartRequired` of KubeVirt 1.8.4 and 1.9.
fn restart_required(input: &Input<'_>, shown: &str) -> Option<Value> {
    let Some(instance) = input.instance else {
        let known = list(&input.machine["status"]["conditions"]).iter();
        let mut known = known.filter(|condition| condition["type"] == "RestartRequired");
        return known.next().filter(|_| shown != "Starting").cloned();
    };
    let why = rollout_of(input, instance).restart?;
    Some(json!({"type": "RestartRequired", "status": "True", "message": why}))
}

fn rollout_of(input: &Input<'_>, instance: &Value) -> Rollout {
    let desired = &input.machine["spec"]["template"]["spec"];
    rollout(desired, instance, input.migratable)
}

/// The status of the VirtualMachine.
fn status(input: &Input<'_>, shown: &str, failure: Option<(&str, String)>) -> Value {
    let mut conditions: Vec<Value> = input.instance.map_or_else(
        || vec![not_ready("VMINotExists", "VMI does not exist")],
        |instance| list(&instance["status"]["conditions"]).to_vec(),
    );
    if let Some((reason, message)) = failure {
        conditions.push(
            json!({"type": "Failure", "status": "True", "reason": reason, "message": message}),
        );
    }
    conditions.extend(restart_required(input, shown));
    let generation = &input.machine["metadata"]["generation"];
    // KubeVirt records the strategy once it created an instance for it, or if it needs none.
    let (strategy, known) = (
        &input.machine["spec"]["runStrategy"],
        &input.machine["status"],
    );
    let seen = input.instance.is_some() || !starts(input.machine);
    let seen = if seen {
        strategy
    } else {
        &known["runStrategy"]
    };
    json!({
        "runStrategy": seen,
        "stateChangeRequests": requests(input),
        "startFailure": start_failure(input.machine, input.instance, input.start_pause, input.now),
        "created": input.instance.is_some(),
        "ready": matches!(shown, "Running" | "Migrating"),
        "printableStatus": shown,
        "observedGeneration": generation,
        "desiredGeneration": generation,
        "conditions": conditions,
    })
}

/// The requests that are still open: `Stop` until the instance is gone, `Start` until there is another one.
fn requests(input: &Input<'_>) -> Value {
    let known = list(&input.machine["status"]["stateChangeRequests"]);
    let failed = |instance: &Value| {
        phase(instance) == "Failed" && input.machine["spec"]["runStrategy"] == "RerunOnFailure"
    };
    let open: Vec<Value> = match input.instance {
        None => {
            let starts = known.iter().filter(|request| request["action"] == "Start");
            starts.cloned().collect()
        }
        Some(instance) if has_stop_request(input.machine, instance) => known.to_vec(),
        Some(instance) if failed(instance) => vec![json!({"action": "Start"})],
        // Written when the instance failed, and kept while it is deleted.
        Some(instance) if is_final(phase(instance)) => known.to_vec(),
        Some(_) => vec![],
    };
    if open.is_empty() {
        Value::Null
    } else {
        json!(open)
    }
}

#[cfg(test)]
mod tests;
