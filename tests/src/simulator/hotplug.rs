//! Volumes that are plugged into a running guest.
//!
//! As `HandleDeclarativeVolumes` of virt-controller (v1.9, `pkg/storage/hotplug/hotplug.go`), with the feature gate
//! `DeclarativeHotplugVolumes`: volumes of the VirtualMachine with `hotpluggable: true` that the running instance does not
//! have are added to it with their disks, and those of the instance are removed that have left the VirtualMachine or changed.
//! A volume that the instance has had from its start stays. None of it requires a restart: [`is_live`], as
//! `validLiveUpdateVolumes` and `validLiveUpdateDisks`, which do not ask for the gate.
//!
//! A CD-ROM drive stays in the instance without its volume. virt-api lets no drive into a running instance, and with it
//! nothing of the same patch (`ValidateHotplugDiskConfiguration`, `pkg/storage/admitters/storagehotplug.go`).

use serde_json::{Value, json};

/// The gate `DeclarativeHotplugVolumes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    Enabled,
    Disabled,
}

const DISKS: &str = "/domain/devices/disks";

/// The patch with which an instance gets the hot-plugged volumes of its VirtualMachine; `None`: it has them.
pub(super) fn volumes(machine: &Value, instance: &Value) -> Option<Value> {
    let (desired, runs) = (&machine["spec"]["template"]["spec"], &instance["spec"]);
    let stays = |volume: &&Value| {
        !is_plugged(volume)
            || match volume_of(desired, &volume["name"]) {
                None => false,
                Some(wanted) => !is_plugged(wanted) || wanted == *volume,
            }
    };
    let kept: Vec<&Value> = items(&runs["volumes"]).filter(stays).collect();
    let is_new = |volume: &&Value| {
        let mut status = items(&instance["status"]["volumeStatus"]);
        is_plugged(volume)
            && volume_of(runs, &volume["name"]).is_none()
            && status.all(|status| status["name"] != volume["name"])
    };
    let added: Vec<&Value> = items(&desired["volumes"]).filter(is_new).collect();
    if added.is_empty() && kept.len() == items(&runs["volumes"]).count() {
        return None;
    }
    let volumes: Vec<&Value> = kept.into_iter().chain(added.iter().copied()).collect();
    let has = |disk: &&Value| volumes.iter().any(|volume| volume["name"] == disk["name"]);
    let joins = |disk: &&Value| added.iter().any(|volume| volume["name"] == disk["name"]);
    let known = disks_of(runs);
    let disks = items(&known)
        .filter(|disk| is_drive(disk) || has(disk))
        .cloned()
        .collect::<Vec<_>>();
    let is_known = |disk: &Value| items(&known).any(|it| it["name"] == disk["name"]);
    let new_disks = items(&disks_of(desired))
        .filter(|disk| joins(disk) && !is_known(disk))
        .cloned()
        .collect::<Vec<_>>();
    if new_disks.iter().any(is_drive) {
        return None;
    }
    let reported = items(&instance["status"]["volumeStatus"]);
    let reported: Vec<&Value> = reported.collect();
    let is_added = |volume: &Value| added.iter().any(|it| it["name"] == volume["name"]);
    let status = |volume: &&Value| -> Value {
        let mut reported = reported.iter().filter(|_| !is_added(volume));
        let reported = reported.find(|status| status["name"] == volume["name"]);
        reported.map_or_else(|| status(volume), |status| (*status).clone())
    };
    let status: Vec<Value> = volumes.iter().map(status).collect();
    let disks = [disks, new_disks].concat();
    Some(json!({
        "spec": {"volumes": volumes, "domain": {"devices": {"disks": disks}}},
        "status": {"volumeStatus": status},
    }))
}

/// What virt-handler reports of a volume that the guest has.
pub(super) fn status(volume: &Value) -> Value {
    let mut status = json!({"name": volume["name"], "target": ""});
    if is_plugged(volume) {
        let pod = format!("hp-volume-{}", volume["name"].as_str().unwrap_or_default());
        status["hotplugVolume"] = json!({"attachPodName": pod});
        status["phase"] = json!("Ready");
    }
    let direct = volume["persistentVolumeClaim"]["claimName"].as_str();
    if let Some(claim) = direct.or_else(|| volume["dataVolume"]["name"].as_str()) {
        status["persistentVolumeClaimInfo"] = json!({"claimName": claim});
    }
    status
}

fn is_drive(disk: &Value) -> bool {
    disk["cdrom"].is_object()
}

fn disks_of(spec: &Value) -> Value {
    spec.pointer(DISKS).cloned().unwrap_or_default()
}

fn volume_of<'a>(spec: &'a Value, name: &Value) -> Option<&'a Value> {
    items(&spec["volumes"]).find(|volume| volume["name"] == *name)
}

/// Whether the volumes and disks of the VirtualMachine differ from those of the instance only by what is plugged in or out.
pub(super) fn is_live(desired: &Value, runs: &Value) -> bool {
    let volumes = |spec: &Value| items(&spec["volumes"]).cloned().collect::<Vec<_>>();
    let disks = |spec: &Value| items(&disks_of(spec)).cloned().collect::<Vec<_>>();
    let plugged = |spec: &Value, name: &Value| volume_of(spec, name).is_some_and(is_plugged);
    let differ = |wanted: &[Value], has: &[Value]| {
        let new = wanted
            .iter()
            .any(|item| !plugged(desired, &item["name"]) && !has.contains(item));
        let left = |item: &Value| {
            let mut wanted = wanted.iter();
            let is_gone = wanted.all(|it| it["name"] != item["name"]);
            is_gone && (is_drive(item) || !plugged(runs, &item["name"]))
        };
        new || has.iter().any(left)
    };
    !differ(&volumes(desired), &volumes(runs)) && !differ(&disks(desired), &disks(runs))
}

/// Whether a volume may be plugged in and out.
pub(super) fn is_plugged(volume: &Value) -> bool {
    ["persistentVolumeClaim", "dataVolume"]
        .iter()
        .any(|source| volume[source]["hotpluggable"] == true)
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugged_volume_is_added_and_removed_with_its_disk_and_others_stay() {
        let spec = |plugged: bool| {
            let mut spec = json!({
                "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "web-root"}}],
                "domain": {"devices": {"disks": [{"name": "root"}]}},
            });
            if plugged {
                let source = json!({"claimName": "scratch", "hotpluggable": true});
                let volume = json!({"name": "scratch", "persistentVolumeClaim": source});
                spec["volumes"].as_array_mut().unwrap().push(volume);
                let disks = &mut spec["domain"]["devices"]["disks"];
                disks
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"name": "scratch"}));
            }
            spec
        };
        for plugged in [true, false] {
            let machine = json!({"spec": {"template": {"spec": spec(plugged)}}});
            let instance = json!({"spec": spec(!plugged)});
            let patch = volumes(&machine, &instance).unwrap();
            assert_eq!(patch["spec"], spec(plugged));
            assert!(is_live(&spec(plugged), &spec(!plugged)));
            assert_eq!(
                volumes(
                    &machine,
                    &json!({"spec": machine["spec"]["template"]["spec"]})
                ),
                None
            );
        }
    }

    #[test]
    fn a_medium_enters_and_leaves_a_drive_that_stays_and_no_drive_is_added() {
        let spec = |drives: &[&str], medium: Option<&str>| {
            let source = |claim: &str| json!({"claimName": claim, "hotpluggable": true});
            let volume = |claim| json!({"name": "iso", "persistentVolumeClaim": source(claim)});
            let disk = |name: &&str| json!({"name": name, "cdrom": {"bus": "sata"}});
            let disks: Vec<_> = drives.iter().map(disk).collect();
            let volumes: Vec<_> = medium.into_iter().map(volume).collect();
            json!({"volumes": volumes, "domain": {"devices": {"disks": disks}}})
        };
        let patch = |desired: &Value, runs: &Value| {
            let machine = json!({"spec": {"template": {"spec": desired}}});
            volumes(&machine, &json!({"spec": runs}))
        };
        let (empty, a, b) = (
            spec(&["iso"], None),
            spec(&["iso"], Some("a")),
            spec(&["iso"], Some("b")),
        );
        for (desired, runs, next) in [(&a, &empty, &a), (&empty, &a, &empty), (&b, &a, &empty)] {
            assert_eq!(patch(desired, runs).unwrap()["spec"], *next);
            assert!(is_live(desired, runs));
        }
        let two = spec(&["iso", "tools"], Some("a"));
        let none = spec(&[], None);
        assert_eq!(patch(&a, &none), None, "virt-api refuses the drive");
        for (desired, runs) in [(&two, &a), (&a, &two), (&none, &empty), (&none, &a)] {
            assert!(!is_live(desired, runs), "{desired} {runs}");
        }
    }

    #[test]
    fn a_disk_that_is_not_hotpluggable_stays_and_requires_a_restart() {
        let spec = |names: &[&str], plugged: bool| {
            let volume = |name: &&str| {
                let source = json!({"claimName": name, "hotpluggable": plugged});
                json!({"name": name, "persistentVolumeClaim": source})
            };
            let disks: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
            let volumes: Vec<_> = names.iter().map(volume).collect();
            json!({"volumes": volumes, "domain": {"devices": {"disks": disks}}})
        };
        let patch = |desired: &Value, runs: &Value| {
            let machine = json!({"spec": {"template": {"spec": desired}}});
            volumes(&machine, &json!({"spec": runs}))
        };
        let (one, both) = (spec(&["root"], false), spec(&["root", "data"], false));
        for (desired, runs) in [(&one, &both), (&both, &one)] {
            assert_eq!(patch(desired, runs), None);
            assert!(!is_live(desired, runs));
        }
        // Removed and added again as one that is plugged in, while the guest still has it from its start.
        let again = spec(&["root", "data"], true);
        assert_eq!(patch(&again, &both), None);
        assert!(is_live(&again, &both) && !is_live(&both, &again));
    }
}
