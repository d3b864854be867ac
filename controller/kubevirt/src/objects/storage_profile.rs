//! What CDI knows of a storage class: the access modes and volume modes that its provisioner supports.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use controller_core::objects::{Cacheable, lenient};
use controller_core::resource;

/// CDI's StorageProfile. It has the name of the class.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StorageProfile {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    /// What administrators have written in the spec, else what CDI knows of the provisioner.
    #[serde(default, deserialize_with = "lenient")]
    status: StorageProfileStatus,
}
resource!(
    StorageProfile,
    "StorageProfile",
    "cdi.kubevirt.io",
    "v1beta1",
    "storageprofiles",
    ClusterResourceScope
);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StorageProfileStatus {
    #[serde(deserialize_with = "lenient")]
    claim_property_sets: Vec<ClaimPropertySet>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClaimPropertySet {
    access_modes: Vec<String>,
}

impl Cacheable for StorageProfile {
    type Summary = ();

    fn summary(&self) {}
}

impl StorageProfile {
    /// Whether CDI knows no access mode of the class.
    pub(crate) fn lacks_access_modes(&self) -> bool {
        let sets = &self.status.claim_property_sets;
        sets.iter().all(|set| set.access_modes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_class_of_which_cdi_knows_no_access_mode_lacks_them() {
        let lacks = |status: Value| {
            let profile = json!({"metadata": {"name": "fast"}, "status": status});
            let profile: StorageProfile = serde_json::from_value(profile).unwrap();
            profile.lacks_access_modes()
        };
        let known = json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"});
        let unknown = json!({"volumeMode": "Block"});
        assert!(lacks(Value::Null));
        assert!(lacks(json!({"claimPropertySets": []})));
        assert!(lacks(json!({"claimPropertySets": [unknown]})));
        assert!(!lacks(json!({"claimPropertySets": [unknown, known]})));
    }
}
