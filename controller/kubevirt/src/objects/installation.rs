//! The `KubeVirt` object: how an administrator has configured KubeVirt on this cluster.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use controller_core::objects::{Cacheable, lenient};
use controller_core::resource;

/// The value of `workloadUpdateMethods` with which KubeVirt migrates guests for changes of them.
const LIVE_MIGRATE: &str = "LiveMigrate";

/// A `KubeVirt` object. A cluster has one, in a namespace of its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Installation {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    spec: Spec,
    #[serde(default, deserialize_with = "lenient")]
    status: Status,
}
resource!(
    Installation,
    "KubeVirt",
    "kubevirt.io",
    "v1",
    "kubevirts",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[serde(deserialize_with = "lenient")]
    workload_update_strategy: UpdateStrategy,
    #[serde(deserialize_with = "lenient")]
    configuration: Configuration,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct UpdateStrategy {
    workload_update_methods: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Configuration {
    developer_configuration: DeveloperConfiguration,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeveloperConfiguration {
    feature_gates: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    #[serde(rename = "observedKubeVirtVersion")]
    version: String,
}

/// What the controller acts on of a [`Installation`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Version that runs; empty until KubeVirt has reported it.
    pub(crate) version: String,
    /// Feature gates that an administrator has enabled. Gates that a version enables by default are not listed.
    pub(crate) gates: BTreeSet<String>,
    /// Whether KubeVirt migrates a guest by itself so that a change takes effect.
    pub(crate) migrates: bool,
}

impl Installation {
    pub(crate) fn settings(&self) -> Settings {
        let methods = &self.spec.workload_update_strategy.workload_update_methods;
        let developer = &self.spec.configuration.developer_configuration;
        Settings {
            version: self.status.version.clone(),
            gates: developer.feature_gates.clone(),
            migrates: methods.iter().any(|method| method == LIVE_MIGRATE),
        }
    }
}

impl Cacheable for Installation {
    type Summary = Settings;

    fn summary(&self) -> Settings {
        self.settings()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn settings(object: Value) -> Settings {
        let installation: Installation = serde_json::from_value(object).unwrap();
        installation.settings()
    }

    #[test]
    fn settings_are_read_and_what_is_malformed_is_as_if_it_was_not_set() {
        let metadata = json!({"name": "kubevirt", "namespace": "kubevirt"});
        let read = settings(json!({
            "metadata": metadata,
            "spec": {
                "workloadUpdateStrategy": {"workloadUpdateMethods": ["Evict", "LiveMigrate"]},
                "configuration": {"developerConfiguration": {"featureGates": ["HostDevices"]}},
            },
            "status": {"observedKubeVirtVersion": "v1.9.0", "phase": "Deployed"},
        }));
        let expected = Settings {
            version: "v1.9.0".into(),
            gates: ["HostDevices".to_owned()].into(),
            migrates: true,
        };
        assert_eq!(read, expected);
        let malformed = settings(json!({
            "metadata": metadata, "status": "Deployed",
            "spec": {"workloadUpdateStrategy": {"workloadUpdateMethods": 5}},
        }));
        assert_eq!(malformed, Settings::default());
    }
}
