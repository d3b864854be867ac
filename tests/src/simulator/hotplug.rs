//! Volumes that are plugged into a running guest.
//!
//! As `handleVolumeRequests` and the hot-plug of declared volumes in virt-controller (v1.8 and v1.9): volumes of the
//! VirtualMachine with `hotpluggable: true` are added to the running instance, and those that have left it are removed.

use serde_json::{Value, json};

/// The patch with which an instance gets the hot-plugged volumes of its VirtualMachine; `None`: it has them.
pub(super) fn volumes(machine: &Value, instance: &Value) -> Option<Value> {
    let (desired, runs) = (&machine["spec"]["template"]["spec"], &instance["spec"]);
    let wanted: Vec<&Value> = plugged(desired).collect();
    let has: Vec<&Value> = plugged(runs).collect();
    if wanted == has {
        return None;
    }
    let is_plugged = |name: &Value| {
        let mut all = wanted.iter().chain(&has);
        all.any(|volume| volume["name"] == *name)
    };
    let list = |desired: &Value, runs: &Value| -> Vec<Value> {
        let kept = items(runs).filter(|item| !is_plugged(&item["name"]));
        let more = items(desired)
            .filter(|item| wanted.iter().any(|volume| volume["name"] == item["name"]));
        kept.chain(more).cloned().collect()
    };
    let disks = "/domain/devices/disks";
    let at = |spec: &Value| spec.pointer(disks).cloned().unwrap_or_default();
    let status = items(&list(&desired["volumes"], &runs["volumes"]).into())
        .map(|volume| {
            let plugged = is_plugged(&volume["name"]).then(|| json!({}));
            json!({"name": volume["name"], "target": "", "hotplugVolume": plugged})
        })
        .collect::<Vec<_>>();
    Some(json!({
        "spec": {
            "volumes": list(&desired["volumes"], &runs["volumes"]),
            "domain": {"devices": {"disks": list(&at(desired), &at(runs))}},
        },
        "status": {"volumeStatus": status},
    }))
}

/// The volumes that were plugged in.
fn plugged(spec: &Value) -> impl Iterator<Item = &Value> {
    let is_plugged = |volume: &&Value| {
        ["persistentVolumeClaim", "dataVolume"]
            .iter()
            .any(|source| volume[source]["hotpluggable"] == true)
    };
    items(&spec["volumes"]).filter(is_plugged)
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
            assert_eq!(
                volumes(
                    &machine,
                    &json!({"spec": machine["spec"]["template"]["spec"]})
                ),
                None
            );
        }
    }
}
