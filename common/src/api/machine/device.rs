//! Devices of a node that a Machine has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::schema;

/// A device of the node or host that the machine has for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Name of the device, such as nvidia.com/A100. On KubeVirt that of a resource of nodes, which an administrator
    /// permits in the field permittedHostDevices of the KubeVirt object; on libvirt one of devices of a LibvirtHost.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::ResourceName>", required)]
    pub device_name: Option<String>,
    /// Name of the device in this list: lower-case letters, digits and '-', at most 63.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema::Label>", required)]
    pub name: Option<String>,
}
