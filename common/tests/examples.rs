//! The examples in `manifests/examples`, reviewed as the webhook does it.
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::path::Path;
use std::sync::Arc;

use common::admission::{ObjectKind, Request, Settings, Stage, Verdict, review};
use common::catalog::{ImageRow, NetworkRow, StaticCatalog, StorageClassRow};

fn reviewed(file: &str) -> Verdict {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../manifests/examples")
        .join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let object: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let catalog = StaticCatalog {
        storage_classes: ["standard", "fast-ssd", "replicated"]
            .map(|name| (name.to_owned(), StorageClassRow::default()))
            .into(),
        default_storage_class: Some("standard".to_owned()),
        networks: [(
            "default".to_owned(),
            ["prod-network", "storage-network"]
                .map(|name| (name.to_owned(), NetworkRow::default()))
                .into(),
        )]
        .into(),
        ..StaticCatalog::default()
    };
    let request = Request {
        kind: ObjectKind::Machine,
        stage: Stage::Mutate,
        namespace: "default",
        object: &object.to_string(),
        old: None,
    };
    review(&request, &catalog, &Settings::default())
}

#[test]
fn the_four_example_machines_are_accepted_with_the_documented_values() {
    for (file, cores, memory, disks) in [
        (
            "basic-vm.yaml",
            2,
            "4Gi",
            &[("root", "40Gi", "standard")][..],
        ),
        (
            "custom-vm.yaml",
            4,
            "8Gi",
            &[("root", "20Gi", "standard"), ("data", "100Gi", "fast-ssd")][..],
        ),
        (
            "networked-vm.yaml",
            2,
            "4Gi",
            &[("root", "40Gi", "standard")][..],
        ),
        (
            "cloud-init-vm.yaml",
            4,
            "8Gi",
            &[("root", "80Gi", "standard")][..],
        ),
    ] {
        let verdict = reviewed(file);
        assert_eq!(verdict.findings.violations, [], "{file}");
        let block: serde_json::Value = serde_json::from_str(&verdict.block.unwrap()).unwrap();
        assert_eq!(block["cpu"]["cores"], cores, "{file}");
        assert_eq!(block["memory"]["size"], memory, "{file}");
        let got: Vec<_> = block["disks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|disk| ["name", "size", "storageClass"].map(|key| disk[key].as_str().unwrap()))
            .collect();
        let expected: Vec<_> = disks.iter().map(|(a, b, c)| [*a, *b, *c]).collect();
        assert_eq!(got, expected, "{file}");
    }
}

#[test]
fn every_fault_of_the_faulty_example_is_reported_with_the_documented_text() {
    let verdict = reviewed("faulty/machine.yaml");
    let violations = verdict.findings.violations.iter();
    let messages: Vec<_> = violations.map(|fault| format!("* {fault}")).collect();
    // kubectl prints a heading, then a bullet for each violation.
    let answer = include_str!("../../manifests/examples/faulty/machine.expected.txt");
    let (heading, bullets) = answer.split_once('\n').unwrap();
    assert_eq!(heading.trim_end(), "The Machine \"faulty-vm\" is invalid:");
    assert_eq!(messages, bullets.lines().collect::<Vec<_>>());
}

/// The objects of a file with several documents.
fn documents(file: &str) -> Vec<serde_json::Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../manifests/examples")
        .join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

#[test]
fn the_example_images_are_accepted_and_the_machine_boots_from_one_of_them() {
    let mut catalog = StaticCatalog {
        storage_classes: [("standard".to_owned(), StorageClassRow::default())].into(),
        default_storage_class: Some("standard".to_owned()),
        ..StaticCatalog::default()
    };
    let reviewed = |kind, object: &serde_json::Value, catalog: &StaticCatalog| {
        let request = Request {
            kind,
            stage: Stage::Mutate,
            namespace: "default",
            object: &object.to_string(),
            old: None,
        };
        review(&request, catalog, &Settings::default())
    };
    for image in documents("images/images.yaml") {
        let verdict = reviewed(ObjectKind::MachineImage, &image, &catalog);
        assert_eq!(verdict.findings.violations, []);
        let name = image["metadata"]["name"].as_str().unwrap();
        let spec = serde_json::from_value(image["spec"].clone()).unwrap();
        let row = ImageRow::new(name, &spec).unwrap();
        catalog.images.insert(name.to_owned(), Arc::new(row));
    }
    let [machine] = &documents("images/machine.yaml")[..] else {
        panic!("one Machine");
    };
    let verdict = reviewed(ObjectKind::Machine, machine, &catalog);
    assert_eq!(verdict.findings.violations, []);
    let block: serde_json::Value = serde_json::from_str(&verdict.block.unwrap()).unwrap();
    assert_eq!(block["firmware"]["type"], "efi");
    assert_eq!(block["disks"][0]["image"]["name"], "debian-13");
}
