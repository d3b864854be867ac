//! Updates a VirtualMachine by server-side apply with force, without taking away what others plugged in.
//!
//! The lists of volumes and disks are written as a whole, so the apply contains the volumes that others have plugged
//! into the running guest, as they are. They are read right before, and the apply names the version that was read: a
//! volume that is plugged in meanwhile is a conflict, not a loss.
//!
//! Fields of ours that another client has changed are named in an event with their manager.

use std::fmt::Write as _;

use common::api::normalized::Normalized;
use common::merge_patch;
use common::names;
use common::render::kubevirt::{HALTED, types};
use controller_core::client::ApiError;
use controller_core::events::Events;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use controller_core::writes::Written;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::Apply;
use super::restored::manager_of;
use crate::objects::VirtualMachine;

/// Most fields that one event names; the rest is counted.
const FIELDS_MAX: usize = 5;

pub(super) async fn update(
    apply: &Apply<'_>,
    events: &Events,
    desired: &types::VirtualMachine,
) -> Result<Written, ApiError> {
    let name = &desired.metadata.name;
    let live = read(apply, name).await?;
    let mut body = body(apply.machine, desired)?;
    keep_plugged_in(name, &mut body, &live);
    body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    let restored = restored(&body, &live);

    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let vms = apply.objects::<VirtualMachine>();
    let patch = Patch::Apply(&body);
    let call = vms.patch(name, &params, &patch);
    let written = apply.api.write(call).await?;
    if let Some(message) = restored {
        events.restored(apply.machine, &message);
    }
    Ok(Written::of(&written))
}

/// The VirtualMachine with the overrides of the Machine.
pub(super) fn body(machine: &Machine, desired: &types::VirtualMachine) -> Result<Value, ApiError> {
    let mut body = serde_json::to_value(desired).map_err(failed)?;
    if let Some(overrides) = machine.desired().and_then(Normalized::overrides) {
        merge_patch::set(&mut body, overrides);
    }
    Ok(body)
}

/// Changes the power state alone. The digest goes, because the rest is not as it was rendered any more.
pub(super) async fn switch(
    apply: &Apply<'_>,
    events: &Events,
    uid: &str,
    strategy: &str,
) -> Result<Written, ApiError> {
    let name = apply.machine.name();
    // Only a start can undo the stop of another client, so a stop needs no read before it.
    let restored = if strategy == HALTED {
        None
    } else {
        let live = read(apply, name).await?;
        undoes_halt(strategy, &live).then(|| text(&["spec.runStrategy".to_owned()], &live))
    };
    let annotations = json!({
        names::ANNOTATION_RENDERED: null,
        names::ANNOTATION_RUN_STRATEGY: strategy,
    });
    let body = json!({
        "metadata": {"uid": uid, "annotations": annotations},
        "spec": {"runStrategy": strategy},
    });
    let written: VirtualMachine = apply.merge(name, &body).await?;
    if let Some(message) = restored.flatten() {
        events.restored(apply.machine, &message);
    }
    Ok(Written::of(&written))
}

/// The VirtualMachine with every field, also those that the caches do not keep.
async fn read(apply: &Apply<'_>, name: &str) -> Result<Value, ApiError> {
    let kind = ApiResource::erase::<VirtualMachine>(&());
    let namespace = apply.machine.namespace();
    let vms: Api<DynamicObject> = Api::namespaced_with(apply.api.client(), namespace, &kind);
    let live = apply.api.read(vms.get(name)).await?;
    serde_json::to_value(live).map_err(failed)
}

fn failed(error: serde_json::Error) -> ApiError {
    ApiError::Refused(kube::Error::SerdeError(error))
}

/// Replaces the volumes of the body that others have plugged in, and their disks, by those that the object has.
fn keep_plugged_in(machine: &str, body: &mut Value, live: &Value) {
    const VOLUMES: &str = "/spec/template/spec/volumes";
    const DISKS: &str = "/spec/template/spec/domain/devices/disks";
    let of = |object: &Value, path: &str| -> Vec<Value> {
        let list = object.pointer(path).and_then(Value::as_array);
        list.cloned().unwrap_or_default()
    };
    let named = |list: &[Value], item: &Value| list.iter().any(|it| it["name"] == item["name"]);
    let is_foreign = |volume: &Value| is_foreign(machine, volume);
    let (plugged, ours): (Vec<_>, Vec<_>) = of(body, VOLUMES).into_iter().partition(is_foreign);
    let present: Vec<_> = of(live, VOLUMES)
        .into_iter()
        .filter(|volume| is_foreign(volume) && !named(&ours, volume))
        .collect();
    let disks = of(body, DISKS).into_iter();
    // A drive in which others have put a medium is the Machine's own.
    let disks = disks.filter(|disk| disk["cdrom"].is_object() || !named(&plugged, disk));
    let mut disks: Vec<_> = disks.collect();
    let more = of(live, DISKS).into_iter();
    let more = more.filter(|disk| named(&present, disk) && !named(&disks, disk));
    let more: Vec<_> = more.collect();
    disks.extend(more);
    if let Some(list) = body.pointer_mut(DISKS) {
        *list = json!(disks);
    }
    if let Some(list) = body.pointer_mut(VOLUMES) {
        *list = json!([ours, present].concat());
    }
}

/// Whether others have plugged a volume in.
fn is_foreign(machine: &str, volume: &Value) -> bool {
    let volume = types::Volume::deserialize(volume);
    volume.is_ok_and(|volume| volume.is_foreign(machine))
}

/// The text of the event: fields of ours that another client has changed; `None`: there are none.
///
/// If the VirtualMachine was rendered from another desired state, the Machine has changed, too. The strategy is known
/// to be the change of another client even then, because it is recorded.
fn restored(body: &Value, live: &Value) -> Option<String> {
    let rendered =
        |object: &Value| object["metadata"]["annotations"][names::ANNOTATION_RENDERED].clone();
    let mut paths = Vec::new();
    let strategy = body["spec"]["runStrategy"].as_str().unwrap_or_default();
    if rendered(body) == rendered(live) {
        differences(&body["spec"], &live["spec"], "spec", &mut paths);
    } else if undoes_halt(strategy, live) {
        paths.push("spec.runStrategy".to_owned());
    }
    text(&paths, live)
}

/// Whether this strategy starts a guest that another client has halted: this controller wrote another strategy.
fn undoes_halt(strategy: &str, live: &Value) -> bool {
    let recorded = &live["metadata"]["annotations"][names::ANNOTATION_RUN_STRATEGY];
    strategy != HALTED
        && live["spec"]["runStrategy"] == HALTED
        && recorded.as_str().is_some_and(|recorded| recorded != HALTED)
}

/// Names the fields with the clients that changed them; `None`: this controller did.
fn text(paths: &[String], live: &Value) -> Option<String> {
    let managers = &live["metadata"]["managedFields"];
    let foreign: Vec<_> = paths
        .iter()
        .map(|path| {
            let keys: Vec<_> = path.split('.').collect();
            (path, manager_of(managers, &keys))
        })
        .filter(|(_, manager)| *manager != Some(names::FIELD_MANAGER))
        .collect();
    let mut text = String::new();
    for (path, manager) in foreign.iter().take(FIELDS_MAX) {
        let manager = manager.unwrap_or("another client");
        let field = machine_field(path).map_or_else(String::new, |field| {
            format!(", write {field} of the Machine instead")
        });
        let _ = write!(text, "; {path}, changed by {manager}{field}");
    }
    if foreign.len() > FIELDS_MAX {
        let _ = write!(text, "; and {} more", foreign.len() - FIELDS_MAX);
    }
    (!foreign.is_empty()).then(|| {
        format!(
            "restored fields of VirtualMachine {}{text}",
            live["metadata"]["name"].as_str().unwrap_or_default()
        )
    })
}

/// Paths of the fields that are not as desired. A list is one field.
fn differences(desired: &Value, live: &Value, path: &str, found: &mut Vec<String>) {
    match (desired, live) {
        (Value::Object(desired), Value::Object(_)) => {
            for (key, desired) in desired {
                differences(desired, &live[key], &format!("{path}.{key}"), found);
            }
        }
        (desired, live) if crate::plan::covers(live, desired) => {}
        _ => found.push(path.to_owned()),
    }
}

/// The field of the Machine that decides a field of the VirtualMachine.
fn machine_field(path: &str) -> Option<&'static str> {
    const FIELDS: [(&str, &str); 21] = [
        ("spec.runStrategy", "spec.powerState"),
        ("spec.template.spec.domain.cpu", "spec.resources.cpu"),
        ("spec.template.spec.domain.memory", "spec.resources.memory"),
        ("spec.template.spec.domain.devices.disks", "spec.disks"),
        ("spec.template.spec.volumes", "spec.disks"),
        (
            "spec.template.spec.domain.devices.interfaces",
            "spec.networks",
        ),
        ("spec.template.spec.networks", "spec.networks"),
        ("spec.template.spec.nodeSelector", "spec.nodeSelector"),
        ("spec.template.spec.affinity", "spec.placement"),
        ("spec.template.spec.tolerations", "spec.placement"),
        ("spec.template.spec.priorityClassName", "spec.placement"),
        (
            "spec.template.spec.topologySpreadConstraints",
            "spec.placement",
        ),
        ("spec.template.spec.domain.devices.gpus", "spec.devices"),
        (
            "spec.template.spec.domain.devices.hostDevices",
            "spec.devices",
        ),
        (
            "spec.template.spec.domain.devices.watchdog",
            "spec.watchdog",
        ),
        ("spec.template.spec.readinessProbe", "spec.probes.readiness"),
        ("spec.template.spec.livenessProbe", "spec.probes.liveness"),
        (
            "spec.template.spec.evictionStrategy",
            "spec.evictionStrategy",
        ),
        ("spec.template.spec.domain.machine", "spec.domain.machine"),
        ("spec.template.spec.domain.firmware", "spec.domain.firmware"),
        ("spec.template.spec.domain.features", "spec.domain.features"),
    ];
    let mut fields = FIELDS.iter();
    let (_, field) = fields.find(|(prefix, _)| path.starts_with(prefix))?;
    Some(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(strategy: &str, sockets: u32) -> Value {
        json!({
            "metadata": {"name": "web", "annotations": {names::ANNOTATION_RENDERED: "digest"}},
            "spec": {"runStrategy": strategy, "template": {"spec": {
                "domain": {
                    "cpu": {"sockets": sockets},
                    "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]},
                },
                "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "web-root"}}],
            }}},
        })
    }

    fn managed(manager: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields})
    }

    #[test]
    fn a_restored_field_is_named_with_its_manager_and_the_field_of_the_machine() {
        let mut live = vm("Halted", 8);
        live["metadata"]["managedFields"] = json!([
            managed(names::FIELD_MANAGER, &json!({"f:spec": {"f:template": {}}})),
            managed("virt-api", &json!({"f:spec": {"f:runStrategy": {}}})),
            managed(
                "kubectl-edit",
                &json!({"f:spec": {"f:template": {"f:spec": {"f:domain": {"f:cpu": {"f:sockets": {}}}}}}})
            ),
        ]);
        let text = restored(&vm("Always", 2), &live).unwrap();
        assert_eq!(
            text,
            "restored fields of VirtualMachine web; spec.runStrategy, changed by virt-api, write spec.powerState of the Machine instead; spec.template.spec.domain.cpu.sockets, changed by kubectl-edit, write spec.resources.cpu of the Machine instead"
        );
    }

    #[test]
    fn what_this_controller_changed_and_a_new_desired_state_are_no_event() {
        let mut live = vm("RerunOnFailure", 2);
        let ours = json!({"f:spec": {"f:runStrategy": {}}});
        live["metadata"]["managedFields"] = json!([managed(names::FIELD_MANAGER, &ours)]);
        assert_eq!(restored(&vm("Always", 2), &live), None);
        let mut changed = vm("Halted", 8);
        changed["metadata"]["annotations"][names::ANNOTATION_RENDERED] = json!("another");
        assert_eq!(restored(&vm("Always", 2), &changed), None);
        assert_eq!(restored(&vm("Always", 2), &vm("Always", 2)), None);
    }

    /// The Machine has changed meanwhile, so that other differences may be its own.
    #[test]
    fn an_undone_stop_of_another_client_is_an_event_whatever_else_has_changed() {
        let mut live = vm("Halted", 8);
        live["metadata"]["annotations"][names::ANNOTATION_RENDERED] = json!("another");
        live["metadata"]["annotations"][names::ANNOTATION_RUN_STRATEGY] = json!("Always");
        let theirs = json!({"f:spec": {"f:runStrategy": {}}});
        live["metadata"]["managedFields"] = json!([managed("virt-api", &theirs)]);
        let message = "restored fields of VirtualMachine web; spec.runStrategy, changed by virt-api, write spec.powerState of the Machine instead";
        assert_eq!(restored(&vm("Always", 2), &live).as_deref(), Some(message));
        assert_eq!(restored(&vm("Halted", 2), &live), None);
        assert!(undoes_halt("Always", &live) && !undoes_halt("Halted", &live));
        live["metadata"]["annotations"][names::ANNOTATION_RUN_STRATEGY] = json!("Halted");
        assert_eq!(restored(&vm("Always", 2), &live), None);
    }

    #[test]
    fn volumes_that_others_plugged_in_are_written_as_they_are_and_removed_ones_are_not_written() {
        let source = |claim: &str| json!({"claimName": claim, "hotpluggable": true});
        let volume =
            |name: &str| json!({"name": name, "persistentVolumeClaim": source(name), "other": 1});
        let own = json!({"name": "data", "persistentVolumeClaim": source("web-data")});
        let add = |vm: &mut Value, name: &str, disk: Value| {
            let spec = &mut vm["spec"]["template"]["spec"];
            spec["volumes"].as_array_mut().unwrap().push(volume(name));
            let disks = &mut spec["domain"]["devices"]["disks"];
            disks.as_array_mut().unwrap().push(disk);
        };
        let mut body = vm("Always", 2);
        add(&mut body, "removed", json!({"name": "removed"}));
        add(&mut body, "scratch", json!({"name": "scratch"}));
        let mut live = vm("Always", 2);
        let disk = json!({"name": "scratch", "serial": "s", "disk": {"bus": "scsi"}});
        add(&mut live, "scratch", disk.clone());
        add(&mut live, "new", json!({"name": "new"}));
        // One that the Machine has, and one that it had.
        add(&mut body, "data", json!({"name": "data"}));
        add(&mut live, "former", json!({"name": "former"}));
        let volumes = |object: &mut Value, own: Value| {
            let list = object.pointer_mut("/spec/template/spec/volumes").unwrap();
            *list.as_array_mut().unwrap().last_mut().unwrap() = own;
        };
        volumes(&mut body, own.clone());
        let former = json!({"name": "former", "persistentVolumeClaim": source("web-former")});
        volumes(&mut live, former);
        keep_plugged_in("web", &mut body, &live);
        let spec = &body["spec"]["template"]["spec"];
        let root = vm("Always", 2)["spec"]["template"]["spec"]["volumes"][0].clone();
        assert_eq!(
            spec["volumes"],
            json!([root, own, volume("scratch"), volume("new")])
        );
        let disks = &spec["domain"]["devices"]["disks"];
        assert_eq!(disks[1], json!({"name": "data"}));
        assert_eq!(disks[2], disk);
        assert_eq!(disks[3], json!({"name": "new"}));
        assert_eq!(disks.as_array().unwrap().len(), 4);
    }
}
