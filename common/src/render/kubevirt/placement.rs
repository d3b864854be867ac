//! Guests that are kept apart: the label of a group on their pods, and the pod anti-affinity against it. Tolerated taints.

use std::collections::BTreeMap;

use super::types::{
    Affinity, LabelSelector, LabelSelectorRequirement, PodAffinityTerm, PodAntiAffinity,
    Toleration, WeightedPodAffinityTerm,
};
use crate::api::choice::{Choice as _, GroupScope};
use crate::api::normalized::{Normalized, NormalizedGroup};
use crate::names;
use crate::render::identity::Identity;
use crate::words::labels_text;

/// Label of a guest's pod with the name of its VirtualMachine (KubeVirt, `VirtualMachineNameLabel`).
const LABEL_VM: &str = "vm.kubevirt.io/name";

/// The largest weight of a preference: nothing else about the guest's node is preferred.
const WEIGHT: u32 = 100;

/// Labels of the instance and its pod. `carried`: those of the Machine.
pub(super) fn labels(
    machine: &Identity<'_>,
    block: &Normalized,
    carried: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let group = block.group().map(|group| group.name.clone());
    let group = group.map(|name| (names::LABEL_GROUP.to_owned(), name));
    let carried = carried.clone().into_iter();
    carried.chain(machine.labels()).chain(group).collect()
}

/// Annotations of the instance beside `revisions`: they say what the guest was started with. KubeVirt passes a change of the
/// affinity on to a running instance, but not to its pod, and one of the labels to neither.
pub(super) fn annotations(
    revisions: &BTreeMap<String, String>,
    block: &Normalized,
    carried: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let group = block.group().map(ToString::to_string);
    let group = group.map(|text| (names::ANNOTATION_GROUP.to_owned(), text));
    let labels = (!carried.is_empty()).then(|| labels_text(carried));
    let labels = labels.map(|text| (names::ANNOTATION_LABELS.to_owned(), text));
    let model = block.cpu_model().map(ToOwned::to_owned);
    let model = model.map(|model| (names::ANNOTATION_CPU_MODEL.to_owned(), model));
    let revisions = revisions.clone().into_iter();
    revisions.chain(group).chain(labels).chain(model).collect()
}

/// The taints that the guest's pod tolerates.
pub fn tolerations(block: &Normalized) -> Vec<Toleration> {
    let tolerations = block.tolerations().iter();
    let tolerations = tolerations.map(|it| Toleration {
        effect: it
            .effect
            .map(|it| it.as_str().to_owned())
            .unwrap_or_default(),
        key: it.key.clone().unwrap_or_default(),
        operator: it.operator.as_str().to_owned(),
        toleration_seconds: it.toleration_seconds,
        value: it.value.clone().unwrap_or_default(),
    });
    tolerations.collect()
}

/// Tolerations as kubectl writes taints: `key=value:effect`, with `*` for any key and any effect.
pub fn tolerations_text(tolerations: &[Toleration]) -> String {
    let text = |it: &Toleration| {
        let any = |text: &str| if text.is_empty() { "*" } else { text }.to_owned();
        let value = match it.operator.as_str() {
            "Exists" => String::new(),
            _ => format!("={}", it.value),
        };
        let seconds = it.toleration_seconds;
        let seconds = seconds.map(|seconds| format!(" for {seconds} s"));
        let (key, effect) = (any(&it.key), any(&it.effect));
        format!("{key}{value}:{effect}{}", seconds.unwrap_or_default())
    };
    if tolerations.is_empty() {
        return "none".to_owned();
    }
    tolerations.iter().map(text).collect::<Vec<_>>().join(",")
}

pub(super) fn affinity(machine: &Identity<'_>, block: &Normalized) -> Option<Affinity> {
    let NormalizedGroup {
        name,
        required,
        scope,
    } = block.group()?;
    let term = PodAffinityTerm {
        label_selector: LabelSelector {
            // While it is migrated, a guest has two pods, which may be in one zone.
            match_expressions: vec![LabelSelectorRequirement {
                key: LABEL_VM.to_owned(),
                operator: "NotIn".to_owned(),
                values: vec![machine.name.to_owned()],
            }],
            match_labels: [(names::LABEL_GROUP.to_owned(), name.clone())].into(),
        },
        topology_key: match scope {
            GroupScope::Host => "kubernetes.io/hostname",
            GroupScope::Zone => names::LABEL_ZONE,
        }
        .to_owned(),
    };
    let pod_anti_affinity = if *required {
        PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: vec![term],
            ..PodAntiAffinity::default()
        }
    } else {
        PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: vec![WeightedPodAffinityTerm {
                pod_affinity_term: term,
                weight: WEIGHT,
            }],
            ..PodAntiAffinity::default()
        }
    };
    Some(Affinity { pod_anti_affinity })
}
