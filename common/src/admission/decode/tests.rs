//! What is read of the status of a Machine.

use serde_json::{Value, json};

use super::*;

fn machine() -> Value {
    json!({
        "metadata": {"name": "web"},
        "spec": {"template": "small"},
        "status": {
            "host": "hv1",
            "nodeName": "node-1",
            "volumes": [{"name": "root", "phase": "Pending", "progress": "40%"}],
            "keptVolumes": [{"name": "old"}],
            "conditions": [{"type": "LiveMigratable", "status": "False", "message": "why"}],
            "lastMigration": {"request": "now"},
            "pendingChanges": [{"field": "cpu.cores", "current": "2"}],
        },
    })
}

/// Each value of a status that rules read.
fn read(machine: &Value) -> Vec<(&'static str, String)> {
    let text = machine.to_string();
    let status = object(&text, &mut Findings::default()).status;
    let volume = status.volumes.first();
    let condition = status.conditions.first();
    let pending = status.pending_changes.first();
    let values = [
        ("/host", status.host.clone()),
        ("/nodeName", status.node_name.clone()),
        ("/volumes/0/name", volume.map(|it| it.name.clone())),
        ("/volumes/0/phase", volume.and_then(|it| it.phase.clone())),
        (
            "/volumes/0/progress",
            volume.and_then(|it| it.progress.clone()),
        ),
        ("/keptVolumes/0/name", status.kept_disks().pop()),
        ("/conditions/0/type", condition.map(|it| it.kind.clone())),
        (
            "/conditions/0/status",
            condition.map(|it| it.status.clone()),
        ),
        (
            "/conditions/0/message",
            condition.map(|it| it.message.clone()),
        ),
        (
            "/lastMigration/request",
            status.last_migration().map(Into::into),
        ),
        (
            "/pendingChanges/0/field",
            pending.map(|it| it.field.clone()),
        ),
        (
            "/pendingChanges/0/current",
            pending.map(|it| it.current.clone()),
        ),
    ];
    let values = values.into_iter();
    let known = values.filter_map(|(at, value)| Some((at, value?)));
    known.filter(|(_, value)| !value.is_empty()).collect()
}

#[test]
fn a_value_of_a_wrong_type_in_a_status_loses_its_own_field_or_item_only() {
    let all = read(&machine());
    assert_eq!(all.len(), 12, "{all:?}");
    for (at, _) in &all {
        // Of what says which item it is, or what is compared as a pair, the item is lost.
        let is_key = ["/name", "/type", "/status", "/field", "/current"]
            .iter()
            .any(|key| at.ends_with(key));
        let lost = if is_key {
            at.rsplit_once('/').unwrap().0
        } else {
            at
        };
        let expected: Vec<_> = all.iter().filter(|(it, _)| !it.starts_with(lost)).collect();
        for unknown in [json!({"of": "a later release"}), json!([7]), json!(7)] {
            let mut changed = machine();
            *changed["status"].pointer_mut(at).unwrap() = unknown.clone();
            assert_eq!(
                read(&changed).iter().collect::<Vec<_>>(),
                expected,
                "{at}: {unknown}"
            );
        }
    }
}

#[test]
fn an_object_with_unreadable_metadata_keeps_its_status() {
    let mut changed = machine();
    changed["metadata"]["labels"] = json!(7);
    assert_eq!(read(&changed), read(&machine()));
}
