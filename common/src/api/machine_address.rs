//! `MachineAddress`: an IP address on a network segment, held by one Machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use crate::bounds;

/// An IP address on a network segment, held by one network card of one Machine. Written by the controller:
/// its name is derived from segment and address, so that creating it is the lock. Nothing of it changes;
/// the controller deletes it when the Machine is gone, or its guest no longer has the address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "vitistack.io",
        version = "v1alpha1",
        kind = "MachineAddress",
        plural = "machineaddresses",
        shortname = "maddr",
        category = "vitistack",
        doc = "An IP address on a network segment, held by one Machine.",
        selectable = ".spec.segment",
        selectable = ".spec.machineRef.namespace",
        selectable = ".spec.machineRef.name",
        printcolumn = r#"{"name":"Address","type":"string","jsonPath":".spec.address"}"#,
        printcolumn = r#"{"name":"Segment","type":"string","jsonPath":".spec.segment"}"#,
        printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.machineRef.namespace"}"#,
        printcolumn = r#"{"name":"Machine","type":"string","jsonPath":".spec.machineRef.name"}"#,
        printcolumn = r#"{"name":"Card","type":"string","jsonPath":".spec.machineRef.card"}"#,
        printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self == oldSelf",
    "message": "an address cannot change: delete the object, and the controller takes another"
}]))]
pub struct MachineAddressSpec {
    /// The network segment: the name of a bridge, with a slash and the VLAN tag if it is tagged; or
    /// definition, namespace and name of a NetworkAttachmentDefinition, separated by slashes.
    #[schemars(length(min = 1, max = bounds::TEXT_MAX))]
    pub segment: String,
    /// The IP address.
    #[schemars(with = "schema::AddressText")]
    pub address: String,
    /// Length of the prefix of its subnet in bits.
    #[schemars(range(min = 0, max = 128))]
    pub prefix: u32,
    /// Address of the router to other networks. Absent: the subnet has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::AddressText>")]
    pub gateway: Option<String>,
    /// The network card that has the address.
    pub machine_ref: MachineRef,
}

/// A network card of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineRef {
    /// Namespace of the Machine.
    #[schemars(with = "schema::Label")]
    pub namespace: String,
    /// Name of the Machine.
    #[schemars(with = "schema::Label")]
    pub name: String,
    /// metadata.uid of the Machine: another Machine of its name does not have the address.
    #[schemars(length(min = 1, max = bounds::NAME_MAX))]
    pub uid: String,
    /// Name of the network card.
    #[schemars(with = "schema::NicName")]
    pub card: String,
}
