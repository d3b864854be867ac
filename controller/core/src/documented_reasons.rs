//! The table of reasons in `docs/operate.md`, which every status that a test brings about is held against.

use common::api::status::MachineStatus;

const PAGE: &str = include_str!("../../../docs/operate.md");

/// Conditions that take over the reason of whatever holds the Machine up.
const TAKE_OVER: [&str; 2] = ["Ready", "VirtualMachineReady"];

fn has(condition: &str, reason: &str) -> bool {
    PAGE.contains(&format!("| {condition} | `{reason}` |"))
}

/// Fails for a condition that the page does not document.
///
/// # Panics
/// If a condition's type and reason are not in the table.
pub fn assert_documented(status: &MachineStatus) {
    for condition in &status.conditions {
        let (kind, reason) = (condition.kind.as_str(), condition.reason.as_str());
        let anywhere = || PAGE.contains(&format!(" | `{reason}` | "));
        let told = has(&format!("`{kind}`"), reason)
            || has("any", reason)
            || (TAKE_OVER.contains(&kind) && anywhere());
        assert!(
            told,
            "docs/operate.md does not document {kind}, reason {reason}"
        );
    }
}
