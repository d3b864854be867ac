//! Network cards in the block.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::NicModel;
use crate::api::schema;
use crate::bounds;
use crate::mac::Mac;

/// A network card of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NormalizedNetwork {
    /// Position in the boot order, from 1. Absent: the guest does not boot from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub boot_order: Option<u32>,
    /// IP addresses from the spec. Absent: none are given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<schema::AddressText>", length(max = bounds::CARD_ADDRESSES_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub ip_addresses: Vec<IpAddr>,
    /// MAC address from the spec. Absent: the controller derives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::MacText>")]
    pub mac_address: Option<Mac>,
    /// Model of the card.
    pub model: NicModel,
    /// Name of the card.
    #[schemars(with = "schema::NicName")]
    pub name: String,
    /// Name of the NetworkConfiguration that the card is attached to. Absent: the pod network (KubeVirt)
    /// or the host's default network (libvirt).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub network_name: Option<String>,
}
