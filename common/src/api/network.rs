//! `NetworkConfiguration`: a network segment Machines attach to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use crate::bounds;

/// A network segment. Its bridge and VLAN never change: another segment is another network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "vitistack.io",
        version = "v1alpha1",
        kind = "NetworkConfiguration",
        plural = "networkconfigurations",
        shortname = "nc",
        category = "vitistack",
        namespaced,
        doc = "A network segment Machines attach to.",
        printcolumn = r#"{"name":"VLAN","type":"integer","jsonPath":".spec.vlan"}"#,
        printcolumn = r#"{"name":"Bridge","type":"string","jsonPath":".spec.bridge"}"#,
        printcolumn = r#"{"name":"MTU","type":"integer","jsonPath":".spec.mtu"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.vlan) == has(oldSelf.vlan) && (!has(self.vlan) || self.vlan == oldSelf.vlan)",
        "message": "vlan cannot change: another segment is another NetworkConfiguration"
    },
    {
        "rule": "has(self.bridge) == has(oldSelf.bridge) && (!has(self.bridge) || self.bridge == oldSelf.bridge)",
        "message": "bridge cannot change: another segment is another NetworkConfiguration"
    },
    {
        "rule": "has(self.bridge) || has(self.networkAttachmentDefinition)",
        "message": "bridge is required unless networkAttachmentDefinition names an existing definition"
    }
]))]
pub struct NetworkConfigurationSpec {
    /// VLAN tag, 1 to 4094. Absent: untagged. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = bounds::VLAN_MIN, max = bounds::VLAN_MAX))]
    pub vlan: Option<i64>,
    /// Bridge on the nodes, at most 15 characters. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::BridgeName>")]
    pub bridge: Option<String>,
    /// Largest packet of the segment in bytes, 68 to 65535. Absent: what the bridge has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = bounds::MTU_MIN, max = bounds::MTU_MAX))]
    pub mtu: Option<i64>,
    /// Name of an existing NetworkAttachmentDefinition of this namespace. Absent: one of the same
    /// name as this object is made and owned by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub network_attachment_definition: Option<String>,
}
