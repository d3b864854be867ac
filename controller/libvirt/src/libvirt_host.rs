//! A `LibvirtHost`, as the controller keeps it.

use common::api::choice::VirtType;
use common::api::libvirt_host::{LibvirtHostSpec, LibvirtHostStatus};
use controller_core::objects::Cacheable;
use controller_core::objects::{lenient, prune_of_administrator};
use controller_core::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A `LibvirtHost`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub(crate) struct LibvirtHost {
    pub(crate) metadata: ObjectMeta,
    /// [`UNREADABLE`] if this release cannot read it.
    pub(crate) spec: LibvirtHostSpec,
    /// Why this release cannot read the spec. No connection is opened to such a host: its Machines stay as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unreadable: Option<String>,
    pub(crate) status: LibvirtHostStatus,
}

/// A `LibvirtHost` in the API, or in a cache.
#[derive(Deserialize)]
struct Stored {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    unreadable: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    status: LibvirtHostStatus,
}

impl From<Stored> for LibvirtHost {
    fn from(stored: Stored) -> Self {
        let (spec, unreadable) = match serde_json::from_value(stored.spec) {
            Ok(spec) => (spec, stored.unreadable),
            Err(error) => {
                let why = format!(
                    "this machine-controller cannot read its spec ({error}): upgrade machine-controller, or correct the LibvirtHost"
                );
                (UNREADABLE, Some(why))
            }
        };
        Self {
            metadata: stored.metadata,
            spec,
            unreadable,
            status: stored.status,
        }
    }
}

/// A spec by which nothing is done.
const UNREADABLE: LibvirtHostSpec = LibvirtHostSpec {
    uri: String::new(),
    credentials_secret_ref: None,
    virt_type: VirtType::Qemu,
    cpu_mode: None,
    schedulable: Some(false),
    maintenance: Some(true),
    overcommit: None,
    reserved: None,
    storage: None,
    image_pool: None,
    console_log_pool: None,
    existing_volumes: None,
    image_sources: None,
    networks: None,
    dedicated_cpus: None,
    devices: None,
    limits: None,
};

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

    #[test]
    fn a_host_whose_spec_cannot_be_read_stops_no_watch_and_nothing_is_done_by_it() {
        let mut host = json!({
            "metadata": {"name": "alpha"},
            "spec": {
                "uri": "test:///default",
                "virtType": "qemu",
                "networks": [{"networkName": "default", "type": "sdn", "source": "x"}],
            },
            "status": {"lastSeenTime": "2026-01-01T00:00:00Z"},
        });
        for spec in [host["spec"].clone(), json!({}), json!(null)] {
            host["spec"] = spec;
            let read: LibvirtHost = serde_json::from_value(host.clone()).unwrap();
            assert_eq!(read.spec, UNREADABLE);
            let why = read.unreadable.clone().unwrap();
            assert!(why.contains("upgrade machine-controller"), "{why}");
            assert!(read.status.last_seen_time.is_some());
            // As a cache keeps it.
            let kept = serde_json::to_value(&read).unwrap();
            assert_eq!(serde_json::from_value::<LibvirtHost>(kept).unwrap(), read);
        }
        host["spec"] = json!({"uri": "test:///default", "virtType": "qemu"});
        let read: LibvirtHost = serde_json::from_value(host).unwrap();
        assert_eq!(
            (read.spec.uri.as_str(), read.unreadable),
            ("test:///default", None)
        );
    }
}
