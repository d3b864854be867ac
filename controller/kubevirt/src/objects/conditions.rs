//! Conditions of other projects' objects.

use common::bounds::TEXT_MAX;
use serde::Serialize;
use serde::{Deserialize, Deserializer};

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

/// Types of the conditions that are kept in the caches. All others are dropped.
const READ: [&str; 16] = [
    // Of a VirtualMachine and its instance.
    "AgentConnected",
    "EvictionRequested",
    "Failure",
    "HotMemoryChange",
    "HotVCPUChange",
    "LiveMigratable",
    "MigrationRequired",
    "PodScheduled",
    "Ready",
    "RestartRequired",
    "Synchronized",
    // Of a claim.
    "ControllerResizeError",
    "FileSystemResizePending",
    "NodeResizeError",
    // Of a DataVolume.
    "Bound",
    "Running",
];

/// Reads conditions. A message may be as long as an object, so it is cut here, before it is kept.
pub(crate) fn read<'de, D>(deserializer: D) -> Result<Vec<ForeignCondition>, D::Error>
where
    D: Deserializer<'de>,
{
    let mut conditions = Vec::<ForeignCondition>::deserialize(deserializer)?;
    conditions.retain(|condition| READ.contains(&condition.kind.as_str()));
    for condition in &mut conditions {
        let end = condition.message.floor_char_boundary(TEXT_MAX);
        condition.message.truncate(end);
    }
    Ok(conditions)
}

/// The condition of this type, if it has this status.
pub(crate) fn find_condition<'a>(
    conditions: &'a [ForeignCondition],
    kind: &str,
    status: &str,
) -> Option<&'a ForeignCondition> {
    debug_assert!(READ.contains(&kind), "{kind} is not kept");
    conditions
        .iter()
        .find(|condition| condition.kind == kind && condition.status == status)
}
