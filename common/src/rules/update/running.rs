//! What the guest of a stored Machine runs with, as far as it decides which changes it can take.

use crate::api::choice::{Choice as _, PendingAction};
use crate::api::normalized::Normalized;
use crate::rules::rule::{GuestReport, PendingValue};

/// The stored block with the sizes and features of the running guest, on which it depends what that can take. Sockets that
/// KubeVirt is giving it by a live migration count as given: the instance has them, and is not given fewer.
pub(super) fn running(stored: &Normalized, guest: GuestReport<'_>) -> Normalized {
    let is_given = |change: &PendingValue| {
        change.field == "cpu.sockets" && change.action == PendingAction::LiveMigration.as_str()
    };
    let pending = guest.pending.iter().filter(|change| !is_given(change));
    stored.running(pending.map(|change| (change.field.as_str(), change.current.as_str())))
}
