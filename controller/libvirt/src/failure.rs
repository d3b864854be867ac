//! What can be done about an error of a host.

use controller_core::backend::Failed;
use controller_core::client::Remedy;

use crate::access::AccessError;

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
        AccessError::Unsupported(_) | AccessError::Refused(_) | AccessError::Unavailable(_) => {
            Remedy::UserAction
        }
    };
    Failed::new(remedy, error.to_string())
}
