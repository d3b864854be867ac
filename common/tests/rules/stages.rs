//! The two stages of one review may see different catalogs and different objects: other webhooks run
//! between them.

use common::admission::{ObjectKind, Settings, Stage};
use common::code::Code;
use serde_json::{Value, json};

use crate::harness::{ReviewContext, catalog, fields_and_codes, machine};

fn stored(spec: &Value, old: Option<&Value>) -> Value {
    let context = ReviewContext::of(ObjectKind::Machine, old);
    context.admit(&machine(spec)).unwrap().stored
}

#[test]
fn a_catalog_that_changes_between_the_stages_causes_no_refusal() {
    let admitted = stored(&json!({"template": "web"}), None);
    let context = ReviewContext {
        catalog: catalog("tidied"),
        settings: &Settings::default(),
        ..ReviewContext::of(ObjectKind::Machine, None)
    };
    let verdict = context.review(Stage::Validate, &admitted);
    assert_eq!(verdict.findings.violations, []);
}

/// Values that an update keeps are taken from the stored object, not from the sent block.
#[test]
fn a_sent_block_cannot_change_the_values_that_an_update_keeps() {
    let old = stored(&json!({"template": "web"}), None);
    let update = stored(
        &json!({"template": "web", "powerState": "Stopped"}),
        Some(&old),
    );
    let context = ReviewContext::of(ObjectKind::Machine, Some(&old));
    for (fields, forged) in [
        (
            &[
                "spec.normalized.memory.size",
                "spec.normalized.template.content.resources.memory.size",
            ][..],
            &[
                ("/template/content/resources/memory/size", "6Gi"),
                ("/memory/size", "6Gi"),
            ][..],
        ),
        (
            &["spec.normalized.disks[1].storageClass"],
            &[("/disks/1/storageClass", "fast-ssd")],
        ),
        (&["spec.normalized.backend"], &[("/backend", "libvirt")]),
    ] {
        let mut sent = update.clone();
        for (pointer, value) in forged {
            let block = &mut sent["spec"]["normalized"];
            *block.pointer_mut(pointer).unwrap() = Value::from(*value);
        }
        let violations = fields_and_codes(&context.review(Stage::Validate, &sent));
        let mismatch = |field: &&str| ((*field).to_owned(), Code::NormalizedMismatch);
        let expected: Vec<_> = fields.iter().map(mismatch).collect();
        assert_eq!(violations, expected);
    }
}

#[test]
fn hardware_that_is_refused_as_such_is_not_looked_for_on_nodes() {
    let context = ReviewContext {
        catalog: catalog("bare"),
        ..ReviewContext::of(ObjectKind::Machine, None)
    };
    let spec = json!({
        "template": "small",
        "resources": {"cpu": {"model": "Intel Xeon"}, "memory": {"hugepages": "2Mi"}},
        "devices": [{"name": "a", "deviceName": "nvidia.com/A100"}, {"name": "b", "deviceName": "memory"}],
    });
    let findings = context.review(Stage::Mutate, &machine(&spec)).findings;
    assert_eq!(findings.violations.len(), 3, "{findings:?}");
    let texts = findings.warnings.iter().map(|warning| &warning.text);
    let of_nodes: Vec<_> = texts
        .filter(|text| text.contains("no node offers"))
        .collect();
    assert_eq!(of_nodes.len(), 1, "{of_nodes:?}");
    assert!(of_nodes[0].contains("huge pages"), "{of_nodes:?}");
}
