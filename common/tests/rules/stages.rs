//! The two stages of one review may see different catalogs, and different objects: what lies between
//! them is not always ours.

use common::admission::{ObjectKind, Settings, Stage};
use common::code::Code;
use serde_json::{Value, json};

use crate::harness::{Question, catalog, machine, places};

fn stored(spec: &Value, old: Option<&Value>) -> Value {
    let question = Question::of(ObjectKind::Machine, old);
    question.admit(&machine(spec)).unwrap().stored
}

/// The validating stage refuses nothing because a lookup gives something else now.
#[test]
fn a_catalog_that_changes_between_the_stages_refuses_nobody() {
    let admitted = stored(&json!({"template": "web"}), None);
    let question = Question {
        catalog: catalog("tidied"),
        settings: &Settings::default(),
        ..Question::of(ObjectKind::Machine, None)
    };
    let verdict = question.ask(Stage::Validate, &admitted);
    assert_eq!(verdict.findings.violations, []);
}

/// What an update keeps comes from the stored object, whatever the sent block says.
#[test]
fn what_is_kept_cannot_be_forged() {
    let old = stored(&json!({"template": "web"}), None);
    let update = stored(
        &json!({"template": "web", "powerState": "Stopped"}),
        Some(&old),
    );
    let question = Question::of(ObjectKind::Machine, Some(&old));
    for (field, forged) in [
        (
            "spec.normalized.memory.size",
            &[
                ("/template/content/resources/memory/size", "6Gi"),
                ("/memory/size", "6Gi"),
            ][..],
        ),
        (
            "spec.normalized.disks[1].storageClass",
            &[("/disks/1/storageClass", "fast-ssd")],
        ),
        ("spec.normalized.backend", &[("/backend", "libvirt")]),
    ] {
        let mut sent = update.clone();
        for (pointer, value) in forged {
            let block = &mut sent["spec"]["normalized"];
            *block.pointer_mut(pointer).unwrap() = Value::from(*value);
        }
        let told = places(&question.ask(Stage::Validate, &sent));
        assert_eq!(told, [(field.to_owned(), Code::NormalizedMismatch)]);
    }
}
