//! The node of a new pod: of those that its anti-affinity to other pods allows. As in Kubernetes, a rule about a label that
//! no node has keeps nothing apart; the nodes here have no zones.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::Value;

use super::guest::{NODES, node_of};

/// Label of the nodes with their names.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// A pod on a node.
struct Placed {
    node: String,
    labels: BTreeMap<String, String>,
}

/// The node of an instance's pod; `None`: no node is allowed. A pod that has a node keeps it.
pub(super) async fn node(
    pods: &Api<Pod>,
    instance: &Value,
    pod: Option<&Value>,
) -> Result<Option<String>, kube::Error> {
    if let Some(node) = pod.and_then(|pod| pod["spec"]["nodeName"].as_str()) {
        return Ok(Some(node.to_owned()));
    }
    let first = node_of(instance);
    let rules = &instance["spec"]["affinity"]["podAntiAffinity"];
    if rules.is_null() {
        return Ok(Some(first));
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
    Ok(choose(&first, rules, &others.collect::<Vec<_>>()))
}

/// The first node after `first`, which is included, that the rules allow, and of those the one that they prefer.
fn choose(first: &str, rules: &Value, others: &[Placed]) -> Option<String> {
    let number = first
        .rsplit('-')
        .next()
        .and_then(|it| it.parse::<u64>().ok());
    let nodes = (0..NODES).map(|it| format!("node-{}", (number.unwrap_or(1) - 1 + it) % NODES + 1));
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
    let allowed = nodes.filter(|node| near("required", node) == 0);
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
        for rules in [&required, &preferred] {
            assert_eq!(choose("node-3", rules, &others).unwrap(), "node-2");
            assert_eq!(choose("node-3", rules, &[]).unwrap(), "node-3");
        }
        let full = ["node-1", "node-2", "node-3"].map(|node| placed(node, "a", "db"));
        assert_eq!(choose("node-3", &required, &full), None);
        assert_eq!(choose("node-3", &preferred, &full).unwrap(), "node-3");
    }
}
