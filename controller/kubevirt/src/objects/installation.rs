//! The `KubeVirt` object: how an administrator has configured KubeVirt on this cluster.

use common::catalog::KubevirtRow;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use controller_core::objects::Cacheable;
use controller_core::resource;

/// A `KubeVirt` object. A cluster has one, in a namespace of its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Installation {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}
resource!(
    Installation,
    "KubeVirt",
    "kubevirt.io",
    "v1",
    "kubevirts",
    NamespaceResourceScope
);

impl Cacheable for Installation {
    type Summary = KubevirtRow;

    fn summary(&self) -> KubevirtRow {
        KubevirtRow::new(&self.spec, &self.status)
    }
}
