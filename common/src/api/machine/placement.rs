//! Where a Machine runs in relation to others.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::GroupScope;
use crate::api::schema;

/// Where a machine runs in relation to others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Group of Machines of the namespace that are kept apart. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anti_affinity_group: Option<AntiAffinityGroup>,
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
