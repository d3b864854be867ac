//! What the nodes of the cluster offer to guests on KubeVirt.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::choice::HugepageSize;

/// Label of a node with the static CPU manager, set by KubeVirt (`CPUManager` in `core/v1/types.go`).
const LABEL_CPU_MANAGER: &str = "cpumanager";
/// Prefix of KubeVirt's labels for the CPU models that a node has (`CPUModelLabel`).
const CPU_MODEL_PREFIX: &str = "cpu-model.node.kubevirt.io/";
/// CPU models that every node has (`CPUModeHostModel`, `CPUModeHostPassthrough`).
const MODELS_OF_EVERY_NODE: [&str; 2] = ["host-model", "host-passthrough"];

/// Something that a guest needs of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeNeed<'a> {
    /// Processors for its vCPUs alone.
    DedicatedCpus,
    /// A CPU model.
    CpuModel(&'a str),
    /// Huge pages of a size.
    Hugepages(HugepageSize),
    /// A resource of devices.
    Device(&'a str),
}

/// The parts of a node that rules read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRow {
    dedicated_cpus: bool,
    cpu_models: BTreeSet<String>,
    /// Names of the resources of which it has more than nothing.
    resources: BTreeSet<String>,
}

impl NodeRow {
    /// The row of a node with these labels and allocatable amounts of resources.
    pub fn new(
        labels: &BTreeMap<String, String>,
        allocatable: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let is_set = |(key, value): (&String, &String)| (value == "true").then(|| key.clone());
        let set: BTreeSet<_> = labels.iter().filter_map(is_set).collect();
        let models = set
            .iter()
            .filter_map(|key| key.strip_prefix(CPU_MODEL_PREFIX));
        // CPU, memory and numbers of pods are no devices.
        let is_kept = |name: &str| name.contains('/') || name.starts_with("hugepages-");
        let resources = allocatable.into_iter();
        let resources = resources.filter(|(name, amount)| is_kept(name) && amount != "0");
        Self {
            dedicated_cpus: set.contains(LABEL_CPU_MANAGER),
            cpu_models: models.map(str::to_owned).collect(),
            resources: resources.map(|(name, _)| name).collect(),
        }
    }

    /// Whether the node offers what a guest needs, also if other guests have all of it.
    pub fn offers(&self, need: NodeNeed<'_>) -> bool {
        match need {
            NodeNeed::DedicatedCpus => self.dedicated_cpus,
            NodeNeed::CpuModel(model) => {
                MODELS_OF_EVERY_NODE.contains(&model) || self.cpu_models.contains(model)
            }
            NodeNeed::Hugepages(size) => self.resources.contains(&format!("hugepages-{size}")),
            NodeNeed::Device(name) => self.resources.contains(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        of.iter().map(owned).collect()
    }

    #[test]
    fn a_node_offers_what_its_labels_and_allocatable_resources_say() {
        let labels = pairs(&[
            ("cpumanager", "true"),
            ("cpu-model.node.kubevirt.io/Skylake-Server", "true"),
            ("cpu-model.node.kubevirt.io/Haswell", "false"),
            ("host-model-cpu.node.kubevirt.io/Penryn", "true"),
        ]);
        let allocatable = pairs(&[
            ("cpu", "8"),
            ("hugepages-2Mi", "1Gi"),
            ("hugepages-1Gi", "0"),
            ("nvidia.com/A100", "2"),
            ("vendor.example/nic", "0"),
        ]);
        let row = NodeRow::new(&labels.into_iter().collect(), allocatable);
        let offers = [
            NodeNeed::DedicatedCpus,
            NodeNeed::CpuModel("Skylake-Server"),
            NodeNeed::CpuModel("host-model"),
            NodeNeed::Hugepages(HugepageSize::Mebi2),
            NodeNeed::Device("nvidia.com/A100"),
        ];
        assert!(offers.iter().all(|need| row.offers(*need)), "{row:?}");
        let lacks = [
            NodeNeed::CpuModel("Haswell"),
            NodeNeed::CpuModel("Penryn"),
            NodeNeed::Hugepages(HugepageSize::Gibi1),
            NodeNeed::Device("vendor.example/nic"),
            NodeNeed::Device("cpu"),
        ];
        assert!(!lacks.iter().any(|need| row.offers(*need)), "{row:?}");
        assert!(!NodeRow::default().offers(NodeNeed::DedicatedCpus));
    }
}
