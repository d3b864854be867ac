//! What can be done about an error of a host.

use controller_core::backend::Failed;
use controller_core::client::Remedy;

use crate::access::AccessError;

/// Reason of the conditions of a Machine for which its host or a pool has no room.
pub(crate) const NO_ROOM: &str = "NoRoom";

/// The failure of a pass because of an error of a host. A call that timed out may have had its effect: observing
/// again shows whether it did.
pub(crate) fn failed(error: &AccessError) -> Failed {
    let remedy = match error {
        AccessError::Absent(_) | AccessError::TimedOut(_) | AccessError::Changed(_) => {
            Remedy::Reobserve
        }
        AccessError::Disconnected(_)
        | AccessError::Busy(_)
        | AccessError::Agent(_)
        | AccessError::Cancelled(_) => Remedy::Retry,
        AccessError::Unsupported(_)
        | AccessError::Refused(_)
        | AccessError::NoRoom(_)
        | AccessError::Unavailable(_) => Remedy::UserAction,
    };
    Failed {
        reason: matches!(error, AccessError::NoRoom(_)).then_some(NO_ROOM),
        ..Failed::new(remedy, error.to_string())
    }
}
