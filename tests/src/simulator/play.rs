//! The pure part: what virt-controller and virt-handler would write next.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher as _},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    rollout::{Rollout, rollout},
    script::Script,
};

/// How long the slow script stays in each phase.
const SLOW: Duration = Duration::from_secs(2);

/// Looking again while something is awaited that no watch reports.
const SOON: Duration = Duration::from_millis(200);

/// What a VirtualMachine's claims are like, the worst one counting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Claims {
    Missing(String),
    Pending,
    Bound,
}

/// All that matters about one VirtualMachine now.
#[derive(Debug, Clone)]
pub(super) struct Scene<'a> {
    pub(super) machine: &'a Value,
    pub(super) instance: Option<&'a Value>,
    pub(super) claims: Claims,
    /// A Secret or network that a pod would wait for without a word.
    pub(super) prop_missing: bool,
    /// Whether the guest can go to another node: other nodes can have its volumes, too.
    pub(super) migratable: bool,
    pub(super) script: Script,
    /// Since the instance was made, or since its deletion was asked for.
    pub(super) age: Duration,
}

/// What happens to the instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    Create,
    Status(Value),
    /// It gets what can be plugged into a running guest.
    Plug(Value),
    Delete,
    /// Its finalizer goes: the guest has ended.
    Release,
}

/// What is written next.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Next {
    pub(super) change: Change,
    pub(super) status: Value,
    /// Whether the machine's own finalizer goes.
    pub(super) release: bool,
    pub(super) again: Option<Duration>,
}

pub(super) fn next(scene: &Scene<'_>) -> Next {
    let deleting = !scene.machine["metadata"]["deletionTimestamp"].is_null();
    let wanted = !deleting && starts(scene.machine);
    let Some(instance) = scene.instance else {
        return without_instance(scene, deleting, wanted);
    };
    let ending = if deleting { "Terminating" } else { "Stopping" };
    if !instance["metadata"]["deletionTimestamp"].is_null() {
        let asked = if wanted { "Starting" } else { ending };
        let ended = match scene.script {
            Script::Stuck => false,
            Script::Slow => scene.age >= SLOW,
            _ => true,
        };
        return Next {
            change: if ended {
                Change::Release
            } else {
                Change::Nothing
            },
            status: status(scene, asked, None),
            release: false,
            again: Some(SOON),
        };
    }
    if !wanted {
        return Next {
            change: Change::Delete,
            status: status(scene, ending, None),
            release: false,
            again: None,
        };
    }
    with_instance(scene, instance)
}

/// Whether a machine without an instance is to get one. What has rerun on failure stays down, unless
/// its guest failed.
fn starts_anew(machine: &Value) -> bool {
    let strategy = &machine["spec"]["runStrategy"];
    let status = &machine["status"];
    let asked = list(&status["stateChangeRequests"]);
    *strategy != "RerunOnFailure"
        || status["runStrategy"] != *strategy
        || asked.iter().any(|request| request["action"] == "Start")
}

fn starts(machine: &Value) -> bool {
    match machine["spec"]["runStrategy"].as_str() {
        Some(strategy) => matches!(strategy, "Always" | "RerunOnFailure"),
        None => machine["spec"]["running"] == true,
    }
}

fn without_instance(scene: &Scene<'_>, deleting: bool, wanted: bool) -> Next {
    let stays = |shown: &str, failure: Option<(&str, String)>, again| Next {
        change: Change::Nothing,
        status: status(scene, shown, failure),
        release: false,
        again,
    };
    if deleting {
        return Next {
            release: true,
            ..stays("Terminating", None, None)
        };
    }
    if !wanted || !starts_anew(scene.machine) {
        return stays("Stopped", None, None);
    }
    match &scene.claims {
        Claims::Missing(name) => {
            let message = format!("failed to render launch manifest: didn't find PVC {name}");
            let failure = Some(("FailedCreate", message));
            stays("ErrorPvcNotFound", failure, Some(SOON))
        }
        Claims::Pending => stays("WaitingForVolumeBinding", None, Some(SOON)),
        Claims::Bound => Next {
            change: Change::Create,
            ..stays("Starting", None, None)
        },
    }
}

fn with_instance(scene: &Scene<'_>, instance: &Value) -> Next {
    let on = |change, shown: &str, failure: Option<(&str, String)>, again| Next {
        change,
        status: status(scene, shown, failure),
        release: false,
        again,
    };
    if let Script::Shows(word) = scene.script {
        return on(Change::Nothing, word, None, None);
    }
    let phase = instance["status"]["phase"].as_str().unwrap_or("Pending");
    let crashes = scene.script == Script::Crash;
    match phase {
        "Succeeded" if scene.machine["spec"]["runStrategy"] == "RerunOnFailure" => {
            on(Change::Nothing, "Stopped", None, None)
        }
        "Failed" if crashes => {
            let message = "the guest ended right after its start".to_owned();
            let failure = Some(("GuestNotRunning", message));
            on(Change::Nothing, "CrashLoopBackOff", failure, None)
        }
        "Succeeded" | "Failed" => on(Change::Delete, "Starting", None, None),
        "Running" if crashes => on(Change::Status(phase_only("Failed")), "Running", None, None),
        "Running" => match rollout_of(scene, instance) {
            Rollout::Live(plug) => on(Change::Plug(plug), "Running", None, None),
            Rollout::Done | Rollout::Restart(_) => on(Change::Nothing, "Running", None, None),
        },
        _ if scene.prop_missing => on(to(phase, "Scheduling"), "Starting", None, Some(SOON)),
        _ => match scene.script {
            Script::Unschedulable => {
                let change = if phase == "Scheduling" {
                    Change::Nothing
                } else {
                    Change::Status(unschedulable())
                };
                on(change, "ErrorUnschedulable", None, None)
            }
            Script::Crash => on(Change::Status(phase_only("Failed")), "Starting", None, None),
            Script::Slow if scene.age < SLOW => on(Change::Nothing, "Starting", None, Some(SOON)),
            Script::Slow if scene.age < 2 * SLOW => {
                on(to(phase, "Scheduling"), "Starting", None, Some(SOON))
            }
            Script::Slow if scene.age < 3 * SLOW => {
                on(to(phase, "Scheduled"), "Starting", None, Some(SOON))
            }
            _ => on(
                Change::Status(running(instance, scene.migratable)),
                "Starting",
                None,
                None,
            ),
        },
    }
}

fn to(phase: &str, wanted: &str) -> Change {
    if phase == wanted {
        Change::Nothing
    } else {
        Change::Status(phase_only(wanted))
    }
}

fn phase_only(phase: &str) -> Value {
    json!({"phase": phase, "conditions": [not_ready("GuestNotRunning", "the guest is not running")]})
}

fn unschedulable() -> Value {
    let message = "0/3 nodes are available: 3 Insufficient memory.";
    json!({"phase": "Scheduling", "conditions": [
        not_ready("PodNotExists", "virt-launcher pod has not yet been scheduled"),
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message},
    ]})
}

fn not_ready(reason: &str, message: &str) -> Value {
    json!({"type": "Ready", "status": "False", "reason": reason, "message": message})
}

/// A running guest: a node, an address per interface, its volumes.
fn running(instance: &Value, migratable: bool) -> Value {
    let name = format!(
        "{}/{}",
        text(&instance["metadata"]["namespace"]),
        text(&instance["metadata"]["name"])
    );
    let interfaces: Vec<Value> = list(&instance["spec"]["domain"]["devices"]["interfaces"])
        .iter()
        .map(|interface| {
            let nic = text(&interface["name"]);
            let [.., second, third] = hash(&(&name, nic)).to_be_bytes();
            let address = format!("10.244.{second}.{third}");
            let mac = interface["macAddress"].as_str().map_or_else(
                || format!("02:00:0a:f4:{second:02x}:{third:02x}"),
                ToOwned::to_owned,
            );
            json!({"name": nic, "mac": mac, "ipAddress": address, "ipAddresses": [address]})
        })
        .collect();
    let volumes: Vec<Value> = list(&instance["spec"]["volumes"])
        .iter()
        .map(|volume| json!({"name": volume["name"], "target": ""}))
        .collect();
    let migratable = if migratable { "True" } else { "False" };
    let mut status = json!({
        "phase": "Running",
        "nodeName": format!("node-{}", hash(&name) % 3 + 1),
        "interfaces": interfaces,
        "volumeStatus": volumes,
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "LiveMigratable", "status": migratable},
        ],
    });
    let domain = &instance["spec"]["domain"];
    if domain["cpu"].is_object() {
        let [sockets, cores, threads] =
            ["sockets", "cores", "threads"].map(|it| &domain["cpu"][it]);
        status["currentCPUTopology"] =
            json!({"sockets": sockets, "cores": cores, "threads": threads});
    }
    let guest = &domain["memory"]["guest"];
    if guest.is_string() {
        status["memory"] =
            json!({"guestAtBoot": guest, "guestCurrent": guest, "guestRequested": guest});
    }
    status
}

fn rollout_of(scene: &Scene<'_>, instance: &Value) -> Rollout {
    let wish = &scene.machine["spec"]["template"]["spec"];
    rollout(wish, instance, scene.migratable)
}

/// The status of the VirtualMachine.
fn status(scene: &Scene<'_>, shown: &str, failure: Option<(&str, String)>) -> Value {
    let mut conditions: Vec<Value> = scene.instance.map_or_else(
        || vec![not_ready("VMINotExists", "VMI does not exist")],
        |instance| list(&instance["status"]["conditions"]).to_vec(),
    );
    if let Some((reason, message)) = failure {
        conditions.push(
            json!({"type": "Failure", "status": "True", "reason": reason, "message": message}),
        );
    }
    if let Some(Rollout::Restart(why)) = scene.instance.map(|instance| rollout_of(scene, instance))
    {
        conditions.push(json!({"type": "RestartRequired", "status": "True", "message": why}));
    }
    let generation = &scene.machine["metadata"]["generation"];
    // The strategy counts as seen when an instance was made under it, or was not to be.
    let (strategy, known) = (
        &scene.machine["spec"]["runStrategy"],
        &scene.machine["status"],
    );
    let seen = scene.instance.is_some() || !starts(scene.machine);
    let seen = if seen {
        strategy
    } else {
        &known["runStrategy"]
    };
    let requests = match scene.instance.map(|instance| &instance["status"]["phase"]) {
        None => known["stateChangeRequests"].clone(),
        Some(phase) if phase == "Failed" && strategy == "RerunOnFailure" => {
            json!([{"action": "Start"}])
        }
        Some(_) => Value::Null,
    };
    json!({
        "runStrategy": seen,
        "stateChangeRequests": requests,
        "created": scene.instance.is_some(),
        "ready": shown == "Running",
        "printableStatus": shown,
        "observedGeneration": generation,
        "desiredGeneration": generation,
        "conditions": conditions,
    })
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(strategy: &str) -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "default", "generation": 1},
            "spec": {"runStrategy": strategy, "template": {"spec": {"volumes": []}}},
        })
    }

    fn instance(phase: &str) -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"volumes": []},
            "status": {"phase": phase},
        })
    }

    fn play(machine: &Value, instance: Option<&Value>, script: Script) -> (Change, String) {
        let scene = Scene {
            machine,
            instance,
            claims: Claims::Bound,
            prop_missing: false,
            migratable: true,
            script,
            age: Duration::ZERO,
        };
        let next = next(&scene);
        (
            next.change,
            text(&next.status["printableStatus"]).to_owned(),
        )
    }

    #[test]
    fn a_machine_that_is_to_run_gets_an_instance() {
        let (change, shown) = play(&machine("Always"), None, Script::Happy);
        assert_eq!((change, shown.as_str()), (Change::Create, "Starting"));
        let (change, shown) = play(&machine("Halted"), None, Script::Happy);
        assert_eq!((change, shown.as_str()), (Change::Nothing, "Stopped"));
    }

    #[test]
    fn a_guest_that_shut_down_is_started_again_unless_told_otherwise() {
        let ended = instance("Succeeded");
        let (change, _) = play(&machine("Always"), Some(&ended), Script::Happy);
        assert_eq!(change, Change::Delete);
        let (change, shown) = play(&machine("RerunOnFailure"), Some(&ended), Script::Happy);
        assert_eq!((change, shown.as_str()), (Change::Nothing, "Stopped"));
    }

    #[test]
    fn what_reruns_on_failure_is_not_started_again_when_its_instance_is_gone() {
        let mut machine = machine("RerunOnFailure");
        assert_eq!(play(&machine, None, Script::Happy).0, Change::Create);
        let shown = |machine: &Value, instance: &Value| {
            let scene = Scene {
                machine,
                instance: Some(instance),
                claims: Claims::Bound,
                prop_missing: false,
                migratable: true,
                script: Script::Happy,
                age: Duration::ZERO,
            };
            next(&scene).status
        };
        machine["status"] = shown(&machine, &instance("Running"));
        let (change, word) = play(&machine, None, Script::Happy);
        assert_eq!((change, word.as_str()), (Change::Nothing, "Stopped"));
        // Unless it failed, or comes from another strategy.
        let mut failed = machine.clone();
        failed["status"] = shown(&machine, &instance("Failed"));
        assert_eq!(play(&failed, None, Script::Happy).0, Change::Create);
        machine["status"]["runStrategy"] = json!("Always");
        assert_eq!(play(&machine, None, Script::Happy).0, Change::Create);
    }

    #[test]
    fn a_deleted_machine_waits_for_its_instance() {
        let mut deleted = machine("Always");
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let (change, shown) = play(&deleted, Some(&instance("Running")), Script::Happy);
        assert_eq!((change, shown.as_str()), (Change::Delete, "Terminating"));
        let mut going = instance("Running");
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(
            play(&deleted, Some(&going), Script::Stuck).0,
            Change::Nothing
        );
        assert_eq!(
            play(&deleted, Some(&going), Script::Happy).0,
            Change::Release
        );
    }

    #[test]
    fn a_changed_template_needs_a_restart() {
        let mut changed = machine("Always");
        changed["spec"]["template"]["spec"]["volumes"] = json!([{"name": "new"}]);
        let running = instance("Running");
        let scene = Scene {
            machine: &changed,
            instance: Some(&running),
            claims: Claims::Bound,
            prop_missing: false,
            migratable: true,
            script: Script::Happy,
            age: Duration::ZERO,
        };
        let conditions = next(&scene).status["conditions"].clone();
        assert_eq!(conditions[0]["type"], "RestartRequired");
    }
}
