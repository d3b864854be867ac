//! What the pod of an instance needs of its node: labels that KubeVirt selects the node by, and resources.
//!
//! As `RenderLaunchManifest` of virt-controller (`pkg/virt-controller/services/template.go`): dedicated CPUs select
//! `cpumanager=true`, a CPU model the label of the model, and huge pages and devices are resources of the pod.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::Value;

use super::{
    guest::{list, text},
    scenario::Scenario,
};

/// The labels that the node of an instance has, all with the value `true`.
fn labels(spec: &Value) -> Vec<String> {
    let cpu = &spec["domain"]["cpu"];
    let dedicated = cpu["dedicatedCpuPlacement"] == true;
    let dedicated = dedicated.then(|| "cpumanager".to_owned());
    let model = Some(text(&cpu["model"]));
    let model = model.filter(|model| !["", "host-model", "host-passthrough"].contains(model));
    let model = model.map(|model| format!("cpu-model.node.kubevirt.io/{model}"));
    dedicated.into_iter().chain(model).collect()
}

/// The resources beside CPU and memory that the pod of an instance has.
pub(super) fn resources(spec: &Value) -> Vec<String> {
    let domain = &spec["domain"];
    let pages = domain["memory"]["hugepages"]["pageSize"].as_str();
    let pages = pages.map(|size| format!("hugepages-{size}"));
    let devices = ["gpus", "hostDevices"].map(|field| list(&domain["devices"][field]));
    let devices = devices.into_iter().flatten();
    let devices = devices.map(|device| text(&device["deviceName"]).to_owned());
    pages.into_iter().chain(devices).collect()
}

/// Why a node cannot have the pod of an instance; `None`: it can.
pub(super) fn obstacle(node: &Node, spec: &Value) -> Option<Scenario> {
    let has_label = |key: &String| node.labels().get(key).is_some_and(|it| it == "true");
    if !labels(spec).iter().all(has_label) || !is_required(node, spec) {
        return Some(Scenario::NodeSelector);
    }
    let allocatable = node.status.as_ref().and_then(|it| it.allocatable.as_ref());
    let has_some = |name: &String| {
        let amount = allocatable.and_then(|it| it.get(name));
        amount.is_some_and(|amount| amount.0 != "0")
    };
    let has_all = resources(spec).iter().all(has_some);
    (!has_all).then_some(Scenario::NoResource)
}

/// Whether a node fulfils one of the terms that the node affinity requires. Comparisons of numbers are not simulated.
fn is_required(node: &Node, spec: &Value) -> bool {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = &spec["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
    let fulfils = |requirement: &Value| {
        let value = node.labels().get(text(&requirement["key"]));
        let is_listed = value
            .is_some_and(|value| list(&requirement["values"]).contains(&value.as_str().into()));
        match text(&requirement["operator"]) {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    let mut terms = match terms {
        Value::Null => return true,
        terms => list(terms).iter(),
    };
    terms.any(|term| list(&term["matchExpressions"]).iter().all(fulfils))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_has_the_labels_and_the_resources_that_an_instance_needs() {
        let node = |labels: Value, allocatable: Value| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "node-1", "labels": labels},
                "status": {"allocatable": allocatable},
            }))
            .unwrap()
        };
        let spec = json!({"domain": {
            "cpu": {"model": "Skylake-Server", "dedicatedCpuPlacement": true},
            "memory": {"hugepages": {"pageSize": "2Mi"}},
            "devices": {"gpus": [{"name": "gpu", "deviceName": "nvidia.com/A100"}]},
        }});
        let labels =
            json!({"cpumanager": "true", "cpu-model.node.kubevirt.io/Skylake-Server": "true"});
        let resources = json!({"hugepages-2Mi": "1Gi", "nvidia.com/A100": "1"});
        assert_eq!(
            obstacle(&node(labels.clone(), resources.clone()), &spec),
            None
        );
        let without_model = json!({"cpumanager": "true"});
        let obstacle_of = |labels, resources| obstacle(&node(labels, resources), &spec);
        let selector = Some(Scenario::NodeSelector);
        assert_eq!(obstacle_of(without_model, resources), selector);
        let none_free = json!({"hugepages-2Mi": "1Gi", "nvidia.com/A100": "0"});
        assert_eq!(obstacle_of(labels, none_free), Some(Scenario::NoResource));
        let in_rack = |operator: &str| {
            let requirement = json!({"key": "rack", "operator": operator, "values": ["7"]});
            let terms = json!([{"matchExpressions": [requirement]}]);
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            json!({"affinity": {"nodeAffinity": required}})
        };
        let seven = node(json!({"rack": "7"}), json!({}));
        assert_eq!(obstacle(&seven, &in_rack("In")), None);
        assert_eq!(obstacle(&seven, &in_rack("NotIn")), selector);
        let plain = json!({"domain": {"cpu": {"model": "host-model"}}});
        assert_eq!(obstacle(&node(json!({}), json!({})), &plain), None);
    }
}
