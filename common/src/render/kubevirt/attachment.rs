//! The NetworkAttachmentDefinition of a NetworkConfiguration.

use serde::Serialize;

use super::identity::owner;
use super::types::{AttachmentSpec, Metadata, NetworkAttachmentDefinition};
use crate::api::network::NetworkConfigurationSpec;
use crate::names;

/// Version of the CNI specification. It is the newest version that every plugin shipped with Multus can
/// read.
const CNI_VERSION: &str = "0.3.1";

/// Configuration of the CNI plugin `bridge`. Fields are written in this order; changing it would change
/// every NetworkAttachmentDefinition.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BridgePlugin<'a> {
    cni_version: &'a str,
    name: &'a str,
    r#type: &'a str,
    bridge: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<i64>,
    ipam: super::types::Present,
}

/// The name of the NetworkAttachmentDefinition that a NetworkConfiguration uses: an existing one that its
/// spec names, or the one that is created with the NetworkConfiguration's name.
pub fn attachment_name<'a>(name: &'a str, spec: &'a NetworkConfigurationSpec) -> &'a str {
    spec.network_attachment_definition
        .as_deref()
        .unwrap_or(name)
}

/// The NetworkAttachmentDefinition to create for a NetworkConfiguration; `None` if its spec names an
/// existing one, or has no bridge.
pub fn attachment(
    namespace: &str,
    name: &str,
    uid: &str,
    spec: &NetworkConfigurationSpec,
) -> Option<NetworkAttachmentDefinition> {
    if spec.network_attachment_definition.is_some() {
        return None;
    }
    let plugin = BridgePlugin {
        cni_version: CNI_VERSION,
        name,
        r#type: "bridge",
        bridge: spec.bridge.as_deref()?,
        vlan: spec.vlan,
        mtu: spec.mtu,
        ipam: super::types::Present {},
    };
    Some(NetworkAttachmentDefinition {
        api_version: "k8s.cni.cncf.io/v1".into(),
        kind: "NetworkAttachmentDefinition".into(),
        metadata: Metadata {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            labels: [(
                names::LABEL_MANAGED_BY.to_owned(),
                names::MANAGED_BY.to_owned(),
            )]
            .into(),
            owner_references: vec![owner("NetworkConfiguration", name, uid)],
            ..Metadata::default()
        },
        spec: AttachmentSpec {
            config: serde_json::to_string(&plugin).ok()?,
        },
    })
}
