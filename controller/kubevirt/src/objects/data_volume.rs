//! A DataVolume of CDI: how far the import of an image is.

use common::names;
use common::render::kubevirt::types::DataVolumeSource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::claim::ClaimSpec;
use super::conditions::{ForeignCondition, find_condition, read};
use controller_core::objects::{Meta as _, lenient, metadata};
use controller_core::{cacheable, resource};

/// Progress is reported in steps of this many percent: CDI updates it every two seconds, which would be a status write
/// each time.
const PROGRESS_STEP: u32 = 5;

/// A DataVolume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DataVolume {
    #[serde(default, deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) spec: ImportSpec,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) status: DataVolumeStatus,
}
resource!(
    DataVolume,
    "DataVolume",
    "cdi.kubevirt.io",
    "v1beta1",
    "datavolumes",
    NamespaceResourceScope
);
cacheable!(DataVolume);

/// What is imported. CDI refuses a change of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ImportSpec {
    pub(crate) source: DataVolumeSource,
    /// The claim that CDI creates.
    #[serde(deserialize_with = "lenient")]
    pub(crate) pvc: ClaimSpec,
}

/// Status of a DataVolume; CDI writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DataVolumeStatus {
    pub(crate) phase: String,
    pub(crate) progress: String,
    #[serde(deserialize_with = "read")]
    pub(crate) conditions: Vec<ForeignCondition>,
}

impl DataVolume {
    /// Whether it is an import of a MachineImage that this controller made.
    pub(crate) fn is_shared_import(&self) -> bool {
        self.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
            && self.label(names::LABEL_IMAGE_SOURCE).is_some()
    }

    /// Whether it is an unfinished clone of the claim of another DataVolume.
    pub(crate) fn clones(&self, import: &Self) -> bool {
        let source = self.spec.source.pvc.as_ref();
        !self.is_finished()
            && source.is_some_and(|source| {
                source.namespace == import.namespace() && source.name == import.name()
            })
    }

    /// What conditions and the status report of an import: a change of anything else concerns no Machine.
    pub(crate) fn shown(&self) -> (&str, Option<String>, Option<&str>, bool) {
        let is_deleting = self.metadata.deletion_timestamp.is_some();
        (
            &self.status.phase,
            self.progress(),
            self.message(),
            is_deleting,
        )
    }

    /// Whether the image is in the volume.
    pub(crate) fn is_finished(&self) -> bool {
        self.status.phase == "Succeeded"
    }

    /// Whether the import starts once the guest has been scheduled to a node.
    pub(crate) fn waits_for_guest(&self) -> bool {
        matches!(
            self.status.phase.as_str(),
            "WaitForFirstConsumer" | "PendingPopulation"
        )
    }

    /// Whether the import has failed permanently. CDI retries a failed import, so this means a claim that lost its
    /// volume.
    pub(crate) fn has_failed(&self) -> bool {
        self.status.phase == "Failed"
    }

    /// Whether the last attempt failed, or CDI cannot make the claim, such as `ErrClaimNotValid` and `ErrExceededQuota`:
    /// then it imports nothing until somebody acts.
    pub(crate) fn is_failing(&self) -> bool {
        let conditions = &self.status.conditions;
        let is_failed = |kind, is: fn(&str) -> bool| {
            let found = find_condition(conditions, kind, "False");
            found.is_some_and(|condition| is(&condition.reason))
        };
        is_failed("Running", |reason| reason == "Error")
            || is_failed("Bound", |reason| reason.starts_with("Err"))
    }

    /// What CDI waits for, or why the last attempt failed, as CDI's message.
    pub(crate) fn message(&self) -> Option<&str> {
        let conditions = &self.status.conditions;
        let running = find_condition(conditions, "Running", "False");
        // With these reasons the message only repeats the phase.
        let bound = find_condition(conditions, "Bound", "False")
            .filter(|condition| !["Pending", "NotFound", ""].contains(&condition.reason.as_str()));
        [running, bound]
            .into_iter()
            .flatten()
            .map(|condition| condition.message.as_str())
            .find(|message| !message.is_empty())
    }

    /// Percentage of the image that was imported; `None` while CDI reports `N/A`.
    pub(crate) fn progress(&self) -> Option<String> {
        let digits = self.status.progress.split(['.', '%']).next()?;
        let percent: u32 = digits.parse().ok()?;
        Some(format!("{}%", percent / PROGRESS_STEP * PROGRESS_STEP))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn progress_rises_in_steps() {
        for (text, progress) in [
            ("42.50%", Some("40%")),
            ("0.0%", Some("0%")),
            ("100.0%", Some("100%")),
            ("7%", Some("5%")),
            ("N/A", None),
            ("", None),
        ] {
            let volume: DataVolume =
                serde_json::from_value(json!({"status": {"progress": text}})).unwrap();
            assert_eq!(volume.progress().as_deref(), progress, "{text}");
        }
    }

    #[test]
    fn messages_of_cdi_are_quoted_if_they_say_more_than_the_phase() {
        let message = |kind: &str, status: &str, reason: &str, message: &str| {
            let condition =
                json!({"type": kind, "status": status, "reason": reason, "message": message});
            let volume: DataVolume =
                serde_json::from_value(json!({"status": {"conditions": [condition]}})).unwrap();
            (volume.is_failing(), volume.message().map(str::to_owned))
        };
        let text = |text: &str| Some(text.to_owned());
        let cases = [
            (("Running", "False", "Error", "404"), (true, text("404"))),
            (("Running", "True", "Pod is running", ""), (false, None)),
            (
                ("Running", "False", "Pending", "no pod"),
                (false, text("no pod")),
            ),
            (
                ("Bound", "False", "Pending", "PVC a Pending"),
                (false, None),
            ),
            (
                ("Bound", "False", "ErrExceededQuota", "quota"),
                (true, text("quota")),
            ),
        ];
        for ((kind, status, reason, text), expected) in cases {
            assert_eq!(
                message(kind, status, reason, text),
                expected,
                "{kind} {reason}"
            );
        }
    }
}
