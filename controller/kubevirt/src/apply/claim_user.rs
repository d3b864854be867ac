//! Who uses a claim: VirtualMachines, instances and pods of its namespace, of any owner.
//!
//! The cached projections of these kinds drop fields that they cannot decode. Here a dropped field could cost a
//! disk, so the whole `spec` and `status` are searched, without knowing their schema: everywhere in KubeVirt and in
//! pods a claim is named by the key `claimName`, or by the name of the DataVolume that made it.

use std::fmt::Write as _;

use common::names;
use common::render::kubevirt::HALTED;
use controller_core::backend::Failed;
use controller_core::client::Remedy;
use controller_core::machine::Machine;
use controller_core::objects::Meta as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use runtime::metadata::{Kept, kept};
use serde::Deserialize;
use serde_json::Value;

/// Kinds of objects that can have a claim as a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserKind {
    VirtualMachine,
    Instance,
    Pod,
}

impl UserKind {
    /// The kind as the API server names it.
    fn name(self) -> &'static str {
        match self {
            Self::VirtualMachine => "VirtualMachine",
            Self::Instance => "VirtualMachineInstance",
            Self::Pod => "Pod",
        }
    }
}

/// What is read of the metadata of a [`ClaimUser`].
enum OfUser {}

impl Kept for OfUser {
    fn keeps_label(key: &str) -> bool {
        key == names::LABEL_MACHINE
    }

    fn keeps_annotation(key: &str) -> bool {
        key == names::ANNOTATION_MACHINE_UID
    }

    fn add_owner(owners: &mut Vec<OwnerReference>, owner: OwnerReference) {
        owners.extend((owner.kind == UserKind::Instance.name()).then_some(owner));
    }
}

/// An object that can have a claim as a volume.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ClaimUser {
    #[serde(deserialize_with = "kept::<_, OfUser>")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl ClaimUser {
    /// Whether the claim is named anywhere in the object. A pod that has ended will not run again and does not
    /// count: Kubernetes itself releases a claim then.
    pub(crate) fn uses(&self, kind: UserKind, claim: &str) -> bool {
        let has_ended = matches!(self.status["phase"].as_str(), Some("Succeeded" | "Failed"));
        let counts = kind != UserKind::Pod || !has_ended;
        counts && (names_claim(&self.spec, claim) || names_claim(&self.status, claim))
    }

    /// Whether the object is on: a VirtualMachine that is off, and a guest that has ended, only name their claims.
    pub(crate) fn is_on(&self, kind: UserKind) -> bool {
        match kind {
            UserKind::Pod => true,
            UserKind::Instance => {
                !matches!(self.status["phase"].as_str(), Some("Succeeded" | "Failed"))
            }
            UserKind::VirtualMachine => {
                let strategy = self.spec["runStrategy"].as_str();
                // A start of one with `Manual` is a request of a user.
                let is_off =
                    matches!(strategy, Some(HALTED | "Manual")) || self.spec["running"] == false;
                !is_off || self.status["created"] == true
            }
        }
    }

    /// Whether the object is the guest of the Machine, or a part of it. Labels and annotations alone do not say so: a copy
    /// of the VirtualMachine under another name has them, and so have the instance and the pod of that copy. An instance
    /// and its pod carry the labels of the template, not the uid.
    pub(crate) fn is_of(&self, kind: UserKind, machine: &Machine) -> bool {
        self.is_labelled(machine)
            && match kind {
                UserKind::VirtualMachine => {
                    self.is_named(machine.name()) && self.has_uid_of(machine)
                }
                UserKind::Instance => self.is_named(machine.name()),
                UserKind::Pod => self.is_owned_by_instance(machine.name()),
            }
    }

    /// Kind and name.
    pub(crate) fn title(&self, kind: UserKind) -> String {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        format!("{} '{name}'", kind.name())
    }

    /// Whether the claim must not be deleted because of the object. An import that is not complete may go although the
    /// guest of the Machine itself waits for it.
    pub(crate) fn prevents(
        &self,
        kind: UserKind,
        machine: &Machine,
        claim: &str,
        is_import: bool,
    ) -> bool {
        let awaits_import = match kind {
            UserKind::VirtualMachine => self.is_of(kind, machine),
            UserKind::Instance => self.is_of(kind, machine) && self.never_ran(),
            UserKind::Pod => false,
        };
        self.uses(kind, claim) && !(is_import && awaits_import)
    }

    /// Whether no guest has run in this instance: it has no phase, or one without a node. A phase of another type is
    /// not known.
    pub(crate) fn never_ran(&self) -> bool {
        let phase = &self.status["phase"];
        phase.is_null() || matches!(phase.as_str(), Some("" | "Pending" | "Scheduling"))
    }

    /// Whether the object has this name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.metadata.name.as_deref() == Some(name)
    }

    fn is_labelled(&self, machine: &Machine) -> bool {
        let labels = self.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(names::LABEL_MACHINE))
            .is_some_and(|name| name == machine.name())
    }

    fn has_uid_of(&self, machine: &Machine) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations
            .and_then(|annotations| annotations.get(names::ANNOTATION_MACHINE_UID))
            .is_some_and(|uid| uid == machine.uid())
    }

    /// Whether KubeVirt made the pod for the instance of this name.
    fn is_owned_by_instance(&self, name: &str) -> bool {
        let mut owners = self.metadata.owner_references.iter().flatten();
        owners.any(|owner| owner.kind == UserKind::Instance.name() && owner.name == name)
    }

    /// Why the claim is not deleted, and what to do.
    ///
    /// The guest of the Machine itself and pods end: then the deletion is tried again. Another owner's
    /// VirtualMachine uses the claim until a person decides.
    pub(crate) fn refusal(
        &self,
        kind: UserKind,
        machine: &Machine,
        claim: &str,
        is_import: bool,
    ) -> Failed {
        let ends = match kind {
            UserKind::VirtualMachine | UserKind::Instance => self.is_of(kind, machine),
            UserKind::Pod => true,
        };
        let user = format!(
            "{} {}",
            kind.name(),
            self.metadata.name.as_deref().unwrap_or_default()
        );
        let what = if is_import {
            "DataVolume"
        } else {
            "PersistentVolumeClaim"
        };
        let mut message = format!(
            "{what} {claim} is not deleted while {user} uses it: delete that {}",
            kind.name()
        );
        // An unfinished import is deleted whatever the policy: there is no disk in it yet.
        if !is_import {
            let _ = write!(
                message,
                ", or keep the claim with: kubectl annotate persistentvolumeclaim {claim} --namespace {} --overwrite {}=Retain",
                machine.namespace(),
                names::ANNOTATION_RECLAIM_POLICY,
            );
        }
        let remedy = if ends {
            Remedy::Reobserve
        } else {
            Remedy::UserAction
        };
        Failed::new(remedy, message)
    }
}

fn names_claim(value: &Value, claim: &str) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| match key.as_str() {
            "claimName" => value == claim,
            "dataVolume" => value["name"] == claim,
            _ => names_claim(value, claim),
        }),
        Value::Array(items) => items.iter().any(|item| names_claim(item, claim)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use controller_core::fixtures::{block, machine};
    use serde_json::json;

    use super::*;

    fn user(object: Value) -> ClaimUser {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_claim_is_found_wherever_kubevirt_and_pods_name_one() {
        let volumes = |volume: Value| json!({"metadata": {}, "spec": {"volumes": [volume]}});
        let template = |volume: Value| json!({"metadata": {}, "spec": {"template": {"spec": {"volumes": [volume]}}}});
        for object in [
            volumes(json!({"persistentVolumeClaim": {"claimName": "web-root"}})),
            volumes(json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "web-root"}}})),
            volumes(json!({"memoryDump": {"claimName": "web-root", "hotpluggable": true}})),
            volumes(json!({"dataVolume": {"name": "web-root"}})),
            template(json!({"persistentVolumeClaim": {"claimName": "web-root"}})),
            template(json!({"dataVolume": {"name": "web-root"}})),
            json!({"metadata": {}, "status": {"volumeRequests": [{"addVolumeOptions": {
                "volumeSource": {"persistentVolumeClaim": {"claimName": "web-root"}}}}]}}),
        ] {
            let user = user(object.clone());
            assert!(user.uses(UserKind::VirtualMachine, "web-root"), "{object}");
            assert!(!user.uses(UserKind::VirtualMachine, "web"), "{object}");
        }
        let named_otherwise = user(volumes(json!({"configMap": {"name": "web-root"}})));
        assert!(!named_otherwise.uses(UserKind::Pod, "web-root"));
    }

    #[test]
    fn only_a_pod_that_has_ended_does_not_use_its_claims() {
        for (phase, in_pod) in [
            (json!(null), true),
            (json!("Pending"), true),
            (json!("Running"), true),
            (json!("Unknown"), true),
            (json!("Succeeded"), false),
            (json!("Failed"), false),
        ] {
            let user = user(json!({
                "metadata": {},
                "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "web-root"}}]},
                "status": {"phase": phase},
            }));
            assert_eq!(user.uses(UserKind::Pod, "web-root"), in_pod, "{phase}");
            assert!(user.uses(UserKind::Instance, "web-root"), "{phase}");
        }
    }

    /// `kubectl get vm web -o yaml`, another name, `kubectl create`: labels and annotations are copied, too.
    #[test]
    fn a_copy_of_the_virtual_machine_under_another_name_is_not_of_the_machine() {
        let machine = machine(block());
        let object = |name: &str, owner: Option<&str>| {
            let owner = owner.map(|name| {
                json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "uid": "1"}])
            });
            user(json!({"metadata": {
                "name": name, "labels": {names::LABEL_MACHINE: "web"}, "ownerReferences": owner,
                "annotations": {names::ANNOTATION_MACHINE_UID: "uid-of-web"},
            }}))
        };
        for (kind, name, owner, is_of) in [
            (UserKind::VirtualMachine, "web", None, true),
            (UserKind::VirtualMachine, "copy", None, false),
            (UserKind::Instance, "web", None, true),
            (UserKind::Instance, "copy", None, false),
            (UserKind::Pod, "virt-launcher-web-x7k2p", Some("web"), true),
            (
                UserKind::Pod,
                "virt-launcher-copy-x7k2p",
                Some("copy"),
                false,
            ),
            (UserKind::Pod, "web", None, false),
        ] {
            let user = object(name, owner);
            assert_eq!(user.is_of(kind, &machine), is_of, "{kind:?} {name}");
        }
        let refusal =
            object("copy", None).refusal(UserKind::VirtualMachine, &machine, "web-root", false);
        assert_eq!(refusal.remedy, Remedy::UserAction);
    }

    #[test]
    fn a_deletion_is_retried_if_the_user_of_the_claim_ends_and_reported_otherwise() {
        let machine = machine(block());
        let ours = json!({"name": "web", "labels": {names::LABEL_MACHINE: "web"},
            "annotations": {names::ANNOTATION_MACHINE_UID: "uid-of-web"}});
        let former = json!({"name": "web", "labels": {names::LABEL_MACHINE: "web"},
            "annotations": {names::ANNOTATION_MACHINE_UID: "uid-of-former"}});
        let stranger = json!({"name": "db"});
        for (kind, metadata, remedy) in [
            (UserKind::VirtualMachine, &ours, Remedy::Reobserve),
            (UserKind::VirtualMachine, &former, Remedy::UserAction),
            (UserKind::VirtualMachine, &stranger, Remedy::UserAction),
            (UserKind::Instance, &ours, Remedy::Reobserve),
            (UserKind::Instance, &stranger, Remedy::UserAction),
            (UserKind::Pod, &stranger, Remedy::Reobserve),
        ] {
            let user = user(json!({"metadata": metadata}));
            let refusal = user.refusal(kind, &machine, "web-root", false);
            assert_eq!(refusal.remedy, remedy, "{kind:?} {metadata}");
            assert!(
                refusal.message.contains(
                    "kubectl annotate persistentvolumeclaim web-root --namespace default"
                ),
                "{}",
                refusal.message
            );
        }
    }
}
