//! Nodes and other guests that the pod of a guest is placed by, as in a Pod.
//!
//! Terms about pods concern those of the Machine's own namespace: there are no fields for others, because a guest that is
//! kept apart from the pods of another namespace keeps them from starting.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::{NodeOperator, UnsatisfiableAction};
use crate::api::machine_policy::LabelRequirement;
use crate::api::schema;
use crate::bounds;

/// Nodes and pods that the guest is placed by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// Nodes that the guest runs on. Default: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<NodeAffinity>,
    /// Pods that the guest runs near to. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_affinity: Option<PodAffinity>,
    /// Pods that the guest is kept apart from. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_anti_affinity: Option<PodAffinity>,
}

/// Nodes that the guest runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinity {
    /// Nodes, at most 64 terms, that are preferred to others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub preferred_during_scheduling_ignored_during_execution: Option<Vec<PreferredNodes>>,
    /// Nodes without which the guest is not started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_during_scheduling_ignored_during_execution: Option<NodeTerms>,
}

/// Alternative descriptions of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTerms {
    /// Terms, 1 to 64, of which a node fulfils one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<NodeTerm>>", required, length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub node_selector_terms: Option<Vec<NodeTerm>>,
}

/// Nodes that fulfil all requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTerm {
    /// Requirements, 1 to 64, that the labels of the node fulfil.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub match_expressions: Option<Vec<NodeRequirement>>,
}

/// A requirement on the label of a node with a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRequirement {
    /// Key of the label.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelKey>", required)]
    pub key: Option<String>,
    /// In and NotIn compare the label with values, Gt and Lt compare it as a whole number with one value, Exists and
    /// DoesNotExist only look for its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<NodeOperator>", required)]
    pub operator: Option<String>,
    /// Values of the label: 1 to 64 with In and NotIn, one with Gt and Lt, none with Exists and DoesNotExist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::LabelValue>>", length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub values: Option<Vec<String>>,
}

/// Nodes that are preferred to others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PreferredNodes {
    /// Nodes that are preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<NodeTerm>", required)]
    pub preference: Option<NodeTerm>,
    /// Weight among other preferences, from 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", required, range(min = 1, max = 100))]
    pub weight: Option<i64>,
}

/// Pods of the Machine's namespace that the guest runs near to, or is kept apart from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAffinity {
    /// Pods, at most 64 terms: preferred. The scheduler may also place the guest elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub preferred_during_scheduling_ignored_during_execution: Option<Vec<WeightedPodTerm>>,
    /// Pods, at most 64 terms: required. The guest is not started where no node fulfils them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub required_during_scheduling_ignored_during_execution: Option<Vec<PodTerm>>,
}

/// Pods, with a weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WeightedPodTerm {
    /// Pods that the weight applies to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PodTerm>", required)]
    pub pod_affinity_term: Option<PodTerm>,
    /// Weight among other preferences, from 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", required, range(min = 1, max = 100))]
    pub weight: Option<i64>,
}

/// Pods of the Machine's namespace, and what one topology domain is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTerm {
    /// The pods, by their labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PodSelector>", required)]
    pub label_selector: Option<PodSelector>,
    /// Key of a label of nodes; nodes with the same value are one topology domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelKey>", required)]
    pub topology_key: Option<String>,
}

/// Selects pods by their labels, which fulfil all requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSelector {
    /// Requirements, at most 64, that the labels of the pod fulfil.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub match_expressions: Option<Vec<LabelRequirement>>,
    /// Labels, at most 64, that the pod has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, schema::LabelValue>>", extend("maxProperties" = bounds::LABELS_MAX))]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// How pods of the Machine's namespace are spread over places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologySpreadConstraint {
    /// The pods that are counted, by their labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PodSelector>", required)]
    pub label_selector: Option<PodSelector>,
    /// Most by which the numbers of these pods in two places differ, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", required, range(min = 1, max = bounds::SPREAD_COUNT_MAX))]
    pub max_skew: Option<i64>,
    /// Fewest places, from 1; with whenUnsatisfiable DoNotSchedule only. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = bounds::SPREAD_COUNT_MAX))]
    pub min_domains: Option<i64>,
    /// Key of a label of nodes; nodes with the same value are one topology domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelKey>", required)]
    pub topology_key: Option<String>,
    /// DoNotSchedule: the guest is not started where the numbers would differ by more; ScheduleAnyway: other places are
    /// preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<UnsatisfiableAction>", required)]
    pub when_unsatisfiable: Option<String>,
}
