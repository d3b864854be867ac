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
    /// Whether frames from other addresses than that of the card are dropped.
    #[serde(rename = "macspoofchk", skip_serializing_if = "Option::is_none")]
    mac_spoof_check: Option<bool>,
    ipam: super::types::Present,
}

/// The configuration of the plugin; `None` if the spec has no bridge.
fn config(
    name: &str,
    spec: &NetworkConfigurationSpec,
    mac_spoof_check: Option<bool>,
) -> Option<String> {
    let plugin = BridgePlugin {
        cni_version: CNI_VERSION,
        name,
        r#type: "bridge",
        bridge: spec.bridge.as_deref()?,
        vlan: spec.vlan,
        mtu: spec.mtu,
        mac_spoof_check,
        ipam: super::types::Present {},
    };
    serde_json::to_string(&plugin).ok()
}

/// Whether the configuration of an existing NetworkAttachmentDefinition needs no change. Earlier releases wrote it
/// without the check of MAC addresses; it stays so until the NetworkConfiguration changes, because on nodes without
/// nftables no pod would start with the check.
pub fn is_attachment_current(
    config_of_live: &str,
    name: &str,
    spec: &NetworkConfigurationSpec,
) -> bool {
    let known = [config(name, spec, Some(true)), config(name, spec, None)];
    known
        .into_iter()
        .flatten()
        .any(|known| known == config_of_live)
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
    let config = config(name, spec, Some(true))?;
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
        spec: AttachmentSpec { config },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_of_an_earlier_release_is_current_until_the_network_changes() {
        let spec = NetworkConfigurationSpec {
            bridge: Some("br0".into()),
            ..NetworkConfigurationSpec::default()
        };
        let earlier =
            r#"{"cniVersion":"0.3.1","name":"prod","type":"bridge","bridge":"br0","ipam":{}}"#;
        assert!(is_attachment_current(earlier, "prod", &spec));
        let desired = attachment("default", "prod", "uid", &spec).map(|it| it.spec.config);
        let desired = desired.unwrap_or_default();
        assert!(desired.contains(r#""macspoofchk":true"#), "{desired}");
        assert!(is_attachment_current(&desired, "prod", &spec));
        let changed = NetworkConfigurationSpec {
            mtu: Some(9000),
            ..spec
        };
        assert!(!is_attachment_current(earlier, "prod", &changed));
        assert!(!is_attachment_current(&desired, "prod", &changed));
    }
}
