//! A `LibvirtHost`, as the controller keeps it.

use common::api::libvirt_host::{LibvirtHostSpec, LibvirtHostStatus};
use controller_core::objects::Cacheable;
use controller_core::objects::{lenient, prune_of_administrator};
use controller_core::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// A `LibvirtHost`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LibvirtHost {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: LibvirtHostSpec,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) status: LibvirtHostStatus,
}
resource!(
    LibvirtHost,
    "LibvirtHost",
    "vitistack.io",
    "v1alpha1",
    "libvirthosts",
    ClusterResourceScope
);

impl Cacheable for LibvirtHost {
    type Summary = ();

    fn summary(&self) {}

    /// Its labels are written by its admin; a `nodeSelector` has to match them.
    fn prune(&mut self) {
        prune_of_administrator(&mut self.metadata);
    }
}
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_keeps_the_labels_that_machines_select_by() {
        let host = json!({
            "metadata": {"labels": {"zone": "a"}, "annotations": {"app": "x"}},
            "spec": {"uri": "test:///default", "virtType": "qemu"},
        });
        let mut host: LibvirtHost = serde_json::from_value(host).unwrap();
        host.prune();
        assert_eq!(host.metadata.labels.unwrap()["zone"], "a");
        assert!(host.metadata.annotations.unwrap().is_empty());
    }
}
