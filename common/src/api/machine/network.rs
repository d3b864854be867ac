//! Network cards of a Machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::choice::NicModel;
use crate::api::schema;
use crate::bounds;

/// A network card of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.macAddress) || !self.macAddress.matches('^[0:.-]+$')",
        "message": "a network card cannot have the address zero"
    },
    {
        "rule": "!has(self.macAddress) || self.macAddress.matches('^[0-9A-Fa-f][02468ACEace]')",
        "message": "a network card cannot have a multicast address"
    }
]))]
pub struct Network {
    /// IP addresses of the card, at most 8, in subnets of its NetworkConfiguration's ipam. No other
    /// Machine on the network segment can have one of them. Default: if the NetworkConfiguration has
    /// ipam, the controller allocates one of each family (IPv4, IPv6) that it has subnets of; else the
    /// guest asks a DHCP server. The guest gets them by cloud-init when it is made. Not in a
    /// MachineTemplate, and not for a card on the pod network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<schema::AddressText>>", length(max = bounds::CARD_ADDRESSES_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub ip_addresses: Option<Vec<String>>,
    /// MAC address of the card: six bytes in hexadecimal, unicast, unique on its network. Default:
    /// derived from the uid of the cluster and the names of namespace, machine and card.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::MacText>")]
    pub mac_address: Option<String>,
    /// Model of the card: virtio (default), e1000, e1000e or rtl8139.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<NicModel>")]
    pub model: Option<String>,
    /// Name of the card: at most 63 letters, digits, '-' and '_', unique in the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::NicName>", required)]
    pub name: Option<String>,
    /// Name of the NetworkConfiguration in the Machine's namespace that the card is attached to.
    /// Default: the pod network (KubeVirt) or the host's default network (libvirt), for at most one card.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ObjectName>")]
    pub network_name: Option<String>,
}
