//! However long the lists of an object are, what is told of it is not: neither its author nor the
//! webhook has to read on.

use common::admission::{ObjectKind, Stage};
use common::code::Code;
use serde_json::{Value, json};

use crate::corpus;
use crate::harness::{Question, merge_patch, object, places};

/// Far more items than any list may have.
const MANY: usize = 30_000;
/// Most bytes that may be told of one object.
const TOLD_MAX: usize = 512 * 1024;

fn many(item: &Value) -> Value {
    vec![item.clone(); MANY].into()
}

/// Changes to sound objects, and the lists that each makes too long.
fn overlong() -> Vec<(ObjectKind, Value, Vec<&'static str>)> {
    let vlans = json!({"name": "br0", "type": "ovs", "source": "br 0", "vlans": many(&json!(0))});
    let crowded = json!({"type": "vxlan", "vlans": vec![0; 600]});
    let quoted = json!({"vlans": ["1", "2"]});
    let mut cases = vec![
        (
            ObjectKind::LibvirtHost,
            json!({"storage": many(&json!({})), "networks": many(&json!({}))}),
            vec!["spec.storage", "spec.networks"],
        ),
        (
            ObjectKind::LibvirtHost,
            json!({"storage": many(&json!(7)), "networks": many(&quoted)}),
            vec!["spec.storage", "spec.networks"],
        ),
        (
            ObjectKind::LibvirtHost,
            json!({ "networks": [vlans] }),
            vec!["spec.networks[0].vlans"],
        ),
        (
            ObjectKind::LibvirtHost,
            json!({"networks": vec![crowded; 300]}),
            vec!["spec.networks", "spec.networks[255].vlans"],
        ),
    ];
    for kind in [ObjectKind::Machine, ObjectKind::MachineTemplate] {
        let patch = json!({"disks": many(&json!({})), "networks": many(&json!(7))});
        cases.push((kind, patch, vec!["spec.disks", "spec.networks"]));
    }
    cases
}

#[test]
fn what_is_too_long_is_told_and_not_walked() {
    for (kind, patch, lists) in overlong() {
        let mut spec = corpus::base(kind).clone();
        merge_patch(&mut spec, &patch);
        let object = object(kind, &json!({}), &spec);
        let sound = corpus::sound(kind);
        // What is stored may be as long.
        for old in [None, Some(&sound), Some(&object)] {
            let verdict = Question::of(kind, old).ask(Stage::Mutate, &object);
            let told = places(&verdict);
            let warnings = verdict.findings.warnings.iter();
            let warnings = warnings.map(|warning| warning.text.len());
            let violations = verdict.findings.violations.iter();
            let violations = violations.map(|violation| violation.to_string().len());
            let bytes: usize = violations.chain(warnings).sum();
            assert!(bytes <= TOLD_MAX, "{kind:?}: {bytes} bytes, {}", told.len());
            for list in &lists {
                let is_told = told.contains(&((*list).to_owned(), Code::TooMany));
                assert_eq!(is_told, old != Some(&object), "{kind:?}: {list}");
            }
        }
    }
}
