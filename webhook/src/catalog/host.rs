//! A LibvirtHost as the watch decodes it.

use std::sync::Arc;

use common::api::lenient::or_absent;
use common::api::libvirt_host::{LibvirtHostSpec, LibvirtHostStatus};
use common::catalog::{HostHardware, HostRow, kept_by_namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;

/// A LibvirtHost: its name, labels and spec, and what Machines may have on it.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = common::api::LibvirtHost)]
pub struct Host {
    metadata: ObjectMeta,
    /// `None` if this release cannot read the spec. The error is not passed on: one object that cannot
    /// be decoded would stop the watch for all others.
    #[serde(default, deserialize_with = "or_absent")]
    spec: Option<LibvirtHostSpec>,
    /// `None` if there is none, or if this release cannot read it.
    #[serde(default, deserialize_with = "or_absent")]
    status: Option<LibvirtHostStatus>,
}

impl Host {
    /// The row of the host, if its spec can be read.
    pub fn row(self) -> Option<Arc<HostRow>> {
        let name = self.name_any();
        let labels = self.metadata.labels.unwrap_or_default();
        let status = self.status.unwrap_or_default();
        let kept = kept_by_namespace(&status);
        let mut row = HostRow::new(
            name,
            labels,
            self.spec?,
            status.capacity,
            status.allocatable,
        );
        row.hardware = HostHardware {
            machine_types: status.machine_types.into(),
            firmware: status.firmware,
            tpm: status.tpm,
            cpu_models: status.cpu_models.into(),
            hugepages: status.hugepages.map(Into::into),
        };
        row.allocated = status.allocated;
        row.kept = kept;
        Some(Arc::new(row))
    }
}
