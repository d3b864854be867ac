//! `NetworkConfiguration`: a network segment that network cards of Machines are attached to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lenient::{or_absent, readable_items};
use super::schema;
use super::status::Condition;
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
        status = "NetworkConfigurationStatus",
        doc = "A network segment that network cards of Machines are attached to.",
        printcolumn = r#"{"name":"VLAN","type":"integer","jsonPath":".spec.vlan"}"#,
        printcolumn = r#"{"name":"Bridge","type":"string","jsonPath":".spec.bridge"}"#,
        printcolumn = r#"{"name":"MTU","type":"integer","jsonPath":".spec.mtu"}"#,
        printcolumn = r#"{"name":"Machines","type":"integer","jsonPath":".status.machines","description":"Machines of the namespace that name it"}"#,
        printcolumn = r#"{"name":"Addresses","type":"integer","jsonPath":".status.addressesInUse","description":"Addresses of its subnets in use"}"#,
        printcolumn = r#"{"name":"Total","type":"integer","jsonPath":".status.addressesTotal","description":"Addresses that can be allocated","priority":1}"#,
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
    /// IP addresses of the segment, if Machines are to get theirs from this object. Default: guests ask a
    /// DHCP server of the network, or are configured by network data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipam: Option<Ipam>,
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

/// IP addresses of a network segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipam {
    /// Subnets of the segment, at most 16, which do not overlap. A network card without addresses of its
    /// own gets one of each family (IPv4, IPv6) that has a subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(required, length(min = 1, max = bounds::SUBNETS_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub subnets: Option<Vec<Subnet>>,
    /// Addresses of the name servers that guests use, at most 8. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::AddressText>>", length(max = bounds::DNS_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub dns: Option<Vec<String>>,
    /// Domains in which guests search names that have no dot, at most 8. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::DomainText>>", length(max = bounds::SEARCH_DOMAINS_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub search_domains: Option<Vec<String>>,
}

/// A subnet of a network segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subnet {
    /// Address of the network and length of its prefix, such as 10.0.0.0/24 or fd00:1::/64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::CidrText>", required)]
    pub cidr: Option<String>,
    /// Address of the router to other networks, in the subnet. No Machine gets it. Default: none, so
    /// guests get no default route from this subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::AddressText>")]
    pub gateway: Option<String>,
    /// What addresses are allocated from, at most 32: ranges such as 10.0.0.10-10.0.0.99, or single
    /// addresses. Addresses outside of them can be given to a network card. Default: the whole subnet
    /// without its network address, broadcast address and gateway, and without the addresses in dns.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::RangeText>>", length(max = bounds::RANGES_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub ranges: Option<Vec<String>>,
}

/// Use of a network segment. Written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigurationStatus {
    /// Number of Machines of the namespace that name this object.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub machines: Option<u32>,
    /// Number of addresses of its subnets that Machines of any namespace hold on the segment. Absent
    /// without ipam.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub addresses_in_use: Option<u32>,
    /// Number of addresses that can be allocated, at most 2^63-1. Absent without ipam.
    #[serde(
        default,
        deserialize_with = "or_absent",
        skip_serializing_if = "Option::is_none"
    )]
    pub addresses_total: Option<i64>,
    /// AttachmentReady: whether Multus can attach cards on KubeVirt. AddressesAvailable: whether each
    /// family of its subnets has a free address.
    #[serde(
        default,
        deserialize_with = "readable_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(length(max = bounds::CONDITIONS_MAX), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
