//! A LibvirtHost as the watch decodes it.

use std::sync::Arc;

use common::api::libvirt_host::LibvirtHostSpec;
use common::catalog::HostRow;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A LibvirtHost: its name, labels and spec.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = common::api::LibvirtHost)]
pub struct Host {
    metadata: ObjectMeta,
    /// `None` if this release cannot read the spec. The error is not passed on: one object that cannot
    /// be decoded would stop the watch for all others.
    #[serde(default, deserialize_with = "readable")]
    spec: Option<LibvirtHostSpec>,
}

impl Host {
    /// The row of the host, if its spec can be read.
    pub fn row(self) -> Option<Arc<HostRow>> {
        let name = self.name_any();
        let labels = self.metadata.labels.unwrap_or_default();
        Some(Arc::new(HostRow::new(name, labels, self.spec?)))
    }
}

fn readable<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<LibvirtHostSpec>, D::Error> {
    let spec = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(spec).ok())
}
