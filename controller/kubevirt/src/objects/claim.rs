//! A `PersistentVolumeClaim`, with only the fields that the controller reads.

use common::names;
use common::quantity::Bytes;
use controller_core::machine::Machine;
use controller_core::objects::{Cacheable, Meta as _, Own, lenient, prune};
use controller_core::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use runtime::metadata::{Kept, kept};
use serde::{Deserialize, Serialize};

use super::conditions::{ForeignCondition, read};

/// A `PersistentVolumeClaim`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Claim {
    #[serde(default, deserialize_with = "kept::<_, OfClaim>")]
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

/// The annotations that the controller reads of claims.
const ANNOTATIONS: [&str; 4] = [
    names::ANNOTATION_MACHINE_UID,
    names::ANNOTATION_RECLAIM_POLICY,
    names::ANNOTATION_RETAINED_FROM,
    names::ANNOTATION_SIZE_IN_GUEST,
];

/// What [`Claim::prune`] keeps. Of the annotations only those of claims: a tenant can have many claims without any Machine.
enum OfClaim {}

impl Kept for OfClaim {
    fn keeps_label(key: &str) -> bool {
        key == names::LABEL_STATE || Own::keeps_label(key)
    }

    fn keeps_annotation(key: &str) -> bool {
        ANNOTATIONS.contains(&key)
    }

    fn add_owner(owners: &mut Vec<OwnerReference>, owner: OwnerReference) {
        Own::add_owner(owners, owner);
    }
}

impl Cacheable for Claim {
    type Summary = ();

    fn summary(&self) {}

    /// A claim that KubeVirt made for the state of a guest has a label of KubeVirt's.
    fn indexed_machine(&self) -> Option<&str> {
        self.machine().or_else(|| self.label(names::LABEL_STATE))
    }

    /// Keeps KubeVirt's label, too, and of the annotations only those of claims.
    fn prune(&mut self) {
        let labels = self.metadata.labels.as_mut();
        let state = labels.and_then(|labels| labels.remove_entry(names::LABEL_STATE));
        prune(&mut self.metadata);
        self.metadata.labels.get_or_insert_default().extend(state);
        if let Some(annotations) = &mut self.metadata.annotations {
            annotations.retain(|key, _| OfClaim::keeps_annotation(key));
        }
    }
}

/// Desired state of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ClaimSpec {
    pub(crate) access_modes: Vec<String>,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) volume_mode: Option<String>,
    pub(crate) resources: ClaimResources,
    /// Name of the PersistentVolume, once the claim is bound.
    pub(crate) volume_name: Option<String>,
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

/// Observed state of a claim; Kubernetes and the storage write it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimStatus {
    pub(crate) phase: String,
    pub(crate) capacity: ClaimAmount,
    #[serde(deserialize_with = "read")]
    pub(crate) conditions: Vec<ForeignCondition>,
}

impl Claim {
    /// Whether KubeVirt uses it for the state of the guest of this name.
    pub(crate) fn has_state_of(&self, guest: &str) -> bool {
        self.machine().is_none() && self.label(names::LABEL_STATE) == Some(guest)
    }

    /// Whether the claim was made for this very Machine. One that is older than the Machine was kept of a former one and
    /// adopted, also if it has the uid of this one by now.
    pub(crate) fn was_made_for(&self, machine: &Machine) -> bool {
        let created = |metadata: &ObjectMeta| metadata.creation_timestamp.as_ref().map(|it| it.0);
        let is_older = created(&self.metadata)
            .zip(created(&machine.metadata))
            .is_some_and(|(claim, machine)| claim < machine);
        self.belongs_to(machine.name(), machine.uid()) && !is_older
    }

    /// Whether several nodes can write to the claim.
    pub(crate) fn is_shared(&self) -> bool {
        self.spec
            .access_modes
            .iter()
            .any(|mode| mode == "ReadWriteMany")
    }

    /// Uid of the DataVolume that owns the claim. The garbage collector deletes the claim with it.
    pub(crate) fn data_volume(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        let mut importers = owners.filter(|owner| {
            owner.kind == "DataVolume" && owner.api_version.starts_with("cdi.kubevirt.io/")
        });
        importers.next().map(|owner| owner.uid.as_str())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_claim_keeps_the_label_by_which_kubevirt_finds_the_state_of_a_guest() {
        let mut claim: Claim = serde_json::from_value(json!({
            "metadata": {"labels": {names::LABEL_STATE: "web", "app": "x"}},
        }))
        .unwrap();
        claim.prune();
        assert_eq!(claim.indexed_machine(), Some("web"));
        assert!(claim.has_state_of("web"));
        assert_eq!(claim.label("app"), None);
    }

    /// A claim of the largest size that the API server stores: 400 of them are to take no more than those of 400 disks.
    #[test]
    fn what_a_tenant_writes_into_the_metadata_of_a_claim_is_not_kept() {
        let long = "x".repeat(300 << 10);
        let owner = |kind: &str| json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": kind, "name": long, "uid": "u"});
        let mut annotations: Value = (0..1000)
            .map(|it| (format!("x.vitistack.io/{it}"), json!("x")))
            .collect();
        annotations[names::ANNOTATION_PAUSED] = json!("true");
        annotations[names::ANNOTATION_SIZE_IN_GUEST] = json!(long);
        annotations[names::ANNOTATION_MACHINE_UID] = json!("uid-of-web");
        let mut claim: Claim = serde_json::from_value(json!({"metadata": {
            "name": "web-root",
            "labels": {names::LABEL_MACHINE: "web", "x.vitistack.io/a": "x"},
            "annotations": annotations,
            "finalizers": [format!("example.org/{long}")],
            "ownerReferences": [owner("DataVolume"), owner("Job")],
        }}))
        .unwrap();
        claim.prune();
        let expected = json!({
            "name": "web-root",
            "labels": {names::LABEL_MACHINE: "web"},
            "annotations": {names::ANNOTATION_MACHINE_UID: "uid-of-web"},
            "ownerReferences": [],
        });
        assert_eq!(json!(claim.metadata), expected);
    }
}
