//! The cost of a review and of its parts: `cargo bench -p common`.
//!
//! ```text
//! text ──parse──▶ intent ──normalize──▶ block        review: all steps, with every rule
//! ```
//! `rules` reviews Machines that each give one family of rules as much work as possible; `bare` is the
//! smallest valid Machine, for comparison.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on has failed"
)]

use std::hint::black_box;
use std::sync::Arc;

use common::admission::{ObjectKind, Request, Settings, Stage, Verdict, review};
use common::api::choice::TemplateSource;
use common::api::machine::MachineSpec;
use common::catalog::{NetworkRow, StaticCatalog, StorageClassRow, TemplateRow};
use common::mac::Mac;
use common::normalize::{Intent, intent_hash, pins_of};
use common::quantity::Bytes;
use common::rules::normalize;
use common::violation::Findings;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use serde::Deserialize as _;
use serde_json::{Value, json};

fn object(spec: &Value) -> Value {
    json!({
        "apiVersion": "vitistack.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": spec,
    })
}

/// A typical Machine: a template and a few values of its own.
fn machine(cores: u32) -> Value {
    object(&json!({
        "template": "web",
        "resources": {"cpu": {"cores": cores}, "memory": {"size": "8Gi"}},
        "disks": [{"name": "data", "size": "100Gi", "storageClass": "fast-ssd"}],
        "networks": [{"name": "eth0", "networkName": "prod"}],
    }))
}

/// A Machine with a fault in nearly every value.
fn faulty() -> Value {
    object(&json!({
        "template": "wbe",
        "powerState": "On",
        "resources": {"cpu": {"cores": 0}, "memory": {"size": "8GB"}},
        "disks": [
            {"name": "data", "size": "100", "storageClass": "fast-sdd", "bus": "ide"},
            {"name": "data", "size": "1Gi", "accessMode": "RWX"},
        ],
        "networks": [
            {"name": "eth0", "networkName": "prd", "model": "vmxnet3"},
            {"name": "eth1", "macAddress": "01:00:5e:00:00:01"},
        ],
        "bootOrder": ["disk", "floppy"],
        "domain": {"firmware": {"bootloader": {"secureBoot": true}}},
    }))
}

fn catalog() -> StaticCatalog {
    let content = json!({
        "resources": {"cpu": {"cores": 2}, "memory": {"size": "4Gi"}},
        "disks": [{"name": "root", "size": "40Gi", "storageClass": "default"}],
    });
    let template = TemplateRow {
        source: TemplateSource::MachineTemplate,
        deprecated: None,
        content: serde_json::from_value(content).unwrap(),
    };
    let mut catalog = StaticCatalog {
        default_storage_class: Some("standard".to_owned()),
        ..StaticCatalog::default()
    };
    catalog
        .templates
        .insert("web".to_owned(), Arc::new(template));
    for class in ["standard", "fast-ssd"] {
        let row = StorageClassRow {
            allows_expansion: true,
        };
        catalog.storage_classes.insert(class.to_owned(), row);
    }
    let networks = [("prod".to_owned(), NetworkRow::default())].into();
    catalog.networks.insert("default".to_owned(), networks);
    catalog
}

fn reviewed(stage: Stage, object: &str, old: Option<&str>, catalog: &StaticCatalog) -> Verdict {
    let request = Request {
        kind: ObjectKind::Machine,
        stage,
        namespace: "default",
        object,
        old,
    };
    review(&request, catalog, &Settings::default())
}

/// The Machine with the block it resolves to.
fn normalized(mut machine: Value, catalog: &StaticCatalog) -> Value {
    let verdict = reviewed(Stage::Mutate, &machine.to_string(), None, catalog);
    machine["spec"]["normalized"] = verdict.block.unwrap().parse().unwrap();
    machine
}

fn parse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    let text = machine(4)["spec"].to_string();
    group.bench_function("quantity", |bencher| {
        bencher.iter(|| black_box("20.5Gi").parse::<Bytes>().unwrap());
    });
    group.bench_function("mac", |bencher| {
        bencher.iter(|| black_box("02-AA-bb-00-00-01").parse::<Mac>().unwrap());
    });
    group.bench_function("spec", |bencher| {
        bencher.iter(|| serde_json::from_str::<MachineSpec>(black_box(&text)).unwrap());
    });
    group.finish();
}

fn normalization(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("normalize");
    let machine = normalized(machine(4), &catalog());
    let spec = MachineSpec::deserialize(&machine["spec"]).unwrap();
    let block = serde_json::from_value(machine["spec"]["normalized"].clone()).unwrap();
    let pins = pins_of(&block);
    let hash = intent_hash(&machine["spec"], None);
    let intent = Intent {
        spec: &spec,
        template_label: None,
        hash: &hash,
    };
    group.bench_function("hash", |bencher| {
        bencher.iter(|| intent_hash(black_box(&machine["spec"]), None));
    });
    group.bench_function("block", |bencher| {
        bencher.iter_batched(
            Findings::default,
            |mut findings| normalize(black_box(&intent), &pins, &mut findings).unwrap(),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn reviews(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("review");
    let catalog = catalog();
    let sent = machine(4).to_string();
    let stored = normalized(machine(4), &catalog).to_string();
    let changed = {
        let mut changed = normalized(machine(4), &catalog);
        changed["spec"]["resources"]["cpu"]["cores"] = json!(8);
        changed.to_string()
    };
    let faulty = faulty().to_string();
    for (name, stage, object, old, accepted) in [
        ("create, mutate", Stage::Mutate, &sent, None, true),
        ("create, validate", Stage::Validate, &stored, None, true),
        ("unchanged", Stage::Mutate, &stored, Some(&stored), true),
        ("update", Stage::Mutate, &changed, Some(&stored), true),
        ("faulty", Stage::Mutate, &faulty, None, false),
    ] {
        let reviewed = || reviewed(stage, black_box(object), old.map(String::as_str), &catalog);
        assert_eq!(reviewed().findings.accepted(), accepted, "{name}");
        group.bench_function(name, |bencher| bencher.iter(reviewed));
    }
    group.finish();
}

/// Machines with the most values that a family of rules checks.
fn rules(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rules");
    let mut catalog = catalog();
    for index in 0..1000 {
        let row = catalog.templates["web"].clone();
        catalog.templates.insert(format!("team-{index}"), row);
    }
    let list = |count: u64, item: fn(u64) -> Value| (0..count).map(item).collect::<Vec<_>>();
    let disks = list(
        64,
        |index| json!({"name": format!("d{index}"), "size": "1Gi", "storageClass": "standard", "image": {"url": "https://images.example.com/a.qcow2"}}),
    );
    let cards = list(
        16,
        |index| json!({"name": format!("eth{index}"), "networkName": "prod", "macAddress": format!("52:54:00:00:00:{index:02x}")}),
    );
    let files = list(
        100,
        |index| json!({"path": format!("/etc/file-{index}"), "content": "text", "permissions": "0644"}),
    );
    let memory = json!({"memory": {"size": "4Gi"}});
    let user_data = format!("#cloud-config\n{}", json!({"write_files": files}));
    for (name, accepted, spec) in [
        ("bare", true, json!({"resources": memory})),
        ("references", false, json!({"template": "team-77x"})),
        ("disks", true, json!({"resources": memory, "disks": disks})),
        (
            "networks",
            true,
            json!({"resources": memory, "networks": cards}),
        ),
        (
            "sizing and firmware",
            true,
            json!({
                "resources": {
                    "cpu": {"cores": 4, "threads": 2, "sockets": 2, "maxSockets": 8},
                    "memory": {"size": "4Gi", "maxSize": "16Gi"},
                },
                "domain": {
                    "machine": {"type": "q35"},
                    "firmware": {"bootloader": {"efi": true, "secureBoot": true}},
                    "features": {"acpi": true, "apic": true, "hyperv": true},
                },
            }),
        ),
        (
            "cloud-init",
            true,
            json!({"resources": memory, "cloudInit": {"userData": user_data}}),
        ),
    ] {
        let object = object(&spec).to_string();
        let reviewed = || reviewed(Stage::Mutate, black_box(&object), None, &catalog);
        let findings = reviewed().findings;
        assert_eq!(findings.accepted(), accepted, "{name}: {findings:?}");
        group.bench_function(name, |bencher| bencher.iter(reviewed));
    }
    group.finish();
}

criterion_group!(core, parse, normalization, rules, reviews);
criterion_main!(core);
