//! What holds for any object.

use std::collections::{BTreeMap, BTreeSet};

use common::admission::{ObjectKind, Settings, Stage, Verdict};
use common::code::Code;
use common::normalize::intent_hash;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::harness::{Question, catalog, machine, merge_patch, object};
use crate::machines::{any_json, machine_specs};
use crate::paths;

const KINDS: [ObjectKind; 3] = [
    ObjectKind::Machine,
    ObjectKind::MachineTemplate,
    ObjectKind::NetworkConfiguration,
];

fn with_question<T>(
    kind: ObjectKind,
    old: Option<&Value>,
    ask: impl FnOnce(&Question<'_>) -> T,
) -> T {
    let settings = Settings::default();
    ask(&Question {
        kind,
        old,
        catalog: catalog("default"),
        settings: &settings,
    })
}

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
    /// What it changes: a JSON merge patch of the spec, or of the item that `item` names.
    patch: &'static str,
    /// The list and name of the item it is in.
    item: Option<(&'static str, &'static str)>,
    /// The field it is told at, below the spec or the item.
    field: &'static str,
    code: Code,
}

const fn in_spec(patch: &'static str, field: &'static str, code: Code) -> Fault {
    Fault {
        patch,
        item: None,
        field,
        code,
    }
}

const fn in_disk(
    name: &'static str,
    patch: &'static str,
    field: &'static str,
    code: Code,
) -> Fault {
    Fault {
        patch,
        item: Some(("disks", name)),
        field,
        code,
    }
}

const fn in_network(
    name: &'static str,
    patch: &'static str,
    field: &'static str,
    code: Code,
) -> Fault {
    Fault {
        patch,
        item: Some(("networks", name)),
        field,
        code,
    }
}

const fn in_cdrom(
    name: &'static str,
    patch: &'static str,
    field: &'static str,
    code: Code,
) -> Fault {
    Fault {
        patch,
        item: Some(("cdroms", name)),
        field,
        code,
    }
}

/// Faults of every family, none at the field of another.
const FAULTS: &[Fault] = &[
    in_spec(
        r#"{"template": "smal"}"#,
        "template",
        Code::TemplateNotFound,
    ),
    in_spec(
        r#"{"backend": "KubeVirt"}"#,
        "backend",
        Code::UnsupportedBackend,
    ),
    in_spec(
        r#"{"powerState": "On"}"#,
        "powerState",
        Code::UnsupportedPowerState,
    ),
    in_spec(
        r#"{"guestShutdownStops": "no"}"#,
        "guestShutdownStops",
        Code::WrongType,
    ),
    in_spec(
        r#"{"resources": {"cpu": {"cores": 0}}}"#,
        "resources.cpu.cores",
        Code::InvalidCpuCount,
    ),
    in_spec(
        r#"{"resources": {"cpu": {"threads": "two"}}}"#,
        "resources.cpu.threads",
        Code::WrongType,
    ),
    in_spec(
        r#"{"resources": {"memory": {"size": "4"}}}"#,
        "resources.memory.size",
        Code::UnitMissing,
    ),
    in_spec(
        r#"{"resources": {"memory": {"maxSize": "8GB"}}}"#,
        "resources.memory.maxSize",
        Code::InvalidQuantity,
    ),
    in_disk(
        "root",
        r#"{"storageClass": "gone"}"#,
        "storageClass",
        Code::StorageClassNotFound,
    ),
    in_disk("root", r#"{"bus": "ide"}"#, "bus", Code::UnsupportedBus),
    in_disk("data", r#"{"size": "1Ki"}"#, "size", Code::DiskTooSmall),
    in_disk(
        "data",
        r#"{"accessMode": "RWX"}"#,
        "accessMode",
        Code::UnsupportedAccessMode,
    ),
    in_disk(
        "log",
        r#"{"name": "data"}"#,
        "name",
        Code::DuplicateDiskName,
    ),
    in_disk(
        "log",
        r#"{"reclaimPolicy": "Keep"}"#,
        "reclaimPolicy",
        Code::UnsupportedReclaimPolicy,
    ),
    in_disk(
        "seed",
        r#"{"image": {"url": "ftp://a/b"}}"#,
        "image.url",
        Code::UnsupportedImageUrl,
    ),
    in_disk(
        "seed",
        r#"{"image": {"checksum": "md5:1"}}"#,
        "image.checksum",
        Code::InvalidImageChecksum,
    ),
    in_disk("seed", r#"{"name": "Seed"}"#, "name", Code::InvalidDiskName),
    in_disk(
        "spare",
        r#"{"volumeName": "PV 1"}"#,
        "volumeName",
        Code::InvalidObjectName,
    ),
    in_disk(
        "spare",
        r#"{"volumeMode": "Raw"}"#,
        "volumeMode",
        Code::UnsupportedVolumeMode,
    ),
    in_network(
        "eth0",
        r#"{"model": "vmxnet3"}"#,
        "model",
        Code::UnsupportedNicModel,
    ),
    in_network(
        "eth0",
        r#"{"macAddress": "01:00:5e:00:00:01"}"#,
        "macAddress",
        Code::MacNotUnicast,
    ),
    in_network("eth1", r#"{"name": "eth 1"}"#, "name", Code::InvalidNicName),
    in_network(
        "eth1",
        r#"{"macAddress": "none"}"#,
        "macAddress",
        Code::InvalidMac,
    ),
    in_network(
        "eth2",
        r#"{"networkName": "Storage"}"#,
        "networkName",
        Code::InvalidObjectName,
    ),
    in_spec(
        r#"{"bootOrder": ["disk", "floppy", "cdrom", "network"]}"#,
        "bootOrder[1]",
        Code::UnsupportedBootDevice,
    ),
    in_cdrom("iso", r#"{"size": "many"}"#, "size", Code::InvalidQuantity),
    in_cdrom(
        "iso",
        r#"{"image": {"persistentVolumeClaim": "A B"}}"#,
        "image.persistentVolumeClaim",
        Code::InvalidObjectName,
    ),
    in_cdrom(
        "tools",
        r#"{"name": "cloudinitdisk"}"#,
        "name",
        Code::ReservedDiskName,
    ),
    in_spec(
        r#"{"cloudInit": {"secretRef": {"name": ""}}}"#,
        "cloudInit.secretRef.name",
        Code::SecretNameRequired,
    ),
    in_spec(
        r#"{"domain": {"machine": {"type": "pc-q53"}}}"#,
        "domain.machine.type",
        Code::UnsupportedMachineType,
    ),
    in_spec(
        r#"{"domain": {"features": {"acpi": false, "hyperv": true}}}"#,
        "domain.features.hyperv",
        Code::HypervNeedsAcpi,
    ),
    in_spec(
        r#"{"domain": {"firmware": {"bootloader": {"efi": false, "secureBoot": true}}}}"#,
        "domain.firmware.bootloader.secureBoot",
        Code::SecureBootNeedsEfi,
    ),
    in_spec(
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
    let mut faulty = spec.clone();
    let mut expected = BTreeSet::new();
    for fault in faults {
        let patch: Value = serde_json::from_str(fault.patch).unwrap();
        let path = match fault.item {
            None => {
                merge_patch(&mut faulty, &patch);
                format!("spec.{}", fault.field)
            }
            Some((list, name)) => {
                let own = index_of(spec, list, name);
                merge_patch(&mut faulty[list][own], &patch);
                // Of two items with one name, the later one is told.
                let told = if fault.code == Code::DuplicateDiskName {
                    own.max(index_of(spec, list, patch["name"].as_str().unwrap()))
                } else {
                    own
                };
                format!("spec.{list}[{told}].{}", fault.field)
            }
        };
        expected.insert((path, fault.code));
    }
    (faulty, expected)
}

fn places(verdict: &Verdict) -> Vec<(String, Code)> {
    let violations = verdict.findings.violations.iter();
    violations
        .map(|violation| (violation.field.clone(), violation.code))
        .collect()
}

/// The faults that are told are those that are expected, each once, in the order of the fields, by
/// both stages.
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
    let told = places(&mutating);
    prop_assert_eq!(told.len(), expected.len(), "{:#?}\n{:#?}", told, expected);
    prop_assert_eq!(&told.into_iter().collect::<BTreeSet<_>>(), expected);
    Ok(())
}

proptest! {
    /// Any faults, in lists of any order, give one violation each, at its place.
    #[test]
    fn faults_add_up(spec in reordered(), chosen in proptest::collection::vec(any::<bool>(), FAULTS.len())) {
        let faults = FAULTS.iter().zip(chosen).filter_map(|(fault, chosen)| chosen.then_some(*fault));
        let (faulty, expected) = inject(&spec, &faults.collect::<Vec<_>>());
        prop_assume!(!expected.is_empty());
        let created = machine(&faulty);
        with_question(ObjectKind::Machine, None, |question| told_exactly(question, &created, &expected))?;

        let stored = with_question(ObjectKind::Machine, None, |question| question.admit(&machine(&spec)));
        let stored = stored.unwrap().stored;
        let mut updated = machine(&faulty);
        updated["spec"]["normalized"] = stored["spec"]["normalized"].clone();
        with_question(ObjectKind::Machine, Some(&stored), |question| told_exactly(question, &updated, &expected))?;
    }
}

/// Each fault alone is told as it should be: a subset that fails has two that are not independent.
#[test]
fn every_fault_is_told_alone() {
    for fault in FAULTS {
        let (faulty, expected) = inject(&sound(), &[*fault]);
        let verdict = with_question(ObjectKind::Machine, None, |question| {
            question.ask(Stage::Mutate, &machine(&faulty))
        });
        assert_eq!(
            places(&verdict),
            expected.into_iter().collect::<Vec<_>>(),
            "{fault:?}"
        );
    }
}

proptest! {
    /// What was admitted stays as it is: sent again with its block or without, it is written as it
    /// was; and another spec over it is judged as if it were new, but for what it may keep.
    #[test]
    fn what_is_stored_stays(spec in machine_specs(), other in machine_specs()) {
        let stored = with_question(ObjectKind::Machine, None, |question| question.admit(&machine(&spec)));
        prop_assume!(stored.is_ok());
        let stored = stored.unwrap().stored;
        let same = with_question(ObjectKind::Machine, Some(&stored), |question| {
            [question.admit(&stored), question.admit(&machine(&spec))]
        });
        for same in same {
            let same = same.unwrap();
            prop_assert_eq!(&same.stored, &stored);
            prop_assert_eq!(same.warnings.len() + same.notes.len(), 0);
        }
        let (created, updated) = (
            with_question(ObjectKind::Machine, None, |question| question.admit(&machine(&other))),
            with_question(ObjectKind::Machine, Some(&stored), |question| question.admit(&machine(&other))),
        );
        // Only the backend binds a Machine to what it was.
        match (created, updated) {
            (Ok(created), Ok(updated)) => {
                let (mut created, mut updated) = (created.stored, updated.stored);
                let kept = updated["spec"]["normalized"]["backend"].clone();
                if kept == created["spec"]["normalized"]["backend"] {
                    for block in [&mut created, &mut updated] {
                        block["spec"]["normalized"]["template"].take();
                    }
                    prop_assert_eq!(created, updated);
                }
            }
            (Ok(_), Err(refused)) => {
                let about_backends = [
                    Code::BackendChanged,
                    Code::ImageVolumeNeedsLibvirt,
                    Code::EmptyCdrom,
                    Code::CdromSizeRequired,
                    Code::MachineTypeNeedsLibvirt,
                ];
                let told = places(&refused);
                prop_assert!(told.iter().any(|(_, code)| about_backends.contains(code)), "{:?}", told);
            }
            (Err(_), Ok(_) | Err(_)) => {}
        }
    }

    /// Whatever is sent gets a verdict, the same from both stages, and each fault has a place.
    #[test]
    fn any_json_gets_a_verdict(object in any_json(), old in proptest::option::of(any_json()), kind in select(&KINDS)) {
        judged(kind, &object, old.as_ref())?;
    }

    /// So does a Machine with anything in the place of any of its values.
    #[test]
    fn any_value_anywhere_gets_a_verdict(
        spec in machine_specs(),
        place in any::<Index>(),
        value in any_json(),
        kind in select(&KINDS),
        is_update in any::<bool>(),
    ) {
        let whole = object(kind, &json!({}), &spec);
        let mut changed = whole.clone();
        replace(&mut changed, place, value);
        judged(kind, &changed, is_update.then_some(&whole))?;
    }

    /// What is no JSON at all is refused.
    #[test]
    fn any_text_gets_a_verdict(text in any::<String>(), kind in select(&KINDS)) {
        let verdict = with_question(kind, None, |question| question.ask_text(Stage::Mutate, &text));
        prop_assert!(!verdict.findings.accepted());
    }

    /// The digest of an intent does not depend on the order in which its author writes the fields.
    #[test]
    fn the_digest_ignores_the_order_of_keys(spec in machine_specs()) {
        let there: Value = serde_json::from_str(&written(&spec, false)).unwrap();
        let back: Value = serde_json::from_str(&written(&spec, true)).unwrap();
        prop_assert_eq!(intent_hash(&there, None), intent_hash(&back, None));
    }

    /// It depends on everything else.
    #[test]
    fn the_digest_tells_intents_apart(spec in machine_specs(), other in machine_specs()) {
        prop_assert_eq!(spec == other, intent_hash(&spec, None) == intent_hash(&other, None));
    }
}

/// A verdict that both stages agree on, at places that are there.
fn judged(kind: ObjectKind, object: &Value, old: Option<&Value>) -> Result<(), TestCaseError> {
    let (mutating, validating) = with_question(kind, old, |question| {
        (
            question.ask(Stage::Mutate, object),
            question.ask(Stage::Validate, object),
        )
    });
    for violation in &mutating.findings.violations {
        prop_assert!(
            paths::resolves(kind, object, &violation.field),
            "{} of {}",
            violation,
            object
        );
    }
    prop_assert_eq!(validating.block, None);
    // A name that is yet to be made is judged once it is there.
    let has_name = object["metadata"]["name"]
        .as_str()
        .is_some_and(|name| !name.is_empty());
    match (mutating.findings.accepted(), has_name) {
        (true, true) => {
            let admitted = with_question(kind, old, |question| question.admit(object));
            prop_assert!(admitted.is_ok());
        }
        (false, true) => {
            prop_assert_eq!(
                &mutating.findings.violations,
                &validating.findings.violations
            );
            prop_assert_eq!(mutating.block, None);
        }
        (_, false) => {}
    }
    Ok(())
}

/// Puts `value` in the place of some value inside `object`.
fn replace(object: &mut Value, place: Index, value: Value) {
    fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
        let mut below = |key: &str, value: &Value| {
            let key = key.replace('~', "~0").replace('/', "~1");
            let at = format!("{at}/{key}");
            all.push(at.clone());
            pointers(value, &at, all);
        };
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| below(key, value)),
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(index, value)| below(&index.to_string(), value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut all = vec![];
    pointers(object, "", &mut all);
    *object.pointer_mut(&all[place.index(all.len())]).unwrap() = value;
}

/// JSON text with the keys of every object in ascending or descending order.
fn written(value: &Value, descending: bool) -> String {
    let list = |items: Vec<String>, open, close| format!("{open}{}{close}", items.join(","));
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.iter().collect();
            let field = |(key, value): (&String, &Value)| {
                format!("{}:{}", json!(key), written(value, descending))
            };
            let fields = fields.into_iter().map(field);
            let fields = if descending {
                fields.rev().collect()
            } else {
                fields.collect()
            };
            list(fields, '{', '}')
        }
        Value::Array(items) => list(
            items.iter().map(|item| written(item, descending)).collect(),
            '[',
            ']',
        ),
        scalar => scalar.to_string(),
    }
}
