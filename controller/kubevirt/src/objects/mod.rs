//! The objects of KubeVirt, CDI and Multus, and the claims, as the controller keeps them: only the fields it reads.

pub(crate) mod data_volume;
mod guests;

use common::quantity::Bytes;
use controller_core::objects::lenient;
use controller_core::{cacheable, resource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize};

pub(crate) use self::guests::{
    GuestOsInfo, GuestSummary, Instance, InstanceInterface, VirtualMachine, attachments,
};

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

cacheable!(Claim, Attachment, data_volume::DataVolume);

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
#[cfg(test)]
mod tests {
    use std::fmt;

    use controller_core::cache::compressed::Compressed;
    use controller_core::objects::Meta as _;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::data_volume::DataVolume;
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

    fn comes_back<T: Serialize + DeserializeOwned + fmt::Debug>(value: &T) {
        let back = Compressed::new(value).decompress();
        assert_eq!(format!("{back:?}"), format!("{value:?}"));
    }

    fn decoded<T: DeserializeOwned>(object: &Value) -> T {
        let metadata = json!({
            "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7",
            "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"vitistack.io/machine": "web"}, "annotations": {"vitistack.io/x": "\"ü\n"},
            "finalizers": ["a"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "b", "uid": "c"}],
        });
        let mut object = object.clone();
        object["metadata"] = metadata;
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn every_kind_comes_back_as_it_was() {
        let conditions = json!([
            {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "m"},
            {"type": "Running", "status": "False"},
        ]);
        let guest = json!({
            "domain": {"cpu": {"cores": 2, "maxSockets": 4}, "memory": {"guest": "2Gi"},
                "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}, "bootOrder": 1}], "rng": {}}},
            "networks": [{"name": "a", "multus": {"networkName": "default/prod"}}],
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "web-root"}}],
        });
        comes_back(&decoded::<VirtualMachine>(&json!({
            "spec": {"runStrategy": "Always", "template": {"metadata": {"annotations": {"machine.vitistack.io/user-data": "7-a"}}, "spec": guest}},
            "status": {"printableStatus": "Running", "conditions": conditions},
        })));
        comes_back(&decoded::<Instance>(&json!({"spec": guest, "status": {
            "phase": "Running", "nodeName": "node-1", "guestOSInfo": {"name": "Fedora", "kernelRelease": "6"},
            "interfaces": [{"name": "a", "mac": "02:00:00:00:00:01", "ipAddresses": ["10.0.0.1"]}],
            "conditions": conditions, "currentCPUTopology": {"sockets": 2}, "memory": {"guestCurrent": "1Gi"},
        }})));
        comes_back(&decoded::<Claim>(&json!({
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1500M"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}, "conditions": [{"type": "NodeResizeError", "status": "True"}]},
        })));
        comes_back(&decoded::<DataVolume>(&json!({"status": {
            "phase": "ImportInProgress", "progress": "12.5%", "conditions": conditions,
        }})));
        comes_back(&decoded::<Attachment>(&json!({"spec": {"config": "{}"}})));
    }
}
