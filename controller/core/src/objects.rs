//! Projections of the kinds that every backend needs: metadata and the fields that the controller reads.
//!
//! The caches hold these for 10,000 Machines, so unread fields are dropped when an object is decoded. Every field
//! but the identity may be absent or malformed: an object never fails to decode, because one failure would stop
//! the watch for all objects of the kind.
//!
//! Reason: so a Machine with its VirtualMachine, instance and claim takes about 10 KiB (docs/performance.md;
//! `pruning_keeps_only_the_labels_and_annotations_of_the_project` in [`pruning`]).

mod pruning;

use common::api::machine_image::{MachineImageSpec, MachineImageStatus};
use common::api::network::{NetworkConfigurationSpec, NetworkConfigurationStatus};
use common::api::template::MachineTemplateSpec;
use common::catalog::NetworkRow;
use common::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Deserializes a field; a malformed value becomes the default, so that it does not stop the watch of its kind.
pub use common::api::lenient::or_default as lenient;

pub use self::pruning::{
    FINALIZERS_MAX, Own, metadata, prune, prune_except_finalizers, prune_except_labels,
    prune_of_administrator,
};

/// Implements [`kube::Resource`] for a projection with a field `metadata`: kind, group, version, plural, scope, and whether
/// the API server is to send the metadata only.
#[macro_export]
macro_rules! resource {
    ($name:ident, $kind:literal, $group:literal, $version:literal, $plural:literal, $scope:ident) => {
        $crate::resource!($name, $kind, $group, $version, $plural, $scope, false);
    };
    ($name:ident, $kind:literal, $group:literal, $version:literal, $plural:literal, $scope:ident, $metadata_only:literal) => {
        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = k8s_openapi::$scope;

            fn metadata_api() -> bool {
                $metadata_only
            }

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

/// Short access to the metadata of an object. Absent texts read as empty.
pub trait Meta: kube::Resource<DynamicType = ()> {
    /// `metadata.name`.
    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    /// `metadata.namespace`; empty for an object without a namespace.
    fn namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }

    /// `metadata.uid`.
    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// `metadata.resourceVersion`, if it is a number.
    fn version_number(&self) -> Option<u64> {
        self.meta().resource_version.as_deref()?.parse().ok()
    }

    /// Value of a label.
    fn label(&self, key: &str) -> Option<&str> {
        self.meta().labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Value of an annotation.
    fn annotation(&self, key: &str) -> Option<&str> {
        self.meta()
            .annotations
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }

    /// The names in an annotation that has a list of them, separated by commas.
    fn named_in(&self, annotation: &str) -> impl Iterator<Item = &str> {
        let named = self.annotation(annotation).into_iter();
        named.flat_map(|it| it.split(',')).map(str::trim)
    }

    /// Whether the object was deleted; finalizers may still keep it.
    fn is_deleting(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// Whether the object has this finalizer.
    fn has_finalizer(&self, finalizer: &str) -> bool {
        let mut finalizers = self.meta().finalizers.iter().flatten();
        finalizers.any(|name| name == finalizer)
    }

    /// Name of the Machine in the object's label. Anybody can set it: see [`belongs_to`](Self::belongs_to).
    fn machine(&self) -> Option<&str> {
        self.label(names::LABEL_MACHINE)
    }

    /// Uid of the Machine that this controller created the object for; `None` if it did not create it.
    fn machine_uid(&self) -> Option<&str> {
        (self.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY))
            .then(|| self.annotation(names::ANNOTATION_MACHINE_UID))
            .flatten()
    }

    /// Whether this controller created the object for this very Machine: by labels and uid, so not for an earlier
    /// Machine of the same name.
    fn belongs_to(&self, machine: &str, uid: &str) -> bool {
        self.machine() == Some(machine) && self.machine_uid() == Some(uid)
    }
}

impl<K: kube::Resource<DynamicType = ()>> Meta for K {}

/// Whether a cached object of this version is at least as new as `written`.
///
/// Versions of one kind are increasing numbers: guaranteed since Kubernetes 1.35, and true of every release before. A
/// version that is not a number counts as seen, because waiting for it would never end.
pub fn is_at_least(cached: Option<u64>, written: &str) -> bool {
    match (cached, written.parse()) {
        (Some(cached), Ok(written)) => cached >= written,
        (None, _) | (_, Err(_)) => true,
    }
}

/// A kind that a [`Cache`](crate::cache::Cache) can hold.
pub trait Cacheable: Meta + Serialize + DeserializeOwned {
    /// What is read of all objects at once; the cache holds it uncompressed.
    type Summary: std::fmt::Debug + Send + Sync;

    /// The summary of this object.
    fn summary(&self) -> Self::Summary;

    /// Name of the Machine by which the cache finds the object.
    fn indexed_machine(&self) -> Option<&str> {
        self.machine()
    }

    /// Drops what the controller never reads, before the object is cached.
    fn prune(&mut self) {
        prune(self.meta_mut());
    }
}

/// Implements [`Cacheable`](crate::objects::Cacheable) for kinds that need no summary.
#[macro_export]
macro_rules! cacheable {
    ($($name:ty),+) => {$(
        impl $crate::objects::Cacheable for $name {
            type Summary = ();

            fn summary(&self) {}
        }
    )+};
}
cacheable!(Secret, Template, Image);

/// A Secret without its content.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Secret {
    /// Pruned: see [`prune`].
    #[serde(default, deserialize_with = "metadata")]
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

/// A StorageClass.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageClass {
    /// Pruned: see [`prune`].
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Whether its volumes can be enlarged.
    #[serde(default, deserialize_with = "lenient")]
    pub allow_volume_expansion: bool,
    /// Whether it is marked as the class of claims that name none. No field of the object: read from its annotations,
    /// which are pruned.
    #[serde(default)]
    pub is_default: bool,
}

impl Cacheable for StorageClass {
    /// Whether it is the default.
    type Summary = bool;

    fn summary(&self) -> bool {
        self.is_default
    }

    fn prune(&mut self) {
        self.is_default |= names::is_default_class(|key| self.annotation(key));
        prune(&mut self.metadata);
    }
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
    /// Pruned: see [`prune`].
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// VLAN, bridge or attachment that network cards are connected to.
    #[serde(default, deserialize_with = "lenient")]
    pub spec: NetworkConfigurationSpec,
    /// The status as it was last written.
    #[serde(default, deserialize_with = "lenient")]
    pub status: NetworkConfigurationStatus,
}
resource!(
    Network,
    "NetworkConfiguration",
    "vitistack.io",
    "v1alpha1",
    "networkconfigurations",
    NamespaceResourceScope
);

impl Network {
    /// What its segment depends on. The ranges of its addresses, of which there may be hundreds, are not parsed for that.
    pub fn segment_row(&self) -> NetworkRow {
        NetworkRow {
            bridge: self.spec.bridge.clone(),
            vlan: self.spec.vlan,
            definition: self.spec.network_attachment_definition.clone(),
            ipam: None,
        }
    }
}

impl Cacheable for Network {
    type Summary = ();

    fn summary(&self) {}

    /// The in-use finalizer is added to those that the object has, and removed from them.
    fn prune(&mut self) {
        prune_except_finalizers(&mut self.metadata);
    }
}

/// A MachineTemplate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Template {
    /// Pruned: see [`prune`].
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Compared with the content that a Machine was expanded from.
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

/// A MachineImage.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Image {
    /// Pruned: see [`prune`].
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Compared with what Machines were filled from.
    #[serde(default, deserialize_with = "lenient")]
    pub spec: MachineImageSpec,
    /// The status as it was last written.
    #[serde(default, deserialize_with = "lenient")]
    pub status: MachineImageStatus,
}
resource!(
    Image,
    "MachineImage",
    "vitistack.io",
    "v1alpha1",
    "machineimages",
    ClusterResourceScope
);
