//! MachinePolicies and namespaces, as the controller caches them.

use std::sync::Arc;

use common::api::machine_policy::{MachinePolicySpec, MachinePolicyStatus};
use common::catalog::{Labels, Policy};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::metadata::{Kept, kept};
use serde::{Deserialize, Serialize};

use crate::objects::{Cacheable, Meta as _, Own, lenient, metadata, prune_except_labels};
use crate::resource;

/// A MachinePolicy: administrators write the spec, the controller writes the status.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PolicyObject {
    /// Pruned: see [`prune`](crate::objects::prune).
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Which namespaces it selects, and their quota.
    #[serde(default, deserialize_with = "lenient")]
    pub spec: MachinePolicySpec,
    /// The status as it was last written.
    #[serde(default, deserialize_with = "lenient")]
    pub status: MachinePolicyStatus,
}
resource!(
    PolicyObject,
    "MachinePolicy",
    "vitistack.io",
    "v1alpha1",
    "machinepolicies",
    ClusterResourceScope
);

impl Cacheable for PolicyObject {
    /// The parsed policy; `None` if its selector cannot be read.
    type Summary = Option<Arc<Policy>>;

    fn summary(&self) -> Self::Summary {
        Policy::new(self.name().to_owned(), self.spec.clone()).map(Arc::new)
    }
}

/// A namespace, as far as MachinePolicies select it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Namespace {
    /// Name and labels, by which policies select it.
    #[serde(default, deserialize_with = "kept::<_, AllLabels>")]
    pub metadata: ObjectMeta,
}
resource!(
    Namespace,
    "Namespace",
    "",
    "v1",
    "namespaces",
    ClusterResourceScope
);

/// What [`prune_except_labels`] keeps of a namespace.
enum AllLabels {}

impl Kept for AllLabels {
    fn keeps_label(_: &str) -> bool {
        true
    }

    fn keeps_annotation(key: &str) -> bool {
        Own::keeps_annotation(key)
    }
}

impl Namespace {
    /// Labels of the namespace, of any domain; empty if it has none.
    pub fn labels(&self) -> Labels {
        self.metadata.labels.clone().unwrap_or_default()
    }
}

impl Cacheable for Namespace {
    /// Name and labels.
    type Summary = (Box<str>, Labels);

    fn summary(&self) -> Self::Summary {
        (self.name().into(), self.labels())
    }

    /// Policies select by labels of any domain.
    fn prune(&mut self) {
        prune_except_labels(&mut self.metadata);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::assert_survives_compression;

    #[test]
    fn a_namespace_keeps_the_labels_that_policies_select_by() {
        let mut namespace: Namespace = serde_json::from_value(json!({
            "metadata": {"name": "prod", "labels": {"tenancy": "shared"}, "annotations": {"app": "x"}},
            "spec": {"finalizers": ["kubernetes"]},
        }))
        .unwrap();
        namespace.prune();
        assert_eq!(namespace.labels()["tenancy"], "shared");
        assert!(namespace.metadata.annotations.as_ref().unwrap().is_empty());
        assert_survives_compression(&namespace);
    }

    #[test]
    fn a_policy_survives_compression_and_is_parsed_once() {
        let policy: PolicyObject = serde_json::from_value(json!({
            "metadata": {"name": "tenants"},
            "spec": {"namespaceSelector": {}, "quota": {"cpu": 4, "storage": "1Ti"}},
            "status": {"selectedNamespaces": 2, "namespaces": [
                {"name": "prod", "cpu": 2, "memory": "4Gi", "storage": "20Gi"},
            ]},
        }))
        .unwrap();
        assert_survives_compression(&policy);
        assert_eq!(policy.summary().unwrap().quota.cpu, Some(4));
    }
}
