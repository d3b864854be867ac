//! What the guest of a stored Machine runs with. Its block may have changes that wait for a restart.

use std::str::FromStr;

use crate::api::choice::{Choice as _, PendingAction};
use crate::api::normalized::Normalized;
use crate::rules::rule::{GuestReport, PendingValue};

/// The stored block with the sizes and features of the running guest, on which it depends what that can take. Sockets that
/// KubeVirt is giving it by a live migration count as given: the instance has them, and is not given fewer.
pub(super) fn running(stored: &Normalized, guest: GuestReport<'_>) -> Normalized {
    let mut runs = stored.clone();
    let is_given = |change: &PendingValue| {
        change.field == "cpu.sockets" && change.action == PendingAction::LiveMigration.as_str()
    };
    for change in guest.pending.iter().filter(|change| !is_given(change)) {
        let current = &change.current;
        match change.field.as_str() {
            "cpu.cores" => set(&mut runs.cpu.cores, current),
            "cpu.threads" => set(&mut runs.cpu.threads, current),
            "cpu.sockets" => set(&mut runs.cpu.sockets, current),
            "cpu.maxSockets" => set(&mut runs.cpu.max_sockets, current),
            "memory.size" => set(&mut runs.memory.size, current),
            "memory.maxSize" => set(&mut runs.memory.max_size, current),
            "features.acpi" => set(&mut runs.features.acpi, current),
            _ => {}
        }
    }
    runs
}

/// Sets a value that can be read; another one has no meaning here.
fn set<T: FromStr>(at: &mut T, text: &str) {
    if let Ok(value) = text.parse() {
        *at = value;
    }
}
