//! The answer about an object with very long lists has a bounded size, and the lists are not read to their
//! end.

use common::admission::{ObjectKind, Stage};
use common::catalog::NetworkRow;
use common::code::Code;
use serde_json::{Value, json};

use crate::corpus;
use crate::harness::{NAMESPACE, ReviewContext, catalog, fields_and_codes, merge_patch, object};

/// Far more items than any list may have.
const MANY: usize = 30_000;
/// Largest answer about one object in bytes.
const ANSWER_MAX: usize = 512 * 1024;

fn many(item: &Value) -> Value {
    vec![item.clone(); MANY].into()
}

/// Changes to valid objects, and the lists that each makes too long.
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
    let requirement = json!({"key": "a", "operator": "In", "values": vec!["-"; 64]});
    let term = json!({"matchExpressions": vec![requirement; 64]});
    let nodes = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": vec![term; 64]}});
    cases.push((
        ObjectKind::Machine,
        json!({"placement": {"affinity": {"nodeAffinity": nodes}}}),
        vec!["spec"],
    ));
    cases.push((
        ObjectKind::MachinePolicy,
        json!({"annotations": {"allow": many(&json!("a/b"))}}),
        vec!["spec.annotations.allow"],
    ));
    let device = json!({"name": "gpu", "addresses": many(&json!("0000:01:00.0"))});
    cases.push((
        ObjectKind::LibvirtHost,
        json!({"devices": vec![device; 20]}),
        vec!["spec.devices", "spec.devices[15].addresses"],
    ));
    let bridge = json!({"name": "br0", "vlans": vec![0; 256]});
    let bridges = vec![bridge; 256];
    cases.push((
        ObjectKind::MachinePolicy,
        json!({"networks": {"bridges": bridges}}),
        vec!["spec"],
    ));
    let values: Value = (0..64).map(|key| (key.to_string(), json!(null))).collect();
    let long = json!({ "a".repeat(1 << 20): values });
    cases.push((
        ObjectKind::Machine,
        json!({"backendOverrides": {"kubevirt": long}}),
        vec![],
    ));
    for kind in [ObjectKind::Machine, ObjectKind::MachineTemplate] {
        let patch = json!({"disks": many(&json!({})), "networks": many(&json!(7))});
        cases.push((kind, patch, vec!["spec.disks", "spec.networks"]));
    }
    cases
}

#[test]
fn a_list_that_is_too_long_is_reported_in_an_answer_of_bounded_size() {
    for (kind, patch, lists) in overlong() {
        let mut spec = corpus::base(kind).clone();
        merge_patch(&mut spec, &patch);
        let object = object(kind, &json!({}), &spec);
        let valid = corpus::valid(kind);
        // The stored object may have the same long lists.
        for old in [None, Some(&valid), Some(&object)] {
            let verdict = ReviewContext::of(kind, old).review(Stage::Mutate, &object);
            let reported = fields_and_codes(&verdict);
            let warnings = verdict.findings.warnings.iter();
            let warnings = warnings.map(|warning| warning.text.len());
            let violations = verdict.findings.violations.iter();
            let violations = violations.map(|violation| violation.to_string().len());
            let bytes: usize = violations.chain(warnings).sum();
            assert!(
                bytes <= ANSWER_MAX,
                "{kind:?}: {bytes} bytes, {}",
                reported.len()
            );
            for list in &lists {
                let is_reported = reported.contains(&((*list).to_owned(), Code::TooMany));
                // Of faults that are not listed nobody knows whether the stored object has them.
                let is_new = old != Some(&object) || *list == "spec";
                assert_eq!(is_reported, is_new, "{kind:?}: {list}");
            }
        }
    }
}

/// A comparison with each of the names of a large namespace would take seconds.
#[test]
fn of_thousands_of_networks_none_is_suggested() {
    let name = |index: usize| format!("{}-{index:05}", "n".repeat(57));
    let card =
        |index: usize| json!({"name": format!("eth{index}"), "networkName": name(90_000 + index)});
    let cards: Vec<_> = (0..32).map(card).collect();
    let mut spec = corpus::base(ObjectKind::Machine).clone();
    merge_patch(&mut spec, &json!({"networks": cards}));
    let machine = object(ObjectKind::Machine, &json!({}), &spec);
    for (known, suggested) in [(200, 32), (10_000, 0)] {
        let mut catalog = catalog("default").clone();
        let networks = (0..known).map(|index| (name(index), NetworkRow::default()));
        catalog
            .networks
            .insert(NAMESPACE.to_owned(), networks.collect());
        let context = ReviewContext {
            catalog: &catalog,
            ..ReviewContext::of(ObjectKind::Machine, None)
        };
        let verdict = context.review(Stage::Mutate, &machine);
        let warnings = verdict.findings.warnings.iter();
        let warnings = warnings.filter(|it| it.code == Some(Code::NetworkConfigurationNotFound));
        let texts: Vec<_> = warnings.map(|warning| &*warning.text).collect();
        assert_eq!(texts.len(), 32, "{texts:?}");
        let suggestions = texts.iter().filter(|text| text.contains("did you mean 'n"));
        assert_eq!(suggestions.count(), suggested, "{texts:?}");
    }
}
