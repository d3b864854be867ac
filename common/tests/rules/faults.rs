//! Faults add up: however many there are, in lists of whatever order, each is told once, at its
//! place, and nothing else is.

use std::collections::BTreeSet;

use common::admission::{ObjectKind, Stage};
use common::code::Code;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::{Question, machine, merge_patch, places};

/// A Machine with something of everything, every value of it the user's own.
fn sound() -> Value {
    json!({
        "template": "small",
        "powerState": "Running",
        "resources": {"cpu": {"cores": 2, "threads": 1}, "memory": {"size": "4Gi"}},
        "disks": [
            {"name": "root", "size": "30Gi"},
            {"name": "data", "size": "1Gi"},
            {"name": "log", "size": "1Gi"},
            {"name": "seed", "size": "1Gi", "image": {"url": "https://images.example.com/seed"}},
            {"name": "spare", "size": "1Gi"},
        ],
        "networks": [
            {"name": "eth0"},
            {"name": "eth1", "networkName": "prod-network"},
            {"name": "eth2", "networkName": "storage-network"},
            {"name": "eth3", "networkName": "prod-network"},
        ],
        "bootOrder": ["disk", "cdrom", "network"],
        "cdroms": [
            {"name": "iso", "size": "1Gi", "image": {"persistentVolumeClaim": "iso"}},
            {"name": "tools", "size": "1Gi", "image": {"persistentVolumeClaim": "tools"}},
        ],
        "cloudInit": {"userData": "#cloud-config"},
        "domain": {"features": {"acpi": true}},
        "nodeSelector": {"zone": "a"},
    })
}

/// One thing that can be wrong with [`sound`], whatever else is.
#[derive(Clone, Copy, Debug)]
struct Fault {
    /// List and name of the item it is in; empty for the spec itself.
    item: &'static str,
    /// A JSON merge patch of the item or the spec.
    patch: &'static str,
    /// The field it is told at, below the item or the spec.
    field: &'static str,
    code: Code,
}

const fn fault(item: &'static str, patch: &'static str, field: &'static str, code: Code) -> Fault {
    Fault {
        item,
        patch,
        field,
        code,
    }
}

/// Faults of every family, none at the field of another.
const FAULTS: &[Fault] = &[
    fault(
        "",
        r#"{"template": "smal"}"#,
        "template",
        Code::TemplateNotFound,
    ),
    fault(
        "",
        r#"{"backend": "KubeVirt"}"#,
        "backend",
        Code::UnsupportedBackend,
    ),
    fault(
        "",
        r#"{"powerState": "On"}"#,
        "powerState",
        Code::UnsupportedPowerState,
    ),
    fault(
        "",
        r#"{"guestShutdownStops": "no"}"#,
        "guestShutdownStops",
        Code::WrongType,
    ),
    fault(
        "",
        r#"{"resources": {"cpu": {"cores": 0}}}"#,
        "resources.cpu.cores",
        Code::InvalidCpuCount,
    ),
    fault(
        "",
        r#"{"resources": {"cpu": {"threads": "two"}}}"#,
        "resources.cpu.threads",
        Code::WrongType,
    ),
    fault(
        "",
        r#"{"resources": {"memory": {"size": "4"}}}"#,
        "resources.memory.size",
        Code::UnitMissing,
    ),
    fault(
        "",
        r#"{"resources": {"memory": {"maxSize": "8GB"}}}"#,
        "resources.memory.maxSize",
        Code::InvalidQuantity,
    ),
    fault(
        "disks/root",
        r#"{"storageClass": "gone"}"#,
        "storageClass",
        Code::StorageClassNotFound,
    ),
    fault(
        "disks/root",
        r#"{"bus": "ide"}"#,
        "bus",
        Code::UnsupportedBus,
    ),
    fault(
        "disks/data",
        r#"{"size": "1Ki"}"#,
        "size",
        Code::DiskTooSmall,
    ),
    fault(
        "disks/data",
        r#"{"accessMode": "RWX"}"#,
        "accessMode",
        Code::UnsupportedAccessMode,
    ),
    fault(
        "disks/log",
        r#"{"name": "data"}"#,
        "name",
        Code::DuplicateDiskName,
    ),
    fault(
        "disks/log",
        r#"{"reclaimPolicy": "Keep"}"#,
        "reclaimPolicy",
        Code::UnsupportedReclaimPolicy,
    ),
    fault(
        "disks/seed",
        r#"{"image": {"url": "ftp://a/b"}}"#,
        "image.url",
        Code::UnsupportedImageUrl,
    ),
    fault(
        "disks/seed",
        r#"{"image": {"checksum": "md5:1"}}"#,
        "image.checksum",
        Code::InvalidImageChecksum,
    ),
    fault(
        "disks/seed",
        r#"{"name": "Seed"}"#,
        "name",
        Code::InvalidDiskName,
    ),
    fault(
        "disks/spare",
        r#"{"volumeName": "PV 1"}"#,
        "volumeName",
        Code::InvalidObjectName,
    ),
    fault(
        "disks/spare",
        r#"{"volumeMode": "Raw"}"#,
        "volumeMode",
        Code::UnsupportedVolumeMode,
    ),
    fault(
        "disks/spare",
        r#"{"name": "foreign"}"#,
        "name",
        Code::NameInUse,
    ),
    fault(
        "networks/eth3",
        r#"{"macAddress": "52:54:00:00:00:99"}"#,
        "macAddress",
        Code::MacInUse,
    ),
    fault(
        "networks/eth0",
        r#"{"model": "vmxnet3"}"#,
        "model",
        Code::UnsupportedNicModel,
    ),
    fault(
        "networks/eth0",
        r#"{"macAddress": "01:00:5e:00:00:01"}"#,
        "macAddress",
        Code::MacNotUnicast,
    ),
    fault(
        "networks/eth1",
        r#"{"name": "eth 1"}"#,
        "name",
        Code::InvalidNicName,
    ),
    fault(
        "networks/eth1",
        r#"{"macAddress": "none"}"#,
        "macAddress",
        Code::InvalidMac,
    ),
    fault(
        "networks/eth2",
        r#"{"networkName": "Storage"}"#,
        "networkName",
        Code::InvalidObjectName,
    ),
    fault(
        "",
        r#"{"bootOrder": ["disk", "floppy", "cdrom", "network"]}"#,
        "bootOrder[1]",
        Code::UnsupportedBootDevice,
    ),
    fault(
        "cdroms/iso",
        r#"{"size": "many"}"#,
        "size",
        Code::InvalidQuantity,
    ),
    fault(
        "cdroms/iso",
        r#"{"image": {"persistentVolumeClaim": "A B"}}"#,
        "image.persistentVolumeClaim",
        Code::InvalidObjectName,
    ),
    fault(
        "cdroms/tools",
        r#"{"name": "cloudinitdisk"}"#,
        "name",
        Code::ReservedDiskName,
    ),
    fault(
        "",
        r#"{"cloudInit": {"secretRef": {"name": ""}}}"#,
        "cloudInit.secretRef.name",
        Code::SecretNameRequired,
    ),
    fault(
        "",
        r#"{"domain": {"machine": {"type": "pc-q53"}}}"#,
        "domain.machine.type",
        Code::UnsupportedMachineType,
    ),
    fault(
        "",
        r#"{"domain": {"features": {"acpi": false, "hyperv": true}}}"#,
        "domain.features.hyperv",
        Code::HypervNeedsAcpi,
    ),
    fault(
        "",
        r#"{"domain": {"firmware": {"bootloader": {"efi": false, "secureBoot": true}}}}"#,
        "domain.firmware.bootloader.secureBoot",
        Code::SecureBootNeedsEfi,
    ),
    fault(
        "",
        r#"{"nodeSelector": {"zone": "a/b"}}"#,
        "nodeSelector[zone]",
        Code::InvalidLabel,
    ),
];

/// Lists whose order is the user's choice.
const LISTS: [&str; 3] = ["disks", "networks", "cdroms"];

/// [`sound`] with its lists in another order.
fn reordered() -> impl Strategy<Value = Value> {
    let list = |list: &str| Just(sound()[list].as_array().unwrap().clone()).prop_shuffle();
    LISTS.map(list).prop_map(|lists| {
        let mut spec = sound();
        for (name, list) in LISTS.into_iter().zip(lists) {
            spec[name] = list.into();
        }
        spec
    })
}

fn index_of(spec: &Value, list: &str, name: &str) -> usize {
    let items = spec[list].as_array().unwrap();
    items.iter().position(|item| item["name"] == name).unwrap()
}

/// Brings faults into a spec, and gives the places and codes they are to be told with.
fn inject(spec: &Value, faults: &[Fault]) -> (Value, BTreeSet<(String, Code)>) {
    let mut result = spec.clone();
    let mut expected = BTreeSet::new();
    for fault in faults {
        let change: Value = serde_json::from_str(fault.patch).unwrap();
        let place = if let Some((list, name)) = fault.item.split_once('/') {
            let own = index_of(spec, list, name);
            merge_patch(&mut result[list][own], &change);
            // Of two items with one name, the later one is told.
            let told = if fault.code == Code::DuplicateDiskName {
                own.max(index_of(spec, list, change["name"].as_str().unwrap()))
            } else {
                own
            };
            format!("spec.{list}[{told}].{}", fault.field)
        } else {
            merge_patch(&mut result, &change);
            format!("spec.{}", fault.field)
        };
        expected.insert((place, fault.code));
    }
    (result, expected)
}

/// What is told is what is expected, each once, by both stages; what only an update is told of, beside
/// it.
fn told_exactly(
    question: &Question<'_>,
    object: &Value,
    expected: &BTreeSet<(String, Code)>,
) -> Result<(), TestCaseError> {
    let mutating = question.ask(Stage::Mutate, object);
    let validating = question.ask(Stage::Validate, object);
    prop_assert_eq!(
        &mutating.findings.violations,
        &validating.findings.violations
    );
    let mut told = places(&mutating);
    told.retain(|(_, code)| code.family() != "update");
    prop_assert_eq!(told.len(), expected.len(), "{:#?}\n{:#?}", told, expected);
    prop_assert_eq!(&told.into_iter().collect::<BTreeSet<_>>(), expected);
    Ok(())
}

proptest! {
    #[test]
    fn faults_add_up(
        spec in reordered(),
        chosen in proptest::collection::vec(any::<bool>(), FAULTS.len()),
    ) {
        let faults = FAULTS.iter().zip(chosen);
        let faults: Vec<_> = faults
            .filter_map(|(fault, chosen)| chosen.then_some(*fault))
            .collect();
        prop_assume!(!faults.is_empty());
        let (faulty, expected) = inject(&spec, &faults);
        let created = machine(&faulty);
        told_exactly(&Question::of(ObjectKind::Machine, None), &created, &expected)?;

        let stored = Question::of(ObjectKind::Machine, None).admit(&machine(&spec));
        let stored = stored.unwrap().stored;
        let mut updated = machine(&faulty);
        updated["spec"]["normalized"] = stored["spec"]["normalized"].clone();
        let update = Question::of(ObjectKind::Machine, Some(&stored));
        told_exactly(&update, &updated, &expected)?;
    }
}

/// A set of faults that fails although each is told alone has two that are not independent.
#[test]
fn every_fault_is_told_alone() {
    for fault in FAULTS {
        let (faulty, expected) = inject(&sound(), &[*fault]);
        let question = Question::of(ObjectKind::Machine, None);
        let told = places(&question.ask(Stage::Mutate, &machine(&faulty)));
        assert_eq!(told, Vec::from_iter(expected), "{fault:?}");
    }
}
