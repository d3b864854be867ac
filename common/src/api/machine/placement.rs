//! Where a Machine runs: in relation to others, and on which tainted nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::affinity::{Affinity, TopologySpreadConstraint};
use crate::api::cel;
use crate::api::choice::{GroupScope, TaintEffect, TolerationOperator};
use crate::api::schema;
use crate::bounds;

/// Where a machine runs: in relation to others, and on which tainted nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Nodes and pods of the namespace that the machine is placed by, as in a Pod. On KubeVirt only. That of the template
    /// applies as a whole if the machine has none. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Group of Machines of the namespace that are kept apart. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anti_affinity_group: Option<AntiAffinityGroup>,
    /// Name of the PriorityClass of the guest's pod: a guest of a higher priority takes the place of others when nodes
    /// are full, also of other namespaces. On KubeVirt only. Default: none, so the cluster's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub priority_class_name: Option<String>,
    /// Taints, at most 32, of the nodes that the machine may run on all the same, as in a Pod. On KubeVirt only. Default:
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::TOLERATIONS_MAX))]
    pub tolerations: Option<Vec<Toleration>>,
    /// How the machine and other pods of the namespace are spread over nodes, at most 64 constraints, as in a Pod. On
    /// KubeVirt only. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
}

/// A taint of nodes that the machine may run on all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = cel::toleration()))]
pub struct Toleration {
    /// What the taint does: NoSchedule, PreferNoSchedule or NoExecute. Default: any of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TaintEffect>")]
    pub effect: Option<String>,
    /// Key of the taint. Default: any key, which needs the operator Exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelKey>")]
    pub key: Option<String>,
    /// Equal: the taint has the value; Exists: it may have any value. Default: Equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TolerationOperator>")]
    pub operator: Option<String>,
    /// How long the guest stays on a node that gets such a taint, in seconds, with the effect NoExecute only. Default: for
    /// ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
    /// Value of the taint, with the operator Equal only. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelValue>")]
    pub value: Option<String>,
}

/// A group of Machines of one namespace that are kept apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AntiAffinityGroup {
    /// Name of the group: lower-case letters, digits and '-', at most 63. Every Machine of the namespace that names it is
    /// in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>", required)]
    pub name: Option<String>,
    /// Whether the machine is not started where it would share a host or zone with another one of the group. Default:
    /// false, so that it is started there only if there is no other place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
    /// What the machines do not share: Host, a node or LibvirtHost, or Zone, the value of the label
    /// topology.kubernetes.io/zone of it. Default: Host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<GroupScope>")]
    pub scope: Option<String>,
}
