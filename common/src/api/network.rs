//! `NetworkConfiguration`: a network segment that network cards of Machines are attached to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use crate::bounds;

/// A network segment, written by the administrator. Bridge and VLAN cannot change: another segment
/// needs another NetworkConfiguration.
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
        doc = "A network segment that network cards of Machines are attached to.",
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
    /// VLAN tag, 1 to 4094. Default: untagged frames. Cannot change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = bounds::VLAN_MIN, max = bounds::VLAN_MAX))]
    pub vlan: Option<i64>,
    /// Name of the Linux bridge on the nodes, at most 15 characters. Required unless
    /// networkAttachmentDefinition is set. A LibvirtHost offers the network under this name. Cannot
    /// change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::BridgeName>")]
    pub bridge: Option<String>,
    /// MTU of the segment in bytes, 68 to 65535. Default: the MTU of the bridge.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = bounds::MTU_MIN, max = bounds::MTU_MAX))]
    pub mtu: Option<i64>,
    /// Name of an existing NetworkAttachmentDefinition in this namespace. Default: the controller
    /// creates one with the name of this object, which owns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub network_attachment_definition: Option<String>,
}
