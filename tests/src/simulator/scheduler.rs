//! Chooses the node of a new pod, among those whose taints it tolerates, that have the hardware and that its anti-affinity
//! to other pods allows. As in Kubernetes, a rule about a label that no node has keeps nothing apart; the nodes here have
//! no zones.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::Value;

use super::{
    guest::{NODES, list, node_of, text},
    hardware,
    scenario::Scenario,
};

/// Prefix of the taints that the node controller sets, such as that of a node which has not reported. The nodes here never
/// report, and take guests all the same.
const OF_NODE_CONTROLLER: &str = "node.kubernetes.io/";

/// Label of the nodes with their names.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// A pod on a node.
struct Placed {
    node: String,
    labels: BTreeMap<String, String>,
}

/// The node of an instance's pod; an error: the scenario of a pod that no node takes. A pod that has a node keeps it.
pub(super) async fn node(
    pods: &Api<Pod>,
    instance: &Value,
    pod: Option<&Value>,
) -> Result<Result<String, Scenario>, kube::Error> {
    if let Some(node) = pod.and_then(|pod| pod["spec"]["nodeName"].as_str()) {
        return Ok(Ok(node.to_owned()));
    }
    let nodes: Api<Node> = Api::all(pods.clone().into_client());
    let tolerations = list(&instance["spec"]["tolerations"]);
    let refuses = |node: &Node| {
        let Some(spec) = &node.spec else { return false };
        let mut taints = spec.taints.iter().flatten();
        spec.unschedulable == Some(true) || taints.any(|taint| !is_tolerated(taint, tolerations))
    };
    let mut obstacle = Scenario::Tainted;
    let mut closed = BTreeSet::new();
    for node in nodes.list(&ListParams::default()).await?.items {
        if refuses(&node) {
            closed.insert(node.name_any());
        } else if let Some(found) = hardware::obstacle(&node, &instance["spec"]) {
            // That of a node with the labels says more.
            if obstacle != Scenario::NoResource {
                obstacle = found;
            }
            closed.insert(node.name_any());
        }
    }
    let nodes = nodes_from(&node_of(instance)).filter(|node| !closed.contains(node));
    let nodes: Vec<_> = nodes.collect();
    let Some(first) = nodes.first() else {
        return Ok(Err(obstacle));
    };
    let rules = &instance["spec"]["affinity"]["podAntiAffinity"];
    if rules.is_null() {
        return Ok(Ok(first.clone()));
    }
    let launchers = ListParams::default().labels("kubevirt.io=virt-launcher");
    let others = pods.list(&launchers).await?.items.into_iter();
    let others = others.filter_map(|pod| {
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
        let node = pod.spec.as_ref()?.node_name.clone();
        Some(Placed {
            node: node.filter(|_| !has_ended)?,
            labels: pod.labels().clone(),
        })
    });
    Ok(choose(nodes, rules, &others.collect::<Vec<_>>()).ok_or(Scenario::AntiAffinity))
}

/// All nodes, from this one on.
fn nodes_from(first: &str) -> impl Iterator<Item = String> + use<> {
    let number = first
        .rsplit('-')
        .next()
        .and_then(|it| it.parse::<u64>().ok());
    let first = number.unwrap_or(1) - 1;
    (0..NODES).map(move |it| format!("node-{}", (first + it) % NODES + 1))
}

/// Whether one of the tolerations of a pod matches a taint, as `ToleratesTaint` of Kubernetes. A taint that only makes
/// another node preferable keeps no pod away.
fn is_tolerated(taint: &Taint, tolerations: &[Value]) -> bool {
    let matches = |it: &Value| {
        let is_any = |field: &str, of_taint: &str| {
            let text = text(&it[field]);
            text.is_empty() || text == of_taint
        };
        let value = taint.value.as_deref().unwrap_or_default();
        is_any("effect", &taint.effect)
            && is_any("key", &taint.key)
            && (it["operator"] == "Exists" || text(&it["value"]) == value)
    };
    taint.effect == "PreferNoSchedule"
        || taint.key.starts_with(OF_NODE_CONTROLLER)
        || tolerations.iter().any(matches)
}

/// The first of the nodes that the rules allow, and of those the one that they prefer.
fn choose(
    nodes: impl IntoIterator<Item = String>,
    rules: &Value,
    others: &[Placed],
) -> Option<String> {
    let near = |kind: &str, node: &str| {
        let terms = rules[format!("{kind}DuringSchedulingIgnoredDuringExecution")].as_array();
        let terms = terms
            .into_iter()
            .flatten()
            .map(|term| match &term["podAffinityTerm"] {
                Value::Null => term,
                weighted => weighted,
            });
        let hits = terms.filter(|term| {
            let is_meant = |it: &&Placed| it.node == node && selects(&term["labelSelector"], it);
            term["topologyKey"] == HOSTNAME && others.iter().any(|it| is_meant(&it))
        });
        hits.count()
    };
    let allowed = nodes.into_iter().filter(|node| near("required", node) == 0);
    allowed.min_by_key(|node| near("preferred", node))
}

/// Whether a selector with equalities and `NotIn` selects a pod.
fn selects(selector: &Value, pod: &Placed) -> bool {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let has_all = labels
        .map(|(key, value)| (pod.labels.get(key), value))
        .all(|(has, value)| has.map(String::as_str) == value.as_str());
    let conditions = selector["matchExpressions"].as_array();
    let excluded = conditions.into_iter().flatten().any(|condition| {
        let has = condition["key"].as_str().and_then(|it| pod.labels.get(it));
        let values = condition["values"].as_array();
        let values = values.map_or(&[][..], Vec::as_slice);
        condition["operator"] == "NotIn"
            && values
                .iter()
                .any(|it| it.as_str() == has.map(String::as_str))
    });
    has_all && !excluded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn placed(node: &str, name: &str, group: &str) -> Placed {
        Placed {
            node: node.into(),
            labels: [("group", group), ("name", name)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        }
    }

    #[test]
    fn a_pod_avoids_the_nodes_of_others_and_not_that_of_its_own_guest() {
        let term = json!({
            "topologyKey": HOSTNAME,
            "labelSelector": {
                "matchLabels": {"group": "db"},
                "matchExpressions": [{"key": "name", "operator": "NotIn", "values": ["own"]}],
            },
        });
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        let preferred = json!({
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}],
        });
        let others = [
            placed("node-3", "a", "db"),
            placed("node-1", "b", "db"),
            placed("node-2", "own", "db"),
            placed("node-2", "c", "web"),
        ];
        let choose = |rules, others: &[Placed]| choose(nodes_from("node-3"), rules, others);
        for rules in [&required, &preferred] {
            assert_eq!(choose(rules, &others).unwrap(), "node-2");
            assert_eq!(choose(rules, &[]).unwrap(), "node-3");
        }
        let full = ["node-1", "node-2", "node-3"].map(|node| placed(node, "a", "db"));
        assert_eq!(choose(&required, &full), None);
        assert_eq!(choose(&preferred, &full).unwrap(), "node-3");
    }

    #[test]
    fn a_toleration_matches_a_taint_by_key_value_and_effect() {
        let taint = |value: Option<&str>, effect: &str| Taint {
            key: "dedicated".into(),
            value: value.map(str::to_owned),
            effect: effect.into(),
            ..Taint::default()
        };
        let db = taint(Some("db"), "NoSchedule");
        for (toleration, expected) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "dedicated", "operator": "Exists"}), true),
            (
                json!({"key": "dedicated", "operator": "Equal", "value": "db"}),
                true,
            ),
            (
                json!({"key": "dedicated", "operator": "Equal", "value": "web"}),
                false,
            ),
            (json!({"key": "dedicated", "operator": "Equal"}), false),
            (json!({"key": "gpu", "operator": "Exists"}), false),
            (
                json!({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}),
                false,
            ),
        ] {
            let tolerations = [toleration];
            assert_eq!(is_tolerated(&db, &tolerations), expected, "{tolerations:?}");
        }
        assert!(is_tolerated(&taint(None, "PreferNoSchedule"), &[]));
        assert!(!is_tolerated(&taint(None, "NoExecute"), &[]));
    }
}
