//! Changes of a running guest: what KubeVirt hot-plugs, and what needs a restart.

use common::quantity::Bytes;
use serde_json::{Value, json};

/// The effect of a changed template on the running guest.
#[derive(Debug, PartialEq)]
pub(super) enum Rollout {
    /// The guest matches the template.
    Done,
    /// The change is hot-plugged: a patch of the instance.
    Live(Value),
    /// The change needs a restart, with KubeVirt's message.
    Restart(&'static str),
}

/// As `syncRestartRequired`, `handleCPUChangeRequest` and `handleMemoryHotplugRequest` of
/// virt-controller (v1.9) with `vmRolloutStrategy: LiveUpdate`.
pub(super) fn rollout(desired: &Value, instance: &Value, migratable: bool) -> Rollout {
    let runs = &instance["spec"];
    let mut live = runs.clone();
    let fields = ["/domain/cpu/sockets", "/domain/memory/guest"];
    for field in fields {
        if let (Some(live), Some(desired)) = (live.pointer_mut(field), desired.pointer(field)) {
            *live = desired.clone();
        }
    }
    if live != *desired {
        return Rollout::Restart("a non-live-updatable field was changed in the template spec");
    }
    let [(socket, sockets), (memory, bytes)] =
        fields.map(|field| (runs.pointer(field), desired.pointer(field)));
    let mut plug = json!({});
    if socket != sockets {
        let count = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(1);
        if count(sockets) > count(runs.pointer("/domain/cpu/maxSockets")) {
            return Rollout::Restart(
                "CPU sockets updated in template spec to a value higher than what's available",
            );
        }
        if count(sockets) < count(socket) {
            return Rollout::Restart("Reduction of CPU socket count requires a restart");
        }
        plug["spec"]["domain"]["cpu"]["sockets"] = json!(sockets);
        if migratable {
            plug["status"]["currentCPUTopology"]["sockets"] = json!(sockets);
        } else {
            // KubeVirt hot-plugs sockets by a migration, which never happens here.
            let mut conditions = instance["status"]["conditions"].clone();
            if let Some(conditions) = conditions.as_array_mut() {
                conditions.push(json!({"type": "HotVCPUChange", "status": "True"}));
            }
            plug["status"]["conditions"] = conditions;
        }
    }
    if memory != bytes {
        let size = |value: Option<&Value>| -> Option<Bytes> { value?.as_str()?.parse().ok() };
        if !migratable {
            return Rollout::Restart(
                "memory updated in template spec. Memory-hotplug is only available for migratable VMs",
            );
        }
        let Some(most) = size(runs.pointer("/domain/memory/maxGuest")) else {
            return Rollout::Restart(
                "memory updated in template spec. Memory-hotplug is not available for this VM configuration",
            );
        };
        if size(bytes) < size(Some(&instance["status"]["memory"]["guestAtBoot"])) {
            return Rollout::Restart(
                "memory updated in template spec to a value lower than what the VM started with",
            );
        }
        if size(bytes) > Some(most) {
            return Rollout::Restart(
                "memory updated in template spec to a value higher than what's available",
            );
        }
        plug["spec"]["domain"]["memory"]["guest"] = json!(bytes);
        plug["status"]["memory"] = json!({"guestCurrent": bytes, "guestRequested": bytes});
    }
    if plug == json!({}) {
        Rollout::Done
    } else {
        Rollout::Live(plug)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_and_memory_are_hot_plugged_up_to_their_maximum() {
        let with = |sockets: u32, guest: &str| {
            json!({"domain": {
                "cpu": {"sockets": sockets, "cores": 1, "threads": 1, "maxSockets": 4},
                "memory": {"guest": guest, "maxGuest": "8Gi"},
            }})
        };
        let runs = json!({
            "spec": with(2, "2Gi"),
            "status": {
                "memory": {"guestAtBoot": "2Gi"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let rolled_out = |desired: Value, migratable: bool| rollout(&desired, &runs, migratable);
        let restart = |desired: Value, migratable: bool| match rolled_out(desired, migratable) {
            Rollout::Restart(why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(rolled_out(with(2, "2Gi"), true), Rollout::Done);
        let plug = json!({
            "spec": {"domain": {"cpu": {"sockets": 4}, "memory": {"guest": "8Gi"}}},
            "status": {
                "currentCPUTopology": {"sockets": 4},
                "memory": {"guestCurrent": "8Gi", "guestRequested": "8Gi"},
            },
        });
        assert_eq!(rolled_out(with(4, "8Gi"), true), Rollout::Live(plug));
        let Rollout::Live(waits) = rolled_out(with(3, "2Gi"), false) else {
            panic!("sockets wait for a migration");
        };
        let conditions = &waits["status"]["conditions"];
        assert_eq!(conditions[1]["type"], "HotVCPUChange");
        for (desired, migratable, why) in [
            (with(5, "2Gi"), true, "higher than what's available"),
            (with(1, "2Gi"), true, "Reduction of CPU socket count"),
            (with(2, "1Gi"), true, "lower than what the VM started with"),
            (with(2, "9Gi"), true, "higher than what's available"),
            (with(2, "4Gi"), false, "only available for migratable VMs"),
        ] {
            let reported = restart(desired.clone(), migratable);
            assert!(reported.contains(why), "{desired}: {reported}");
        }
        let mut other = with(4, "2Gi");
        other["domain"]["cpu"]["maxSockets"] = json!(8);
        assert!(restart(other, true).starts_with("a non-live-updatable field"));
    }
}
