//! A DataVolume of CDI, as the controller keeps it: how far the import of an image is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::conditions::{ForeignCondition, read, told};
use controller_core::objects::lenient;
use controller_core::{kept, resource};

/// Progress is told in steps: CDI counts every two seconds, and a status is not written so often.
const PROGRESS_STEP: u32 = 5;

/// A DataVolume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DataVolume {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
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
kept!(DataVolume);

/// What CDI says of a DataVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DataVolumeStatus {
    pub(crate) phase: String,
    pub(crate) progress: String,
    #[serde(deserialize_with = "read")]
    pub(crate) conditions: Vec<ForeignCondition>,
}

impl DataVolume {
    /// Whether the image is in the volume.
    pub(crate) fn is_finished(&self) -> bool {
        self.status.phase == "Succeeded"
    }

    /// Whether the import begins when a guest has been given a node.
    pub(crate) fn waits_for_guest(&self) -> bool {
        matches!(
            self.status.phase.as_str(),
            "WaitForFirstConsumer" | "PendingPopulation"
        )
    }

    /// Whether CDI has given up. It tries an import that failed again and again, so what is left is a
    /// claim that lost its volume.
    pub(crate) fn has_failed(&self) -> bool {
        self.status.phase == "Failed"
    }

    /// Whether the last attempt failed.
    pub(crate) fn is_failing(&self) -> bool {
        told(&self.status.conditions, "Running", "False").is_some_and(|told| told.reason == "Error")
    }

    /// What CDI says it waits for, or why the last attempt failed.
    pub(crate) fn message(&self) -> Option<&str> {
        let conditions = &self.status.conditions;
        let running = told(conditions, "Running", "False");
        // Without trouble CDI says here what the phase says.
        let bound = told(conditions, "Bound", "False")
            .filter(|told| !["Pending", "NotFound", ""].contains(&told.reason.as_str()));
        [running, bound]
            .into_iter()
            .flatten()
            .map(|told| told.message.as_str())
            .find(|message| !message.is_empty())
    }

    /// How much of the image is there; CDI says `N/A` when it does not know.
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
    fn progress_goes_up_in_steps() {
        for (says, told) in [
            ("42.50%", Some("40%")),
            ("0.0%", Some("0%")),
            ("100.0%", Some("100%")),
            ("7%", Some("5%")),
            ("N/A", None),
            ("", None),
        ] {
            let volume: DataVolume =
                serde_json::from_value(json!({"status": {"progress": says}})).unwrap();
            assert_eq!(volume.progress().as_deref(), told, "{says}");
        }
    }

    #[test]
    fn cdi_is_quoted_when_it_has_something_to_say() {
        let message = |kind: &str, status: &str, reason: &str, message: &str| {
            let condition =
                json!({"type": kind, "status": status, "reason": reason, "message": message});
            let volume: DataVolume =
                serde_json::from_value(json!({"status": {"conditions": [condition]}})).unwrap();
            (volume.is_failing(), volume.message().map(str::to_owned))
        };
        let says = |text: &str| Some(text.to_owned());
        let cases = [
            (("Running", "False", "Error", "404"), (true, says("404"))),
            (("Running", "True", "Pod is running", ""), (false, None)),
            (
                ("Running", "False", "Pending", "no pod"),
                (false, says("no pod")),
            ),
            (
                ("Bound", "False", "Pending", "PVC a Pending"),
                (false, None),
            ),
            (
                ("Bound", "False", "ErrExceededQuota", "quota"),
                (false, says("quota")),
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
