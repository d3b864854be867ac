//! The objects as the controller keeps them: only the fields it reads.
//!
//! Ten thousand Machines with their VirtualMachines, instances and claims stay in memory, so
//! nothing is kept that no one asks for. Everything but the identity can be absent: an object
//! never fails to decode, because one that did would stop the watch for all others.

use std::collections::BTreeMap;

use common::api::libvirt_host::{LibvirtHostSpec, LibvirtHostStatus};
use common::api::network::NetworkConfigurationSpec;
use common::api::template::MachineTemplateSpec;
use common::names;
use common::quantity::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

use crate::cache::Kept;

mod guests;

pub(crate) use self::guests::{
    GuestOsInfo, GuestSummary, Instance, InstanceInterface, VirtualMachine, attachments,
};

/// Gives a projection its place in the API.
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
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use resource;

/// A value that becomes its default when it is not what it should be.
pub(crate) fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// What every object of ours tells about itself.
pub(crate) trait Meta: kube::Resource<DynamicType = ()> {
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

/// A condition of KubeVirt's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ForeignCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The conditions of others that somebody here reads. All others are dropped.
const READ: [&str; 12] = [
    // Of a VirtualMachine and its instance.
    "AgentConnected",
    "Failure",
    "HotMemoryChange",
    "HotVCPUChange",
    "LiveMigratable",
    "PodScheduled",
    "RestartRequired",
    // Of a claim.
    "ControllerResizeError",
    "FileSystemResizePending",
    "NodeResizeError",
    // Of a DataVolume.
    "Bound",
    "Running",
];

pub(crate) fn read<'de, D>(deserializer: D) -> Result<Vec<ForeignCondition>, D::Error>
where
    D: Deserializer<'de>,
{
    let mut conditions = Vec::<ForeignCondition>::deserialize(deserializer)?;
    conditions.retain(|condition| READ.contains(&condition.kind.as_str()));
    Ok(conditions)
}

/// Finds the message of a condition that is in this state.
pub(crate) fn told<'a>(
    conditions: &'a [ForeignCondition],
    kind: &str,
    status: &str,
) -> Option<&'a ForeignCondition> {
    debug_assert!(READ.contains(&kind), "{kind} is not kept");
    conditions
        .iter()
        .find(|condition| condition.kind == kind && condition.status == status)
}

/// Nothing is asked of all objects of these kinds at once.
macro_rules! kept {
    ($($name:ty),+) => {$(
        impl Kept for $name {
            type Summary = ();

            fn summary(&self) {}
        }
    )+};
}
kept!(
    Claim,
    Secret,
    StorageClass,
    Network,
    Attachment,
    Template,
    crate::data_volume::DataVolume
);

/// A `PersistentVolumeClaim`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Claim {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: ClaimSpec,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) status: ClaimStatus,
}
resource!(
    Claim,
    "PersistentVolumeClaim",
    "",
    "v1",
    "persistentvolumeclaims",
    NamespaceResourceScope
);

/// What is wished of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClaimSpec {
    pub(crate) access_modes: Vec<String>,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) volume_mode: Option<String>,
    pub(crate) resources: ClaimResources,
}

/// Resources of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimResources {
    pub(crate) requests: ClaimAmount,
}

/// An amount of storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimAmount {
    #[serde(deserialize_with = "lenient")]
    pub(crate) storage: Option<Bytes>,
}

/// What became of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimStatus {
    pub(crate) phase: String,
    pub(crate) capacity: ClaimAmount,
    #[serde(deserialize_with = "read")]
    pub(crate) conditions: Vec<ForeignCondition>,
}

/// A Secret of ours, without its content.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Secret {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
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
pub(crate) struct StorageClass {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) allow_volume_expansion: bool,
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
pub(crate) struct Network {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: NetworkConfigurationSpec,
}
resource!(
    Network,
    "NetworkConfiguration",
    "vitistack.io",
    "v1alpha1",
    "networkconfigurations",
    NamespaceResourceScope
);

/// A NetworkAttachmentDefinition of Multus.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Attachment {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: AttachmentSpec,
}
resource!(
    Attachment,
    "NetworkAttachmentDefinition",
    "k8s.cni.cncf.io",
    "v1",
    "network-attachment-definitions",
    NamespaceResourceScope
);

/// What is wished of a NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AttachmentSpec {
    pub(crate) config: String,
}

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

impl Kept for LibvirtHost {
    type Summary = ();

    fn summary(&self) {}

    /// Its labels are its admin's, and a `nodeSelector` asks for them.
    fn prune(&mut self) {
        let labels = self.metadata.labels.take();
        prune(&mut self.metadata);
        self.metadata.labels = labels;
    }
}

/// A MachineTemplate: whether its content is still what a Machine was expanded from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Template {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: MachineTemplateSpec,
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
pub(crate) fn prune(metadata: &mut ObjectMeta) {
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
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_as_expected_never_fails_to_decode() {
        let vm: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "u"},
            "spec": {"runStrategy": 5},
            "status": {"printableStatus": "NewInSomeVersion", "conditions": null},
        }))
        .unwrap();
        assert_eq!((vm.name(), vm.uid()), ("a", "u"));
        assert_eq!(vm.spec, VirtualMachine::default().spec);
        let claim: Claim = serde_json::from_value(json!({
            "metadata": {}, "status": {"phase": "Bound", "capacity": {"storage": "many"}},
        }))
        .unwrap();
        assert_eq!(claim.status.phase, "Bound");
        assert_eq!(claim.status.capacity.storage, None);
    }

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
