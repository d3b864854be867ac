//! Where a guest runs: affinity, the label of a group on the pods of its guests and the pod anti-affinity against it, and
//! tolerated taints.

use std::collections::BTreeMap;

use serde::Serialize;

use super::types::Toleration;
use super::vm::VirtualMachineInput;
use crate::api::choice::{Choice as _, GroupScope, SelectorOperator};
use crate::api::machine::{Affinity, PodSelector, PodTerm, WeightedPodTerm};
use crate::api::machine_policy::LabelRequirement;
use crate::api::normalized::{Normalized, NormalizedGroup};
use crate::names;
use crate::render::identity::Identity;
use crate::words::labels_text;

/// Label of a guest's pod with the name of its VirtualMachine (KubeVirt, `VirtualMachineNameLabel`).
const LABEL_VM: &str = "vm.kubevirt.io/name";

/// The largest weight of a preference: nothing else about the guest's node is preferred.
const WEIGHT: i64 = 100;

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

/// Annotations of the instance: those of the Machine, the revisions of Secrets, and what the guest was started with.
/// KubeVirt passes a change of the affinity on to a running instance, but not to its pod, and one of the labels to neither.
pub(super) fn annotations(input: &VirtualMachineInput<'_>) -> BTreeMap<String, String> {
    let (block, carried) = (input.block, input.labels);
    let group = block.group().map(ToString::to_string);
    let group = group.map(|text| (names::ANNOTATION_GROUP.to_owned(), text));
    let labels = (!carried.is_empty()).then(|| labels_text(carried));
    let labels = labels.map(|text| (names::ANNOTATION_LABELS.to_owned(), text));
    let model = block.cpu_model().map(ToOwned::to_owned);
    let model = model.map(|model| (names::ANNOTATION_CPU_MODEL.to_owned(), model));
    let affinity = block.affinity().map(digest);
    let affinity = affinity.map(|text| (names::ANNOTATION_AFFINITY.to_owned(), text));
    let spread = Some(block.spread()).filter(|spread| !spread.is_empty());
    let spread = spread.map(|it| (names::ANNOTATION_SPREAD.to_owned(), digest(it)));
    let overrides = block.overrides().map(digest);
    let overrides = overrides.map(|text| (names::ANNOTATION_OVERRIDES.to_owned(), text));
    let annotations = Some(input.annotations).filter(|it| !it.is_empty());
    let annotations = annotations.map(|it| (names::ANNOTATION_ANNOTATIONS.to_owned(), digest(it)));
    let placed_by = affinity.into_iter().chain(spread).chain(overrides);
    let placed_by = placed_by.chain(annotations);
    let of_machine = input.annotations.clone().into_iter();
    let revisions = of_machine.chain(input.secret_revisions.clone());
    let started_with = group.into_iter().chain(labels).chain(model);
    revisions.chain(started_with).chain(placed_by).collect()
}

/// Bytes of the digests of what a pod is placed by.
const DIGEST_BYTES: usize = 8;

fn digest(value: &(impl Serialize + ?Sized)) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    names::digest(&text, DIGEST_BYTES)
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

/// The affinity that the Machine requests, and the term that keeps it apart from its group.
pub(super) fn affinity(machine: &Identity<'_>, block: &Normalized) -> Option<Affinity> {
    let mut affinity = block.affinity().cloned().unwrap_or_default();
    if let Some(group) = block.group() {
        let apart = affinity.pod_anti_affinity.get_or_insert_default();
        let term = apart_from(group, machine);
        if group.required {
            let required = &mut apart.required_during_scheduling_ignored_during_execution;
            required.get_or_insert_default().push(term);
        } else {
            let preferred = &mut apart.preferred_during_scheduling_ignored_during_execution;
            preferred.get_or_insert_default().push(WeightedPodTerm {
                pod_affinity_term: Some(term),
                weight: Some(WEIGHT),
            });
        }
    }
    (affinity != Affinity::default()).then_some(affinity)
}

/// The other pods of a group.
fn apart_from(group: &NormalizedGroup, machine: &Identity<'_>) -> PodTerm {
    let is_other = LabelRequirement {
        // While it is migrated, a guest has two pods, which may be in one zone.
        key: Some(LABEL_VM.to_owned()),
        operator: Some(SelectorOperator::NotIn.as_str().to_owned()),
        values: Some(vec![machine.name.to_owned()]),
    };
    let topology_key = match group.scope {
        GroupScope::Host => "kubernetes.io/hostname",
        GroupScope::Zone => names::LABEL_ZONE,
    };
    PodTerm {
        label_selector: Some(PodSelector {
            match_expressions: Some(vec![is_other]),
            match_labels: Some([(names::LABEL_GROUP.to_owned(), group.name.clone())].into()),
        }),
        topology_key: Some(topology_key.to_owned()),
    }
}
