//! The objects as the controller keeps them: only the fields it reads.
//!
//! Ten thousand Machines with their VirtualMachines, instances and claims stay in memory, so
//! nothing is kept that no one asks for. Everything but the identity can be absent: an object
//! never fails to decode, because one that did would stop the watch for all others.

use std::collections::BTreeMap;

use common::api::network::NetworkConfigurationSpec;
use common::api::template::MachineTemplateSpec;
use common::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

/// Gives a projection its place in the API.
#[macro_export]
macro_rules! resource {
    ($name:ident, $kind:literal, $group:literal, $version:literal, $plural:literal, $scope:ident) => {
        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = k8s_openapi::$scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }
            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }
            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(
                &mut self,
            ) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// A value that becomes its default when it is not what it should be.
pub fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// What every object of ours tells about itself.
pub trait Meta: kube::Resource<DynamicType = ()> {
    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.meta().labels.as_ref()?.get(key).map(String::as_str)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.meta()
            .annotations
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }

    fn is_deleting(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    fn has_finalizer(&self, finalizer: &str) -> bool {
        let mut finalizers = self.meta().finalizers.iter().flatten();
        finalizers.any(|name| name == finalizer)
    }

    /// The Machine whose name is on the object's label.
    fn machine(&self) -> Option<&str> {
        self.label(names::LABEL_MACHINE)
    }

    /// Uid of the Machine the object was made for, when it is one of ours.
    fn machine_uid(&self) -> Option<&str> {
        (self.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY))
            .then(|| self.annotation(names::ANNOTATION_MACHINE_UID))
            .flatten()
    }

    /// Whether the object was made for this Machine: our labels and its uid.
    fn belongs_to(&self, machine: &str, uid: &str) -> bool {
        self.machine() == Some(machine) && self.machine_uid() == Some(uid)
    }
}

impl<K: kube::Resource<DynamicType = ()>> Meta for K {}

/// Nothing is asked of all objects of these kinds at once.
#[macro_export]
macro_rules! kept {
    ($($name:ty),+) => {$(
        impl $crate::cache::Kept for $name {
            type Summary = ();

            fn summary(&self) {}
        }
    )+};
}
kept!(Secret, StorageClass, Network, Template);

/// A Secret of ours, without its content.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Secret {
    #[serde(default)]
    pub metadata: ObjectMeta,
}
resource!(
    Secret,
    "Secret",
    "",
    "v1",
    "secrets",
    NamespaceResourceScope
);

/// A StorageClass: that it is there, and whether its volumes can grow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageClass {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub allow_volume_expansion: bool,
}
resource!(
    StorageClass,
    "StorageClass",
    "storage.k8s.io",
    "v1",
    "storageclasses",
    ClusterResourceScope
);

/// A NetworkConfiguration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Network {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub spec: NetworkConfigurationSpec,
}
resource!(
    Network,
    "NetworkConfiguration",
    "vitistack.io",
    "v1alpha1",
    "networkconfigurations",
    NamespaceResourceScope
);

/// A MachineTemplate: whether its content is still what a Machine was expanded from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Template {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub spec: MachineTemplateSpec,
}
resource!(
    Template,
    "MachineTemplate",
    "vitistack.io",
    "v1alpha1",
    "machinetemplates",
    ClusterResourceScope
);

/// Drops what no one reads. Labels and annotations of others go, too: they can be large.
pub fn prune(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.generate_name = None;
    metadata.self_link = None;
    keep_ours(metadata.labels.as_mut());
    keep_ours(metadata.annotations.as_mut());
}

fn keep_ours(map: Option<&mut BTreeMap<String, String>>) {
    if let Some(map) = map {
        map.retain(|key, _| names::is_ours(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_labels_and_annotations_are_kept() {
        let mut metadata = ObjectMeta {
            labels: Some(
                [
                    ("vitistack.io/machine".to_owned(), "web".to_owned()),
                    ("app".to_owned(), "x".to_owned()),
                ]
                .into(),
            ),
            annotations: Some(
                [
                    ("machine.vitistack.io/paused".to_owned(), "true".to_owned()),
                    ("evil-vitistack.io/x".to_owned(), "x".to_owned()),
                ]
                .into(),
            ),
            managed_fields: Some(vec![]),
            ..ObjectMeta::default()
        };
        prune(&mut metadata);
        assert_eq!(metadata.labels.unwrap().len(), 1);
        assert_eq!(metadata.annotations.unwrap().len(), 1);
        assert_eq!(metadata.managed_fields, None);
    }
}
