//! The table of reasons in `docs/operate.md`, which every status that a test brings about is held against.

use common::api::status::MachineStatus;

const PAGE: &str = include_str!("../../docs/operate.md");

/// Conditions that take over the reason of whatever holds the Machine up.
const TAKE_OVER: [&str; 2] = ["Ready", "VirtualMachineReady"];

fn has(condition: &str, reason: &str) -> bool {
    PAGE.contains(&format!("| {condition} | `{reason}` |"))
}

/// Fails for a condition that the page does not tell of.
pub(crate) fn tells_of(status: &MachineStatus) {
    for condition in &status.conditions {
        let (kind, reason) = (condition.kind.as_str(), condition.reason.as_str());
        let anywhere = || PAGE.contains(&format!(" | `{reason}` | "));
        let told = has(&format!("`{kind}`"), reason)
            || has("any", reason)
            || (TAKE_OVER.contains(&kind) && anywhere());
        assert!(
            told,
            "docs/operate.md does not tell of {kind}, reason {reason}"
        );
    }
}
