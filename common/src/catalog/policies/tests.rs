use serde_json::{Value, json};

use super::*;

fn policy(spec: Value) -> Option<Policy> {
    Policy::new("p".to_owned(), serde_json::from_value(spec).unwrap())
}

fn labels(labels: &Value) -> Labels {
    serde_json::from_value(labels.clone()).unwrap()
}

#[test]
fn a_selector_selects_as_in_kubernetes() {
    let shared = json!({"tenancy": "shared", "team": "a"});
    for (selector, selects_shared, selects_unlabelled) in [
        (json!({}), true, true),
        (json!({"matchLabels": {"tenancy": "shared"}}), true, false),
        (json!({"matchLabels": {"tenancy": "own"}}), false, false),
        (
            json!({"matchLabels": {"tenancy": "shared", "zone": "x"}}),
            false,
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}),
            true,
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}),
            false,
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]}),
            true,
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}),
            false,
            true,
        ),
        (
            json!({"matchLabels": {"tenancy": "shared"}, "matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}),
            false,
            false,
        ),
    ] {
        let policy = policy(json!({ "namespaceSelector": selector })).unwrap();
        assert_eq!(
            policy.selects(&labels(&shared)),
            selects_shared,
            "{selector}"
        );
        assert_eq!(
            policy.selects(&Labels::new()),
            selects_unlabelled,
            "{selector}"
        );
    }
}

#[test]
fn a_policy_whose_selector_cannot_be_read_is_left_out() {
    let unknown = json!({"matchExpressions": [{"key": "team", "operator": "Near"}]});
    assert_eq!(policy(json!({})), None);
    assert_eq!(policy(json!({ "namespaceSelector": unknown })), None);
}

#[test]
fn an_item_that_cannot_be_read_allows_nothing() {
    let policy = policy(json!({
        "namespaceSelector": {},
        "backends": ["xen"],
        "images": {"sources": ["images.example.com"]},
        "networks": {"bridges": [{"name": "br0", "vlans": ["200-100"]}, {}]},
    }));
    let policy = policy.unwrap();
    assert_eq!(policy.backends, Some(vec![]));
    assert_eq!(policy.sources, Some(vec![]));
    let bridges = policy.bridges.unwrap();
    assert_eq!(bridges.len(), 1);
    assert!(!bridges[0].allows("br0", Some(150)));
}

#[test]
fn a_bridge_allows_its_tags_or_untagged_frames() {
    let bridge = |vlans: Value| {
        let spec = json!({"name": "br*", "vlans": vlans});
        Bridge::of(serde_json::from_value(spec).unwrap()).unwrap()
    };
    let all = bridge(Value::Null);
    assert!(all.allows("br0", None) && all.allows("br-prod", Some(4094)));
    assert!(!all.allows("xbr0", None));
    let untagged = bridge(json!([]));
    assert!(untagged.allows("br0", None) && !untagged.allows("br0", Some(1)));
    let tagged = bridge(json!(["100-199", "300"]));
    for (vlan, allowed) in [
        (None, false),
        (Some(99), false),
        (Some(100), true),
        (Some(199), true),
        (Some(200), false),
        (Some(300), true),
    ] {
        assert_eq!(tagged.allows("br0", vlan), allowed, "{vlan:?}");
    }
}

#[test]
fn a_range_has_one_or_two_tags_in_ascending_order() {
    for (text, range) in [
        ("300", Some(300..=300)),
        ("1-4094", Some(1..=4094)),
        ("7-7", Some(7..=7)),
        ("0", None),
        ("4095", None),
        ("200-100", None),
        ("100-", None),
        ("-100", None),
        ("1-2-3", None),
        ("+7", None),
        ("007", None),
        ("", None),
    ] {
        assert_eq!(vlan_range(text), range, "{text}");
    }
}

#[test]
fn without_known_labels_no_policy_may_be_passed_over() {
    let policy =
        Arc::new(policy(json!({"namespaceSelector": {"matchLabels": {"a": "b"}}})).unwrap());
    let none: [Arc<Policy>; 0] = [];
    assert_eq!(policies_of(none.iter(), None), Some(vec![]));
    assert_eq!(policies_of([policy.clone()].iter(), None), None);
    assert_eq!(
        policies_of([policy.clone()].iter(), Some(&Labels::new())),
        Some(vec![])
    );
    let selected = labels(&json!({"a": "b"}));
    assert_eq!(
        policies_of([policy.clone()].iter(), Some(&selected)),
        Some(vec![policy])
    );
}
