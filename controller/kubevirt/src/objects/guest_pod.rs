//! The pod in which a guest runs: the nodes and networks that it was made for.
//!
//! KubeVirt changes the node labels, tolerations and networks of a running instance, but those of a pod never change. A
//! migration makes another pod for the guest, so the pod has what the guest has.

use std::collections::BTreeMap;

use common::bounds::NETWORKS_MAX;
use common::render::kubevirt::types::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::metadata::{Kept, kept};
use serde::{Deserialize, Serialize};

use super::guests::{GuestSummary, Instance};
use common::names::LABEL_MACHINE;
use controller_core::objects::{Cacheable, Meta as _, lenient};
use controller_core::resource;

/// Label of a launcher pod: the uid of its instance.
pub(super) const CREATED_BY: &str = "kubevirt.io/created-by";

/// Annotation of a launcher pod: the networks that Multus attaches, as a JSON list.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// What is read of the metadata of a virt-launcher pod; real ones have dozens of labels and annotations.
pub(super) enum OfPod {}

impl Kept for OfPod {
    fn keeps_label(key: &str) -> bool {
        [CREATED_BY, LABEL_MACHINE].contains(&key)
    }

    fn keeps_annotation(key: &str) -> bool {
        key == NETWORKS
    }
}

/// A virt-launcher pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GuestPod {
    #[serde(default, deserialize_with = "kept::<_, OfPod>")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: GuestPodSpec,
    #[serde(default, deserialize_with = "lenient")]
    status: GuestPodStatus,
    /// Uid of the instance, from its label. Set when the pod is cached.
    #[serde(default)]
    instance: String,
    /// NetworkAttachmentDefinition (`namespace/name`) of each interface of the pod, from its annotation. Set when the
    /// pod is cached.
    #[serde(default)]
    attachments: BTreeMap<String, String>,
}
resource!(GuestPod, "Pod", "", "v1", "pods", NamespaceResourceScope);

/// Where the pod may run, and where it does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GuestPodSpec {
    node_name: Option<String>,
    /// Those of the instance when the pod was made, and those that KubeVirt needs.
    pub(crate) node_selector: BTreeMap<String, String>,
    /// Those of the instance when the pod was made, and those that Kubernetes adds.
    #[serde(deserialize_with = "lenient")]
    pub(crate) tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct GuestPodStatus {
    phase: String,
}

/// An element of [`NETWORKS`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct NetworkSelection {
    name: String,
    namespace: Option<String>,
    interface: String,
}

impl Cacheable for GuestPod {
    type Summary = GuestSummary;

    fn summary(&self) -> GuestSummary {
        let has_ended = matches!(&*self.status.phase, "Succeeded" | "Failed");
        let attachments = self.attachments.values().filter(|_| !has_ended);
        GuestSummary {
            machine: self.machine().map(Box::from),
            attachments: attachments.map(|it| it.as_str().into()).collect(),
            state: None,
        }
    }

    fn prune(&mut self) {
        self.instance = self.label(CREATED_BY).unwrap_or_default().to_owned();
        self.attachments = attachments(self);
        // Of the rest of the metadata only this is read.
        let labels = self.metadata.labels.take().unwrap_or_default();
        let labels = labels.into_iter().filter(|(key, _)| key == LABEL_MACHINE);
        self.metadata = ObjectMeta {
            name: self.metadata.name.take(),
            namespace: self.metadata.namespace.take(),
            resource_version: self.metadata.resource_version.take(),
            labels: Some(labels.collect()),
            ..ObjectMeta::default()
        };
    }
}

fn attachments(pod: &GuestPod) -> BTreeMap<String, String> {
    let selected = pod.annotation(NETWORKS).unwrap_or_default();
    let selected: Vec<NetworkSelection> = serde_json::from_str(selected).unwrap_or_default();
    let selected = selected.into_iter().take(NETWORKS_MAX);
    selected
        .map(|network| {
            let namespace = network.namespace.as_deref();
            let namespace = namespace.unwrap_or_else(|| pod.namespace());
            let attachment = format!("{namespace}/{}", network.name);
            (network.interface, attachment)
        })
        .collect()
}

impl GuestPod {
    /// Whether the guest of this instance runs in the pod. After a migration, the former pod is there for a while.
    pub(crate) fn runs(&self, instance: &Instance) -> bool {
        !instance.uid().is_empty()
            && self.instance == instance.uid()
            && self.spec.node_name == instance.status.node_name
    }

    /// Whether this is the pod of an instance whose guest has no node yet.
    pub(crate) fn starts(&self, instance: &Instance) -> bool {
        !instance.uid().is_empty()
            && self.instance == instance.uid()
            && self.status.phase == "Pending"
    }

    /// The NetworkAttachmentDefinition (`namespace/name`) of an interface of the pod.
    pub(crate) fn attachment(&self, interface: &str) -> Option<&str> {
        self.attachments.get(interface).map(String::as_str)
    }

    /// The NetworkAttachmentDefinitions of the pod.
    pub(crate) fn attached(&self) -> impl Iterator<Item = &str> {
        self.attachments.values().map(String::as_str)
    }

    /// Whether a Machine may have to act on the change from this pod to `new`.
    pub(crate) fn differs(&self, new: &Self) -> bool {
        self.spec != new.spec || self.attachments != new.attachments
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(networks: &str, phase: &str) -> GuestPod {
        let mut pod: GuestPod = serde_json::from_value(json!({
            "metadata": {
                "name": "virt-launcher-web-x", "namespace": "default",
                "labels": {CREATED_BY: "u", "vitistack.io/machine": "web"},
                "annotations": {NETWORKS: networks},
            },
            "spec": {"nodeName": "node-1", "nodeSelector": {"disk": "ssd"}},
            "status": {"phase": phase},
        }))
        .unwrap();
        pod.prune();
        pod
    }

    #[test]
    fn a_pod_has_the_networks_of_its_annotation_until_it_has_ended() {
        let two = r#"[{"name":"prod","namespace":"blue","interface":"pod1"},{"name":"test","interface":"pod2"}]"#;
        let runs = pod(two, "Running");
        assert_eq!(runs.attachment("pod1"), Some("blue/prod"));
        assert_eq!(runs.attachment("pod2"), Some("default/test"));
        let summary = runs.summary();
        assert_eq!(summary.machine.as_deref(), Some("web"));
        let attachments: Vec<_> = summary.attachments.iter().map(|it| &**it).collect();
        assert_eq!(attachments, ["blue/prod", "default/test"]);
        assert_eq!(pod(two, "Succeeded").summary().attachments.len(), 0);
        for malformed in ["prod", "{}", "[5]", ""] {
            assert_eq!(pod(malformed, "Running").attached().count(), 0);
        }
    }

    #[test]
    fn a_guest_runs_in_the_pod_of_its_instance_on_its_node() {
        let pod = pod("[]", "Running");
        let instance = |uid: &str, node: &str| -> Instance {
            let instance = json!({"metadata": {"uid": uid}, "status": {"nodeName": node}});
            serde_json::from_value(instance).unwrap()
        };
        assert!(pod.runs(&instance("u", "node-1")));
        assert!(!pod.runs(&instance("u", "node-2")));
        assert!(!pod.runs(&instance("v", "node-1")));
    }
}
