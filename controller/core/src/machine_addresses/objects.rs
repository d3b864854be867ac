//! MachineAddresses, as the controller caches them.

use std::net::IpAddr;

use common::api::machine_address::{MachineAddressSpec, MachineRef};
use common::names;
use common::render::CardAddress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::TypeMeta;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::objects::{Cacheable, Meta as _, lenient, metadata};
use crate::resource;

/// A MachineAddress.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MachineAddress {
    /// Group, version and kind, which an object that is created has to name.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub types: Option<TypeMeta>,
    /// Pruned: see [`prune`](crate::objects::prune).
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// The address and who has it.
    #[serde(default, deserialize_with = "lenient")]
    pub spec: MachineAddressSpec,
}
resource!(
    MachineAddress,
    "MachineAddress",
    "vitistack.io",
    "v1alpha1",
    "machineaddresses",
    ClusterResourceScope
);

/// What is read of all MachineAddresses at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Name of the MachineAddress.
    pub name: Box<str>,
    /// The network segment.
    pub segment: Box<str>,
    /// The address.
    pub address: Option<IpAddr>,
    /// Who has it.
    pub holder: MachineRef,
}

impl Cacheable for MachineAddress {
    type Summary = Lock;

    fn summary(&self) -> Lock {
        Lock {
            name: self.name().into(),
            segment: self.spec.segment.as_str().into(),
            address: parsed(&self.spec.address),
            holder: self.spec.machine_ref.clone(),
        }
    }
}

impl MachineAddress {
    /// The lock of an address for a card of a Machine.
    pub(super) fn new(machine: &Machine, card: &str, segment: &str, address: CardAddress) -> Self {
        let mut lock = Self {
            types: Some(TypeMeta::resource::<Self>()),
            metadata: ObjectMeta {
                name: Some(names::machine_address(segment, address.address)),
                ..ObjectMeta::default()
            },
            spec: MachineAddressSpec {
                segment: segment.to_owned(),
                address: address.address.to_string(),
                prefix: address.prefix.into(),
                gateway: address.gateway.map(|gateway| gateway.to_string()),
                machine_ref: MachineRef {
                    namespace: machine.namespace().to_owned(),
                    name: machine.name().to_owned(),
                    uid: machine.uid().to_owned(),
                    card: card.to_owned(),
                },
            },
        };
        // By the label the controller finds the addresses of a Machine.
        lock.metadata.labels = Some(machine.identity("").labels());
        lock
    }

    /// Whether this very Machine has it, and not one of its name before or after it.
    pub(super) fn is_held_by(&self, machine: &Machine) -> bool {
        let holder = &self.spec.machine_ref;
        holder.uid == machine.uid() && !holder.uid.is_empty()
    }

    /// The address with prefix and gateway; `None` if it is not one.
    pub(super) fn address(&self) -> Option<CardAddress> {
        Some(CardAddress {
            address: parsed(&self.spec.address)?,
            prefix: u8::try_from(self.spec.prefix).ok()?,
            gateway: self.spec.gateway.as_deref().and_then(parsed),
        })
    }
}

/// An address as the objects have it: as text that may be anything.
pub(super) fn parsed(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{assert_survives_compression, with_full_metadata};

    #[test]
    fn an_address_survives_compression_and_a_malformed_one_is_read_as_none() {
        let address: MachineAddress = with_full_metadata(&json!({"spec": {
            "segment": "br0/100", "address": "10.0.0.5", "prefix": 24, "gateway": "10.0.0.1",
            "machineRef": {"namespace": "prod", "name": "web", "uid": "u", "card": "eth0"},
        }}));
        assert_survives_compression(&address);
        assert_eq!(address.address().unwrap().address.to_string(), "10.0.0.5");
        let malformed: MachineAddress = with_full_metadata(&json!({"spec": {"address": 7}}));
        assert_eq!(malformed.address(), None);
        assert_eq!(malformed.summary().address, None);
    }
}
