//! Every field of a Machine that exists changes as the table of policies says.

use common::admission::{ObjectKind, Verdict};
use common::{Field, Policy};
use serde_json::{Value, json};

use crate::harness::{Admitted, Question, machine, merge_patch};

/// Something of everything, so that every field can change.
fn before() -> Value {
    json!({
        "template": "small",
        "resources": {"cpu": {"cores": 2}, "memory": {"size": "4Gi"}},
        "disks": [
            {"name": "data", "size": "10Gi"},
            {"name": "bound", "size": "1Gi", "volumeName": "pv-1"},
            {"name": "chosen", "size": "1Gi", "selector": {"matchLabels": {"tier": "a"}}},
            {"name": "filled", "size": "1Gi", "image": {"url": "https://images.example.com/a"}},
        ],
        "networks": [{"name": "eth0"}, {"name": "eth1", "networkName": "prod-network"}],
        "cdroms": [{"name": "iso", "size": "1Gi", "image": {"persistentVolumeClaim": "iso"}}],
        "cloudInit": {"userData": "#cloud-config\n"},
    })
}

/// The spec with a field of it changed. A list is changed by index.
fn changed(field: Field) -> Value {
    let item = |list: &str, index: usize, patch: Value| {
        let mut items = before()[list].clone();
        merge_patch(&mut items[index], &patch);
        json!({ list: items })
    };
    let without_first = |list: &str| json!({list: before()[list].as_array().unwrap()[1..]});
    let cpu = |patch: Value| json!({"resources": {"cpu": patch}});
    let memory = |patch: Value| json!({"resources": {"memory": patch}});
    let cloud_init = |patch: Value| json!({ "cloudInit": patch });
    let bootloader = |patch: Value| json!({"domain": {"firmware": {"bootloader": patch}}});
    let patch = match field {
        // The same numbers by another way.
        Field::Template => {
            json!({"template": null, "disks": with_root(), "resources": {"cpu": {"threads": 1}}})
        }
        Field::PowerState => json!({"powerState": "Stopped"}),
        Field::GuestShutdownStops => json!({"guestShutdownStops": true}),
        Field::DiskReclaimPolicy => item("disks", 0, json!({"reclaimPolicy": "Retain"})),
        Field::CdromImage => item(
            "cdroms",
            0,
            json!({"image": {"persistentVolumeClaim": "golden"}}),
        ),
        Field::DiskSize => item("disks", 0, json!({"size": "20Gi"})),
        Field::Cores => cpu(json!({"cores": 4})),
        Field::Threads => cpu(json!({"threads": 2})),
        Field::Sockets => cpu(json!({"sockets": 2})),
        Field::MaxSockets => cpu(json!({"maxSockets": 2})),
        Field::MemorySize => memory(json!({"size": "8Gi"})),
        Field::MaxMemorySize => memory(json!({"maxSize": "8Gi"})),
        Field::Disk => without_first("disks"),
        Field::DiskRemove => item(
            "disks",
            0,
            json!({"name": "root", "remove": true, "size": null}),
        ),
        Field::DiskBus => item("disks", 0, json!({"bus": "sata"})),
        Field::Nic => without_first("networks"),
        Field::NicNetwork => item("networks", 1, json!({"networkName": "storage-network"})),
        Field::NicModel => item("networks", 0, json!({"model": "e1000"})),
        Field::NicMac => item("networks", 0, json!({"macAddress": "52:54:00:00:00:01"})),
        Field::BootOrder => json!({"bootOrder": ["network", "disk"]}),
        Field::Cdrom => json!({"cdroms": []}),
        Field::Acpi => json!({"domain": {"features": {"acpi": false}}}),
        Field::Apic => json!({"domain": {"features": {"apic": false}}}),
        Field::Hyperv => json!({"domain": {"features": {"hyperv": true}}}),
        Field::NodeSelector => json!({"nodeSelector": {"zone": "a"}}),
        Field::UserData => cloud_init(json!({"userData": "#cloud-config\nhostname: x\n"})),
        Field::NetworkData => cloud_init(json!({"networkData": "version: 2\n"})),
        Field::MetaData => cloud_init(json!({"metaData": {"a": "b"}})),
        Field::UserDataSecret => cloud_init(json!({"userData": null, "secretRef": {"name": "x"}})),
        Field::NetworkDataSecret => cloud_init(json!({"networkDataSecretRef": {"name": "x"}})),
        Field::MachineType => json!({"domain": {"machine": {"type": "pc"}}}),
        Field::Efi => bootloader(json!({"efi": true})),
        Field::SecureBoot => bootloader(json!({"efi": true, "secureBoot": true})),
        Field::Backend => json!({"backend": "libvirt"}),
        Field::DiskStorageClass => item("disks", 0, json!({"storageClass": "fast-ssd"})),
        Field::DiskAccessMode => item(
            "disks",
            0,
            json!({"accessMode": "ReadWriteMany", "volumeMode": "Block"}),
        ),
        Field::DiskVolumeMode => item("disks", 0, json!({"volumeMode": "Block"})),
        Field::DiskImage => item("disks", 3, json!({"image": null})),
        Field::DiskSelector => item(
            "disks",
            2,
            json!({"selector": {"matchLabels": {"tier": "b"}}}),
        ),
        Field::DiskVolumeName => item("disks", 1, json!({"volumeName": "pv-2"})),
        Field::CdromSize => item("cdroms", 0, json!({"size": "2Gi"})),
        Field::CdromStorageClass => item("cdroms", 0, json!({"storageClass": "fast-ssd"})),
    };
    let mut spec = before();
    merge_patch(&mut spec, &patch);
    spec
}

/// What of a spec libvirt has, too.
fn on_libvirt(spec: &mut Value) {
    let has = |disk: &Value| disk.get("volumeName").or(disk.get("selector")).is_none();
    let disks = spec["disks"].as_array().unwrap().iter();
    let disks: Vec<_> = disks.filter(|disk| has(disk)).collect();
    let patch = json!({"backend": "libvirt", "disks": disks, "cdroms": null});
    merge_patch(spec, &patch);
}

fn with_root() -> Value {
    let mut disks = vec![json!({"name": "root", "size": "20Gi"})];
    disks.extend(before()["disks"].as_array().unwrap().iter().cloned());
    disks.into()
}

/// The answer to the change of a field, of a machine in a power state that stays.
fn answer(field: Field, power_state: &str) -> Result<Admitted, Verdict> {
    let (mut old, mut new) = (before(), changed(field));
    if field == Field::MachineType {
        on_libvirt(&mut old);
        on_libvirt(&mut new);
    }
    if field == Field::SecureBoot {
        old["domain"] = json!({"firmware": {"bootloader": {"efi": true}}});
    }
    if field != Field::PowerState {
        for spec in [&mut old, &mut new] {
            spec["powerState"] = json!(power_state);
        }
    }
    let stored = Question::of(ObjectKind::Machine, None).admit(&machine(&old));
    let stored = stored
        .unwrap_or_else(|verdict| panic!("{field:?}: {verdict:?}"))
        .stored;
    Question::of(ObjectKind::Machine, Some(&stored)).admit(&machine(&new))
}

fn is_told(lines: &[String], code: &str) -> bool {
    lines
        .iter()
        .any(|line| line.ends_with(&format!("[{code}]")))
}

#[test]
fn every_field_changes_as_its_policy_says() {
    for field in Field::ALL.iter().copied() {
        let policy = field.policy();
        let refused = |answer: Result<Admitted, Verdict>| {
            let violations = match answer {
                Ok(_) => vec![],
                Err(verdict) => verdict.findings.violations,
            };
            let of_the_change = violations.iter().filter(|it| it.code.family() == "update");
            assert_eq!(
                of_the_change.count(),
                violations.len(),
                "{field:?}: {violations:?}"
            );
            violations.len()
        };
        match policy {
            Policy::Live | Policy::Grows | Policy::Resolved => {
                let admitted = answer(field, "Running").unwrap();
                assert_eq!(admitted.warnings, [""; 0], "{field:?}");
            }
            Policy::Restart => {
                let admitted = answer(field, "Running").unwrap();
                assert!(is_told(&admitted.warnings, "RestartRequired"), "{field:?}");
                assert!(
                    admitted
                        .warnings
                        .iter()
                        .all(|line| line.contains("restart"))
                );
                let admitted = answer(field, "Stopped").unwrap();
                assert_eq!(admitted.warnings, [""; 0], "{field:?}");
            }
            Policy::NewInstance => {
                for power_state in ["Running", "Stopped"] {
                    let admitted = answer(field, power_state).unwrap();
                    assert!(
                        is_told(&admitted.warnings, "NewInstanceRequired"),
                        "{field:?}"
                    );
                    assert!(
                        admitted
                            .warnings
                            .iter()
                            .any(|line| line.contains("new instance"))
                    );
                }
            }
            Policy::Stopped => {
                assert_eq!(refused(answer(field, "Running")), 1, "{field:?}");
                assert_eq!(refused(answer(field, "Stopped")), 0, "{field:?}");
            }
            Policy::Fixed => {
                for power_state in ["Running", "Stopped"] {
                    assert!(refused(answer(field, power_state)) > 0, "{field:?}");
                }
            }
        }
    }
}
