//! A NetworkConfiguration as the watch decodes it: its name and its spec.

use common::api::NetworkConfiguration;
use common::api::network::NetworkConfigurationSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use runtime::metadata::{Identity, kept};
use serde::Deserialize;

/// A NetworkConfiguration: its name and its spec.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = NetworkConfiguration)]
pub struct Network {
    #[serde(deserialize_with = "kept::<_, Identity>")]
    metadata: ObjectMeta,
    /// VLAN, bridge or attachment that network cards are connected to.
    pub(super) spec: NetworkConfigurationSpec,
}
