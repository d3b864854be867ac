//! Starts that failed, and the pause before the next one.
//!
//! As `syncStartFailureStatus` and `calculateStartBackoffTime` of virt-controller (v1.8 and v1.9): an instance that
//! ended without ever having run counts, whether it crashed or was deleted, and one that ran resets the count. KubeVirt
//! waits 10 s times the square of the count, at most 300 s, and up to half as much again at random. The random part is
//! left out here, and a [`UNIT`] replaces the 10 s, so that tests do not wait for minutes.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::guest::is_final;

/// Pause after the first failed start. KubeVirt's is 10 s.
const UNIT: Duration = Duration::from_secs(1);

/// Longest pause. KubeVirt's is 300 s, the same multiple of its unit.
const MOST: Duration = Duration::from_secs(30);

/// `status.startFailure` of a VirtualMachine; null: none.
pub(super) fn start_failure(machine: &Value, instance: Option<&Value>, now: Timestamp) -> Value {
    let known = &machine["status"]["startFailure"];
    let restarts = matches!(
        machine["spec"]["runStrategy"].as_str(),
        Some("Always" | "RerunOnFailure" | "Once")
    );
    let Some(instance) = instance else {
        return if restarts { known.clone() } else { Value::Null };
    };
    if !restarts || has_run(instance) {
        return Value::Null;
    }
    let uid = &instance["metadata"]["uid"];
    let failed = instance["status"]["phase"].as_str().is_some_and(is_final);
    if !failed || known["lastFailedVMIUID"] == *uid {
        return known.clone();
    }
    let count = known["consecutiveFailCount"].as_u64().unwrap_or_default() + 1;
    let pause = pause(count);
    json!({
        "consecutiveFailCount": count,
        "lastFailedVMIUID": uid,
        "retryAfterTimestamp": (now + pause).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    })
}

fn pause(count: u64) -> SignedDuration {
    let factor = u32::try_from(count.saturating_mul(count)).unwrap_or(u32::MAX);
    let pause = UNIT.saturating_mul(factor).min(MOST);
    SignedDuration::try_from(pause).unwrap_or_default()
}

/// Time until the next start; `None`: now.
pub(super) fn time_left(machine: &Value, now: Timestamp) -> Option<Duration> {
    let retry = machine["status"]["startFailure"]["retryAfterTimestamp"].as_str()?;
    let retry: Timestamp = retry.parse().ok()?;
    Duration::try_from(retry.duration_since(now))
        .ok()
        .filter(|left| !left.is_zero())
}

/// Whether starts of the machine failed since it ran last.
pub(super) fn has_failed(machine: &Value) -> bool {
    machine["status"]["startFailure"]["consecutiveFailCount"]
        .as_u64()
        .is_some_and(|count| count > 0)
}

/// Whether the instance was ever `Running`.
fn has_run(instance: &Value) -> bool {
    let transitions = instance["status"]["phaseTransitionTimestamps"].as_array();
    let mut transitions = transitions.into_iter().flatten();
    transitions.any(|transition| transition["phase"] == "Running")
}

/// A status of the instance, with the time of its phase if it is new, as `SetVMIPhaseTransitionTimestamp` adds it.
pub(super) fn with_transition(instance: &Value, mut status: Value, now: Timestamp) -> Value {
    let phase = status["phase"].clone();
    if phase.is_null() || instance["status"]["phase"] == phase {
        return status;
    }
    let known = instance["status"]["phaseTransitionTimestamps"].as_array();
    let mut transitions = known.cloned().unwrap_or_default();
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    transitions.push(json!({"phase": phase, "phaseTransitionTimestamp": at}));
    status["phaseTransitionTimestamps"] = json!(transitions);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn each_instance_that_never_ran_counts_once_and_the_pause_grows() {
        let mut machine = json!({"spec": {"runStrategy": "Always"}});
        for (count, uid, seconds) in [(1, "a", 1), (2, "b", 4), (3, "c", 9)] {
            let instance = json!({"metadata": {"uid": uid}, "status": {"phase": "Failed"}});
            for _ in 0..2 {
                let failure = start_failure(&machine, Some(&instance), at(0));
                assert_eq!(failure["consecutiveFailCount"], count);
                assert_eq!(failure["lastFailedVMIUID"], uid);
                machine["status"]["startFailure"] = failure;
            }
            assert_eq!(
                time_left(&machine, at(0)),
                Some(Duration::from_secs(seconds))
            );
            assert_eq!(
                time_left(&machine, at(i64::try_from(seconds).unwrap())),
                None
            );
        }
    }

    #[test]
    fn an_instance_that_ran_and_a_halt_reset_the_count() {
        let failure = json!({"consecutiveFailCount": 2, "lastFailedVMIUID": "a"});
        let mut machine = json!({
            "spec": {"runStrategy": "Always"}, "status": {"startFailure": failure},
        });
        assert_eq!(start_failure(&machine, None, at(0)), failure);
        let mut ran = json!({"metadata": {"uid": "b"}, "status": {"phase": "Scheduling"}});
        ran["status"] = with_transition(&ran, json!({"phase": "Running"}), at(0));
        ran["status"] = with_transition(
            &ran,
            json!({
                "phase": "Failed",
                "phaseTransitionTimestamps": ran["status"]["phaseTransitionTimestamps"],
            }),
            at(1),
        );
        assert_eq!(start_failure(&machine, Some(&ran), at(0)), Value::Null);
        machine["spec"]["runStrategy"] = json!("Halted");
        assert_eq!(start_failure(&machine, None, at(0)), Value::Null);
    }
}
