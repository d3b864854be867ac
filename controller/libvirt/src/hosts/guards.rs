//! What a job of the host itself asks before each effect. Jobs of a Machine ask for its binding, too.

use std::sync::Arc;

use controller_core::client::{ApiError, GuardedClient};

use super::registry::ConnectedHost;
use crate::access::AccessError;
use crate::guard::Guard;

/// A guard that holds while this replica has the Lease and the host is reached over these connections.
pub(super) fn of_host(api: &GuardedClient, connected: &Arc<ConnectedHost>) -> Guard {
    let (api, connected) = (api.clone(), connected.clone());
    let may_act = move || {
        if api.may_write() {
            connected.check_open()
        } else {
            Err(AccessError::Cancelled(ApiError::NotLeading.to_string()))
        }
    };
    // It is about no Machine that could be bound elsewhere.
    Guard::new(may_act, || None)
}
