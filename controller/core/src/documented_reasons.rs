//! The table of reasons in `docs/operate.md`. Unit tests check every status that they produce against it.

use common::api::status::MachineStatus;

const PAGE: &str = include_str!("../../../docs/operate.md");

/// Conditions that take over the reason of another condition.
const SUMMARIES: [&str; 2] = ["Ready", "VirtualMachineReady"];

fn has(condition: &str, reason: &str) -> bool {
    PAGE.contains(&format!("| {condition} | `{reason}` |"))
}

/// Whether the page documents a reason, of whichever condition.
#[must_use]
pub fn is_documented(reason: &str) -> bool {
    PAGE.contains(&format!(" | `{reason}` | "))
}

/// Asserts that the page documents every condition of a status.
///
/// # Panics
/// If a condition's type and reason are not in the table.
pub fn assert_documented(status: &MachineStatus) {
    for condition in &status.conditions {
        let (kind, reason) = (condition.kind.as_str(), condition.reason.as_str());
        let is_found = has(&format!("`{kind}`"), reason)
            || has("any", reason)
            || (SUMMARIES.contains(&kind) && is_documented(reason));
        assert!(
            is_found,
            "docs/operate.md does not document {kind}, reason {reason}"
        );
    }
}
