//! Events of what another client has changed in an object beside the VirtualMachine, and what this controller writes
//! again.
//!
//! The caches keep no managers, so an object is read before it is written. The event is secondary: if it cannot be
//! read, there is none, and the write takes place.

use common::names;
use controller_core::objects::Meta;
use k8s_openapi::NamespaceResourceScope;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use serde_json::Value;

use super::Apply;
use crate::plan::action::{ClaimPatch, Protection};

/// An object as it is before a write, with its managers; null: it is not known.
pub(super) struct Before(Value);

impl Before {
    /// A list of one, because the role of the controller permits to list every kind that it writes.
    pub(super) async fn read<K>(apply: &Apply<'_>, name: &str) -> Self
    where
        K: Meta<Scope = NamespaceResourceScope>,
    {
        let kind = ApiResource::erase::<K>(&());
        let namespace = apply.machine.namespace();
        let objects: Api<DynamicObject> =
            Api::namespaced_with(apply.api.client(), namespace, &kind);
        let one = ListParams::default().fields(&format!("metadata.name={name}"));
        match apply.api.read(objects.list(&one)).await {
            Ok(mut list) => {
                let object = list.items.pop();
                Self(serde_json::to_value(object).unwrap_or_default())
            }
            Err(error) => {
                tracing::debug!(error = error.message(), "the managers are not known");
                Self(Value::Null)
            }
        }
    }

    /// The other client that set a field last.
    fn other(&self, keys: &[&str]) -> Option<&str> {
        manager_of(&self.0["metadata"]["managedFields"], keys)
            .filter(|manager| *manager != names::FIELD_MANAGER)
    }

    /// The text for a NetworkAttachmentDefinition whose configuration is written again.
    pub(super) fn attachment(&self, name: &str) -> Option<String> {
        let other = self.other(&["spec", "config"])?;
        Some(format!(
            "restored spec.config of NetworkAttachmentDefinition {name}, changed by {other}, write the NetworkConfiguration instead"
        ))
    }

    /// The text for the Secret with the cloud-init data.
    pub(super) fn secret(&self, name: &str) -> Option<String> {
        let key = names::ANNOTATION_RENDERED;
        let annotation = &self.0["metadata"]["annotations"][key];
        let other = match self.other(&["metadata", "annotations", key]) {
            Some(other) => other,
            None if annotation.is_null() && self.0.is_object() => "another client",
            None => return None,
        };
        Some(format!(
            "restored the data and the annotation {key} of Secret {name}, changed by {other}, write spec.cloudInit of the Machine instead"
        ))
    }

    /// The text for a claim whose reclaim policy is written again.
    pub(super) fn claim(&self, patch: &ClaimPatch) -> Option<String> {
        let key = names::ANNOTATION_RECLAIM_POLICY;
        patch.annotations.get(key)?.as_ref()?;
        let other = self.other(&["metadata", "annotations", key])?;
        Some(format!(
            "restored the annotation {key} of PersistentVolumeClaim {}, changed by {other}, write reclaimPolicy of the disk in spec.disks of the Machine instead",
            patch.name
        ))
    }

    /// The text for a label that protects the object again. The annotation is there as long as the label has to be, so
    /// that a label that was removed differs from one that was never set.
    pub(super) fn protection(&self, protection: &Protection) -> Option<String> {
        let annotations = &self.0["metadata"]["annotations"];
        let was_set = annotations[names::ANNOTATION_PROTECTED] == "true";
        let label = names::LABEL_DELETION_PROTECTION;
        let other = self.other(&["metadata", "labels", label]);
        (protection.is_protected && was_set).then(|| {
            format!(
                "restored the label {label} of {} {}, changed by {}, set spec.deletionProtection of the Machine to false instead",
                protection.kind,
                protection.name,
                other.unwrap_or("another client")
            )
        })
    }
}

/// The manager that set a field last: the one whose entry has the field, or the nearest one above it.
pub(super) fn manager_of<'a>(managed: &'a Value, keys: &[&str]) -> Option<&'a str> {
    let depth = |entry: &Value| {
        let mut fields = &entry["fieldsV1"];
        let mut depth = 0;
        for key in keys {
            fields = &fields[format!("f:{key}")];
            if fields.is_null() {
                break;
            }
            depth += 1;
        }
        depth
    };
    let entries = managed.as_array().into_iter().flatten();
    let of_object = entries.filter(|entry| entry["subresource"].is_null());
    // Of several owners, the one that wrote last.
    let best = of_object.max_by_key(|entry| (depth(entry), entry["time"].as_str()));
    best.filter(|entry| depth(entry) > 1)?["manager"].as_str()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::plan::action::ProtectedKind;

    fn before(metadata: Value, manager: &str, fields: &Value) -> Before {
        let mut metadata = metadata;
        metadata["managedFields"] = json!([{"manager": manager, "fieldsV1": fields}]);
        Before(json!({"metadata": metadata}))
    }

    #[test]
    fn what_another_client_changed_is_named_with_the_field_to_write() {
        let config = json!({"f:spec": {"f:config": {}}});
        let text = before(json!({}), "kubectl-edit", &config).attachment("prod");
        assert_eq!(
            text.as_deref(),
            Some(
                "restored spec.config of NetworkAttachmentDefinition prod, changed by kubectl-edit, write the NetworkConfiguration instead"
            )
        );
        let ours = before(json!({}), names::FIELD_MANAGER, &config);
        assert_eq!(ours.attachment("prod"), None);
        assert_eq!(Before(Value::Null).attachment("prod"), None);

        let policy = names::ANNOTATION_RECLAIM_POLICY;
        let annotated = json!({"f:metadata": {"f:annotations": {format!("f:{policy}"): {}}}});
        let patch = |annotations: BTreeMap<&'static str, Option<String>>| ClaimPatch {
            name: "web-root".into(),
            annotations,
            ..ClaimPatch::default()
        };
        let changes = patch([(policy, Some("Delete".to_owned()))].into());
        let text = before(json!({}), "kubectl-annotate", &annotated).claim(&changes);
        assert!(
            text.unwrap()
                .contains("changed by kubectl-annotate, write reclaimPolicy")
        );
        let other = patch([(names::ANNOTATION_MACHINE_UID, Some("u".to_owned()))].into());
        assert_eq!(before(json!({}), "velero", &annotated).claim(&other), None);
    }

    #[test]
    fn a_secret_and_a_label_that_somebody_removed_are_restored_and_new_ones_are_not() {
        let rendered = json!({"annotations": {names::ANNOTATION_RENDERED: "digest"}});
        assert_eq!(before(rendered, "x", &json!({})).secret("s"), None);
        let text = before(json!({}), "x", &json!({})).secret("s");
        assert!(text.unwrap().contains("changed by another client"));

        let protection = |is_protected| Protection {
            kind: ProtectedKind::Claim,
            name: "web-root".into(),
            uid: "u".into(),
            is_protected,
        };
        let was_set = json!({"annotations": {names::ANNOTATION_PROTECTED: "true"}});
        let removed = before(was_set, "x", &json!({}));
        let text = removed.protection(&protection(true)).unwrap();
        assert!(text.contains("PersistentVolumeClaim web-root"), "{text}");
        assert_eq!(removed.protection(&protection(false)), None);
        let new = before(json!({}), "x", &json!({}));
        assert_eq!(new.protection(&protection(true)), None);
    }
}
