//! Where a machine runs, in the block.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::{GroupScope, TaintEffect, TolerationOperator};
use crate::api::machine::{Affinity, TopologySpreadConstraint};
use crate::api::schema;
use crate::bounds;

/// Where a machine runs: in relation to others, and on which tainted nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedPlacement {
    /// Nodes and pods that the machine is placed by; on KubeVirt only. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Group of Machines of the namespace that are kept apart. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anti_affinity_group: Option<NormalizedGroup>,
    /// Name of the PriorityClass of the guest's pod; on KubeVirt only. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub priority_class_name: Option<String>,
    /// Taints of nodes that the machine may run on all the same; on KubeVirt only. Absent: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::TOLERATIONS_MAX))]
    pub tolerations: Vec<NormalizedToleration>,
    /// How pods are spread over nodes; on KubeVirt only. Absent: as the cluster does by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::AFFINITY_ITEMS_MAX))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
}

impl NormalizedPlacement {
    /// The placement, if it says anything.
    pub fn if_any(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

/// A taint of nodes that the machine may run on all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedToleration {
    /// What the taint does. Absent: any effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// Key of the taint. Absent: any key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelKey>")]
    pub key: Option<String>,
    /// How the value of the taint is compared.
    pub operator: TolerationOperator,
    /// How long the guest stays on a node that gets such a taint, in seconds. Absent: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
    /// Value of the taint. Absent: none, or any with the operator Exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::LabelValue>")]
    pub value: Option<String>,
}

/// A group of Machines that are kept apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedGroup {
    /// Name of the group in the namespace.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// Whether the machine is not started where it would share a host or zone with another one of the group.
    pub required: bool,
    /// What the machines do not share.
    pub scope: GroupScope,
}

impl fmt::Display for NormalizedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let required = if self.required {
            "required"
        } else {
            "preferred"
        };
        write!(f, "{} by {}, {required}", self.name, self.scope)
    }
}
